"""Explanations in the user's names, and the names by which a user asks for a part of them."""

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import tvm_fusion
from tvm_fusion import UserError
from tvm_fusion.report.explain import Explanation, Member
from tvm_fusion.report.explain.result import named, nearest


def member(variable, *names, tensors=(), operator="relax.nn.conv2d", title="conv2d"):
    return Member(variable, operator, title, "Many-to-Many", names, tensors)


CONV = member("lv", "/backbone/stage2/Conv", tensors=("/backbone/stage2/Conv_output_0",))
OTHER = member("lv1", "/backbone/stage2/Conv_1", "/backbone/stage2/Mul")
DEEPER = member("lv2", "/backbone/stage20/Conv")
QUERY = member("lv3", "encoder.layer.3.attention.q", operator="relax.matmul", title="matmul")
SCORES = member("lv4", "encoder.layer.3.attention", operator="relax.matmul", title="matmul")
LATER = member("lv5", "encoder.layer.31.attention", tensors=("bmm",), operator="f", title="f")
ODD = member("gv", 'a "b" [0]*/größe', operator="relax.nn.softmax", title="softmax")
ALL = [CONV, OTHER, DEEPER, QUERY, SCORES, LATER, ODD]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/backbone/stage2/Conv", [CONV]),
        ("/backbone/stage2/Mul", [OTHER]),
        ("/backbone/stage2/Conv_output_0", [CONV]),
        ("/backbone/stage2", [CONV, OTHER]),
        ("/backbone/stage2/", [CONV, OTHER]),
        ("encoder.layer.3.attention", [QUERY, SCORES]),
        ("encoder.layer.3", [QUERY, SCORES]),
        ("encoder.layer.*.attention", [QUERY, SCORES, LATER]),
        ("encoder.*.3", [QUERY, SCORES]),
        ("Mul", [OTHER]),
        ("*/Conv", [CONV, DEEPER]),
        ("*stage2[0-9]*", [DEEPER]),
        ("bmm", [LATER]),
        ('a "b" [0]*/größe', [ODD]),
        ('a "b" [0]*', [ODD]),
        ("lv2", [DEEPER]),
        ("matmul", [QUERY, SCORES]),
        ("relax.nn.softmax", [ODD]),
        ("nn.softmax", [ODD]),
        ("soft?ax", [ODD]),
        ("encoder.layer", [QUERY, SCORES, LATER]),
        ("encoder.lay", []),
        ("/backbone/stage2/conv", []),
        ("", []),
    ],
)
def test_exact_prefix_and_glob(name, found):
    assert named(ALL, name) == set(found)


def test_the_nearest_names():
    known = [name for one in ALL for name in one.names]
    assert nearest("attention.q", known)[0] == "encoder.layer.3.attention.q"
    assert nearest("/backbone/stage2/Cnov", known)[0] == "/backbone/stage2/Conv"
    assert nearest("zzz", known) == []
    assert nearest("", known) == []


@pytest.fixture(scope="module")
def explanation():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="/block.0/fc/MatMul"),
        helper.make_node("Relu", ["m"], ["r"], name="/block.0/act/Relu"),
        helper.make_node("Softmax", ["r"], ["s"], name="/block.1/Softmax"),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    infos = {n: helper.make_tensor_value_info(n, T.FLOAT, [256, 256]) for n in ("x", "w", "y")}
    graph = helper.make_graph(nodes, "g", [infos["x"], infos["w"]], [infos["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return tvm_fusion.explain(model, "cuda:sm_90a", stock=False)


def test_members_and_edges_have_names(explanation):
    found = {m.names: m.tensors for group in explanation.groups for m in group.members}
    assert found == {
        ("/block.0/fc/MatMul",): ("m",),
        ("/block.0/act/Relu",): ("r",),
        ("/block.1/Softmax",): ("s",),
        ("y",): ("y",),
    }
    assert explanation.refused
    assert all(end.names for edge in explanation.refused for end in edge.members)
    assert Explanation.from_json(explanation.to_json()) == explanation


def test_a_part_by_the_users_name(explanation):
    assert "/block.0/act/Relu" in explanation.of("/block.0/act").groups[0].names
    assert explanation.of("s").groups == explanation.of("/block.1/Softmax").groups
    with pytest.raises(UserError, match=r"/block\.1/Softmaxx.*name one of /block\.1/Softmax"):
        explanation.of("/block.1/Softmaxx")


def test_tables_print_the_users_names(explanation):
    text = " ".join(str(explanation).split())
    assert "/block.0/fc/MatMul../block.0/act/Relu" in text
    assert "/block.0/act/Relu -> /block.1/Softmax" in text
    part = " ".join(str(explanation.of("/block.0/act")).split())
    assert "relu (One-to-One) /block.0/act/Relu" in part
