import onnx
import pytest
from onnx import TensorProto, helper

from tvm_fusion.config import FusionConfig
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.preflight import inspect
from tvm_fusion.signature import DimRange

X = {"x": ("float32", [2, 4])}
Y = {"y": ("float32", [2, 4])}


def relu(source="x", target="y"):
    return helper.make_node("Relu", [source], [target])


def test_everything_in_one_message(onnx_model):
    model = onnx_model(
        [
            helper.make_node("Multinomial", ["x"], ["a"]),
            helper.make_node("Multinomial", ["a"], ["b"]),
            helper.make_node("Magic", ["b"], ["c"], domain="org.example"),
            relu("c"),
        ],
        {"x": ("float32", ["batch", "seq"])},
        Y,
        opset=onnx.defs.onnx_opset_version() + 1,
        domains=("org.example",),
    )
    with pytest.raises(UserError) as error:
        import_model(model)
    text = str(error.value)
    assert "\n" not in text
    assert f"opset {onnx.defs.onnx_opset_version() + 1} (supported: 1 to " in text
    assert "Multinomial (2x)" in text
    assert "org.example::Magic (1x)" in text
    assert "unbound dimensions batch of input x[0], seq of input x[1]" in text
    assert "--dim batch=VALUE or batch=LOW..HIGH" in text
    assert "--dim seq=VALUE or seq=LOW..HIGH" in text


def test_random_and_complex_numbers_are_told_as_the_model_has_them(onnx_model):
    draw = helper.make_node("Bernoulli", ["x"], ["y"])
    with pytest.raises(UserError, match=r"unsupported operators Bernoulli.*the random numbers an"):
        import_model(onnx_model([draw], X, Y))
    parts = {"x": ("complex64", [2, 3])}
    with pytest.raises(UserError, match=r"type complex64.*pass real and imaginary parts as two"):
        import_model(onnx_model([helper.make_node("Identity", ["x"], ["y"])], parts, Y))


def test_supported_model_has_no_findings(onnx_model):
    findings = inspect(onnx_model([relu()], X, Y), [])
    assert (findings.opset, dict(findings.operators), findings.values) == ("", {}, [])


def test_operators_in_branches_count(onnx_model):
    def branch(name, node):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [out])

    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("t", helper.make_node("Multinomial", ["x"], ["t"])),
        else_branch=branch("e", helper.make_node("Relu", ["x"], ["e"])),
    )
    model = onnx_model([node], {**X, "c": ("bool", [])}, Y)
    assert dict(inspect(model, []).operators) == {"Multinomial": 1}


def test_names_that_mean_something_else_in_another_domain(onnx_model):
    # The importer looks up names alone: its "Attention" is Microsoft's, not ONNX's of opset 23.
    standard = onnx_model([helper.make_node("Attention", ["x", "x", "x"], ["y"])], X, Y, opset=23)
    assert dict(inspect(standard, []).operators) == {"Attention": 1}
    foreign = onnx_model(
        [helper.make_node("Attention", ["x", "x"], ["y"], domain="com.microsoft", num_heads=1)],
        X,
        Y,
        domains=("com.microsoft",),
    )
    assert not inspect(foreign, []).operators
    disguised = onnx_model([helper.make_node("Relu", ["x"], ["y"], domain="com.microsoft")], X, Y)
    assert dict(inspect(disguised, []).operators) == {"com.microsoft::Relu": 1}
    unborn = onnx_model([helper.make_node("Gelu", ["x"], ["y"])], X, Y, opset=13)
    assert dict(inspect(unborn, []).operators) == {"Gelu": 1}


def test_opset_of_the_future(onnx_model):
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(UserError, match=f"opset {newest + 1} \\(supported: 1 to {newest}\\)"):
        import_model(onnx_model([relu()], X, Y, opset=newest + 1))


def test_model_without_a_standard_opset(onnx_model):
    model = onnx_model([relu()], X, Y)
    del model.opset_import[:]
    with pytest.raises(UserError, match="no opset of the standard domain"):
        import_model(model)


def test_inputs_that_are_no_tensors_of_known_rank(onnx_model):
    model = onnx_model([relu()], X, Y)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    table = model.graph.input.add(name="s")
    table.type.map_type.key_type = TensorProto.INT64
    with pytest.raises(UserError, match="input x of unknown rank, input s of map type; give in"):
        import_model(model)


def test_empty_graph(onnx_model):
    with pytest.raises(UserError, match="has an empty graph; expected a graph with at least one"):
        import_model(onnx_model([], X, X))


def test_local_functions_are_inlined_before_the_check(onnx_model):
    model = onnx_model([helper.make_node("Twice", ["x"], ["y"], domain="local")], X, Y)
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.append(
        helper.make_function(
            "local",
            "Twice",
            ["a"],
            ["b"],
            [helper.make_node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 18)],
        )
    )
    assert import_model(model).signatures["main"].outputs[0].shape == (2, 4)
    assert len(model.functions) == 1  # the user's model stays as it is


def test_bad_dims_are_told_before_the_rest(onnx_model):
    model = onnx_model([relu()], {"x": ("float32", ["n", 4])}, Y)
    with pytest.raises(UserError, match="--dim m names no dimension of the model"):
        import_model(model, FusionConfig(dims={"m": 4}))
    with pytest.raises(UserError, match=r"--dim n=3\.\.1; expected 0 <= LOW <= HIGH"):
        import_model(model, FusionConfig(dims={"n": DimRange(3, 1)}))
