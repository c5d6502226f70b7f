"""Models that fuzzing has found: one sentence each."""

import pytest
from onnx import TensorProto as T
from onnx import helper
from tiny_models import onnx_model

import tvm_fusion
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model


def add():
    return onnx_model(
        [("Add", ["x", "w"], ["y"])],
        [("x", T.FLOAT, [3]), ("w", T.FLOAT, [3])],
        [("y", T.FLOAT, [3])],
    )


def with_opset(version):
    model = add()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", version))
    return model


def with_element_type(number):
    model = add()
    model.graph.input[1].type.tensor_type.elem_type = number
    return model


def with_operator(name):
    model = add()
    model.graph.node[0].op_type = name
    return model


def with_names(**changes):
    """With the node's inputs and outputs, and the graph's, renamed."""
    model = add()
    for field, name in changes.items():
        place = model.graph.node[0] if field.startswith("node") else model.graph
        values = getattr(place, field.removeprefix("node_"))
        if isinstance(values[0], str):
            values[0] = name
        else:
            values[0].name = name
    return model


def concat(more, axis=0):
    return onnx_model(
        [("Concat", ["x", *more], ["y"], {"axis": axis})],
        [("x", T.FLOAT, [3])],
        [("y", T.FLOAT, [3])],
    )


def resize(mode):
    return onnx_model(
        [("Resize", ["x", "", "s"], ["y"], {"coordinate_transformation_mode": mode})],
        [("x", T.FLOAT, [1, 1, 4, 4]), ("s", T.FLOAT, [4])],
        [("y", T.FLOAT, None)],
    )


def slice_of_many():
    bounds = [(name, T.INT64, [2**31 - 1]) for name in ("starts", "ends", "axes", "steps")]
    return onnx_model(
        [("Slice", ["x", *(name for name, *_ in bounds)], ["y"])],
        [("x", T.FLOAT, [3]), *bounds],
        [("y", T.FLOAT, None)],
    )


def with_one_input():
    model = add()
    del model.graph.node[0].input[1]
    return model


def with_extent(extent):
    nodes = [("Concat", ["x", "x"], ["y"], {"axis": 0})]
    return onnx_model(nodes, [("x", T.FLOAT, [extent])], [("y", T.FLOAT, [2 * extent])])


def eye_like():
    """onnx 1.23's shape inference ends the process."""
    return onnx_model(
        [("EyeLike", ["x"], ["y"])], [("/etc/x", T.INT32, [3, 4])], [("y", T.FLOAT, [3, 4])]
    )


def reads_itself():
    """A branch reads what is computed of its result."""
    return reads_below(source="y")


def reads_below(source="x"):
    """A branch reads what is defined behind it."""
    branch = onnx_model([("Neg", ["late"], ["b"])], [], [("b", T.FLOAT, [3])]).graph
    nodes = [
        ("If", ["c"], ["y"], {"then_branch": branch, "else_branch": branch}),
        ("Neg", [source], ["late"]),
    ]
    inputs = [("c", T.BOOL, []), ("x", T.FLOAT, [3])]
    return onnx_model(nodes, inputs, [("y", T.FLOAT, [3])])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (concat([""]), "(Concat lacks its input 1)"),
        (with_names(node_input=""), "(Add lacks its input 0)"),
        (with_one_input(), "(Add has 1 inputs of 2)"),
        (with_extent(2**60), "(its input 'x' has more elements than 64 bits count)"),
        (eye_like(), "(EyeLike reads 'x', which is not defined before it); expected names that"),
        (reads_itself(), "(Neg reads 'late', which is not defined before it)"),
        (with_names(node_input="z"), "(Add reads 'z', which is not defined before it)"),
        (with_names(node_output="w"), "(Add defines 'w' again)"),
        (with_names(output="z"), "(nothing computes its output 'z')"),
        (with_names(input="w"), "(its graph has two inputs 'w')"),
        (with_opset(-(2**63)), "has opset -9223372036854775808 (supported: 1 to"),
        (with_opset(2**63 - 1), "has opset 9223372036854775807 (supported: 1 to"),
        (with_element_type(0), "has input w without an element type"),
        (with_element_type(-1), "has values of type element type -1 (w)"),
        (with_element_type(1000), "has values of type element type 1000 (w)"),
        (with_operator("Add\n\x1b[31m"), "has unsupported operators Add \\x1b[31m (1x)"),
        (concat(["x"], 2**40), "Concat with axis 1099511627776 (1x)"),
        (resize(b"align\xff"), "Resize with coordinate_transformation_mode=align\\xff"),
        (slice_of_many(), "(Slice reads 2147483647 bounds from 'starts')"),
        (with_operator("A" * 5000), "has unsupported operators AAAA"),
    ],
)
def test_one_sentence(model, words):
    with pytest.raises(UserError) as caught:
        import_model(model)
    sentence = str(caught.value)
    assert words in sentence
    assert sentence.isprintable()
    assert len(sentence) < 4000


@pytest.mark.parametrize("field", ["node_input", "node_output", "op_type", "dim_param"])
def test_names_that_are_no_utf_8(tmp_path, field):
    model = add()
    if field == "dim_param":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "xxxx"
    elif field == "op_type":
        model.graph.node[0].op_type = "xxxx"
    elif field == "node_input":
        model = with_names(node_input="xxxx", input="xxxx")
    else:
        model = with_names(node_output="xxxx", output="xxxx")
    data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data.replace(b"xxxx", b"x\xe5st"))
    with pytest.raises(UserError, match=r"m.onnx has names that are not UTF-8; expected an"):
        import_model(tmp_path / "m.onnx")


def test_extents_beyond_32_bits_when_kernels_are_made():
    model = onnx_model(
        [("Transpose", ["x"], ["y"])], [("x", T.FLOAT, [2, 3, 2**40])], [("y", T.FLOAT, None)]
    )
    with pytest.raises(UserError, match="more elements along an axis than TVM can divide"):
        tvm_fusion.compile(model, "cpu")
