"""Inputs bound to values at compile time."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper
from rounding import assert_sums_close

from tvm_fusion import FusionConfig, UserError
from tvm_fusion.config import parse_constants
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.onnx_model.constants import SHAPE_OPERANDS, bind_inputs, shape_inputs


@pytest.fixture(scope="module")
def sums(onnx_model):
    """Sum over axes that are an input, computed on the way."""
    nodes = [
        helper.make_node("Sub", ["axes", "one"], ["fewer"]),
        helper.make_node("ReduceSum", ["x", "fewer"], ["y"], keepdims=0),
    ]
    inputs = {"x": ("float32", [3, 5, 7]), "axes": ("int64", [1]), "one": ("int64", [1])}
    return onnx_model(nodes, inputs, {"y": ("float32", None)})


def test_the_refusal_names_the_inputs_to_bind(sums):
    with pytest.raises(UserError, match=r"bind axes, one with --constant axes=VALUE, or constants"):
        import_model(sums)


def test_bound_inputs_are_constants(sums, run, rng):
    imported = import_model(sums, FusionConfig(constants={"axes": 2, "one": np.array([1])}))
    assert [spec.name for spec in imported.signatures["main"].inputs] == ["x"]
    x = rng.standard_normal((3, 5, 7)).astype("float32")
    assert_sums_close(run(imported.mod, x), x.astype("float64").sum(1), np.abs(x).sum(1), 5)
    assert len(sums.graph.input) == 3


def test_inputs_that_carry_shapes(sums, onnx_model):
    assert shape_inputs(sums) == ("axes", "one")
    nodes = [
        helper.make_node("Shape", ["a"], ["s"]),  # of a tensor whose values do not matter
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    inputs = {"x": ("float32", [6]), "a": ("int64", [6])}
    assert shape_inputs(onnx_model(nodes, inputs, {"y": ("float32", None)})) == ()


def test_inputs_that_branches_pass_on(onnx_model):
    def branch(name, node):
        out = helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None)
        return helper.make_graph([node], name, [], [out])

    then = branch("t", helper.make_node("Abs", ["s"], ["t"]))
    other = branch("e", helper.make_node("Identity", ["s"], ["e"]))
    nodes = [
        helper.make_node("If", ["c"], ["shape"], then_branch=then, else_branch=other),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    inputs = {"x": ("float32", [6]), "s": ("int64", [2]), "c": ("bool", [])}
    assert shape_inputs(onnx_model(nodes, inputs, {"y": ("float32", None)})) == ("s", "c")


def test_shape_operands_are_inputs_of_onnx():
    for name, indices in SHAPE_OPERANDS.items():
        versions = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == name]
        assert max(indices) < max(len(schema.inputs) for schema in versions), name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"n": 1},
            "constants names 'n', which is not an input of the model; expected one of 'x', ",
        ),
        ({"axes": [1.5]}, r"constants\['axes'\] has values that int64 cannot hold"),
        ({"axes": [1, 2]}, r"constants\['axes'\] has shape \[2\]; expected \[1\]"),
        ({"axes": ["a"]}, "is not a tensor of numbers"),
    ],
)
def test_values_that_do_not_fit(sums, values, words):
    with pytest.raises(UserError, match=words):
        import_model(sums, FusionConfig(constants=values))


def test_only_models_of_onnx_have_inputs_to_bind():
    import tvm

    with pytest.raises(UserError, match="constants of a model of type IRModule"):
        import_model(tvm.IRModule(), FusionConfig(constants={"x": 1}))


def test_nothing_to_bind_changes_nothing(sums):
    assert bind_inputs(sums, {}) is sums


def test_values_on_the_command_line(tmp_path):
    np.save(tmp_path / "k.npy", np.eye(2))
    texts = ["a=1", "b=0,-2", "c=[3]", "d=true", "e=0.5", f"k={tmp_path / 'k.npy'}"]
    found = {name: value.tolist() for name, value in parse_constants(texts).items()}
    assert found == {
        **{"a": 1, "b": [0, -2], "c": [3], "d": True, "e": 0.5},
        "k": [[1.0, 0.0], [0.0, 1.0]],
    }


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=b", "a=1,,2", "a=[[1]]", "a={}", 'a="1"'])
def test_malformed_constants(text):
    with pytest.raises(UserError, match=r"expected NAME=NUMBER, NAME=NUMBER,NUMBER,\.\.\. or"):
        parse_constants([text])


def test_other_mistakes_in_constants(tmp_path):
    with pytest.raises(UserError, match="--constant 'a=2' names 'a' again"):
        parse_constants(["a=1", "a=2"])
    with pytest.raises(UserError, match=r"no.npy' cannot be read; expected a numpy .npy file"):
        parse_constants([f"a={tmp_path / 'no.npy'}"])


def test_compiling_and_checking_by_the_command_line(sums, tmp_path, capsys):
    from tvm_fusion.cli import main

    onnx.save(sums, tmp_path / "m.onnx")
    constants = ["--constant", "axes=2", "--constant", "one=1"]
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "a"), *constants]) == 0
    capsys.readouterr()
    pytest.importorskip("onnxruntime")
    command = ["check", str(tmp_path / "a"), str(tmp_path / "m.onnx"), *constants, "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
