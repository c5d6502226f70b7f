import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tvm_fusion.config import FusionConfig
from tvm_fusion.core.constants.weight_names import constants
from tvm_fusion.errors import UserError
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange, Signature, TensorSpec


@pytest.fixture
def projection(onnx_model, rng):
    """y = reshape(relu(x @ w), -1) with names no identifier would allow."""
    return onnx_model(
        [
            helper.make_node("MatMul", ["in/put:0", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Reshape", ["b", "flat"], ["out.1"]),
        ],
        {"in/put:0": ("float32", ["batch size", 7])},
        {"out.1": ("float32", ["anything"])},
        {"w": rng.standard_normal((7, 5), dtype="float32"), "flat": np.array([-1])},
    )


def test_static(projection, rng, run, onnxruntime_run):
    imported = import_model(projection, FusionConfig(dims={"batch size": 3}))
    assert imported.source == "ModelProto"
    assert imported.dims == {}
    assert imported.signatures == {
        "main": Signature(
            (TensorSpec("in/put:0", (3, 7), "float32"),), (TensorSpec("out.1", (15,), "float32"),)
        )
    }
    assert [param.name for param in imported.mod["main"].params] == ["in/put:0"]
    x = rng.standard_normal((3, 7), dtype="float32")
    (expected,) = onnxruntime_run(projection, **{"in/put:0": x})
    np.testing.assert_allclose(run(imported.mod, x), expected, rtol=1e-5, atol=1e-6)


def test_symbolic(projection, rng, run, onnxruntime_run):
    imported = import_model(projection, FusionConfig(dims={"batch_size": DimRange(1, 8)}))
    assert imported.dims == {"batch_size": DimRange(1, 8)}
    assert imported.signatures["main"].inputs[0].shape == ("batch_size", 7)
    assert imported.signatures["main"].outputs[0].shape == ("batch_size*5",)
    attrs = imported.mod["main"].attrs
    assert dict(attrs["tir_var_upper_bound"]) == {"batch_size": 8}
    assert dict(attrs["tir_var_lower_bound"]) == {"batch_size": 1}
    for batch in (1, 3, 8):
        x = rng.standard_normal((batch, 7), dtype="float32")
        (expected,) = onnxruntime_run(projection, **{"in/put:0": x})
        np.testing.assert_allclose(run(imported.mod, x), expected, rtol=1e-5, atol=1e-6)


def test_bounds_reach_the_memory_planner(onnx_model):
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    model = onnx_model(nodes, {"x": ("float32", ["n", 4])}, {"y": ("float32", ["n", 4])})
    mod = import_model(model, FusionConfig(dims={"n": DimRange(1, 6)})).mod
    with tvm.target.Target("llvm"):
        for each in (
            relax.transform.LegalizeOps(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
        ):
            mod = each(mod)
    assert "alloc_storage(R.shape([96])" in mod.script()  # 6 * 4 float32, of any n up to 6


def test_the_module_prints_and_parses(projection):
    mod = import_model(projection, FusionConfig(dims={"batch_size": DimRange(1, 8)})).mod
    again = tvm.script.from_source(mod.script(show_meta=True))
    tvm.ir.assert_structural_equal(again, mod, map_free_vars=True)


def test_the_users_model_stays_as_it_is(projection):
    before = projection.SerializeToString()
    import_model(projection, FusionConfig(dims={"batch_size": 2}))
    assert projection.SerializeToString() == before


def test_dimensions_without_a_name(onnx_model):
    model = onnx_model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        {"x": ("float32", [None, 4]), "b": ("float32", [4])},
        {"y": ("float32", [None, 4])},
    )
    with pytest.raises(UserError, match=r"unbound dimensions x_0 of input x\[0\]"):
        import_model(model)
    imported = import_model(model, FusionConfig(dims={"x_0": DimRange(1, 4)}))
    assert imported.signatures["main"].outputs[0].shape == ("x_0", 4)


def test_expressions_over_dimensions(onnx_model):
    model = onnx_model(
        [helper.make_node("Concat", ["x", "past"], ["y"], axis=0)],
        {"x": ("float32", ["n", 4]), "past": ("float32", ["2*n", 4])},
        {"y": ("float32", ["m", 4])},
    )
    imported = import_model(model, FusionConfig(dims={"n": DimRange(1, 4)}))
    assert [spec.shape for spec in imported.signatures["main"].inputs] == [("n", 4), ("2*n", 4)]
    static = import_model(model, FusionConfig(dims={"n": 3}))
    assert static.signatures["main"].outputs[0].shape == (9, 4)


def test_ranges_keep_their_length(onnx_model, run):
    """Range over a symbolic extent has that extent, not an unknown one."""
    model = onnx_model(
        [
            helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
            helper.make_node("Squeeze", ["s"], ["n"]),
            helper.make_node("Range", ["zero", "n", "one"], ["r"]),
            helper.make_node("Add", ["x", "r"], ["y"]),
        ],
        {"x": ("int64", ["seq"])},
        {"y": ("int64", ["seq"])},
        {"zero": np.array(0), "one": np.array(1)},
    )
    imported = import_model(model, FusionConfig(dims={"seq": DimRange(1, 9)}))
    assert imported.signatures["main"].outputs[0].shape == ("seq",)
    np.testing.assert_array_equal(run(imported.mod, np.full(5, 10)), np.array([10, 11, 12, 13, 14]))


def test_extents_as_outputs(onnx_model, run):
    model = onnx_model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        {"x": ("float32", ["n", 3])},
        {"s": ("int64", [2]), "n": ("int64", []), "y": ("float32", ["n", 3])},
        {"zero": np.array(0)},
    )
    imported = import_model(model, FusionConfig(dims={"n": DimRange(1, 8)}))
    assert [spec.shape for spec in imported.signatures["main"].outputs] == [(2,), (), ("n", 3)]
    shape, extent, _ = run(imported.mod, np.ones((5, 3), "float32"))
    np.testing.assert_array_equal(shape, [5, 3])
    assert extent == 5


def test_control_flow_gets_dataflow_blocks(onnx_model, run):
    def branch(name, op):
        node = helper.make_node(op, ["a"], [name])
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        return helper.make_graph([node], name, [], [out])

    model = onnx_model(
        [
            helper.make_node("Exp", ["x"], ["b"]),
            helper.make_node("Neg", ["b"], ["a"]),
            helper.make_node(
                "If", ["c"], ["i"], then_branch=branch("t", "Relu"), else_branch=branch("e", "Abs")
            ),
            helper.make_node("Add", ["i", "i"], ["y"]),
        ],
        {"x": ("float32", [3]), "c": ("bool", [])},
        {"y": ("float32", [3])},
    )
    imported = import_model(model)
    blocks = imported.mod["main"].body.blocks
    assert any(isinstance(block, relax.DataflowBlock) for block in blocks)
    x = np.array([0.5, -1, 2], "float32")
    for condition, expected in ((True, np.zeros(3)), (False, 2 * np.exp(x))):
        result = run(imported.mod, x, np.array(condition))
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_weights_know_their_names(onnx_model, rng):
    w = rng.standard_normal((3, 5), dtype="float32")
    bias = rng.standard_normal(3, dtype="float32")
    model = onnx_model(
        [helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], transB=1)],
        {"x": ("float32", [2, 5])},
        {"y": ("float32", [2, 3])},
        {"fc.weight": w, "fc.bias": bias},
    )
    imported = import_model(model)
    # Derived constants say how they came about.
    by_name = {name: const.value.numpy() for const, name in imported.weight_names.items()}
    assert by_name.keys() == {"fc.bias", "permute_dims(fc.weight)"}
    np.testing.assert_array_equal(by_name["fc.bias"], bias)
    np.testing.assert_array_equal(by_name["permute_dims(fc.weight)"], w.T)
    assert {hash(c) for c in imported.weight_names} <= {hash(c) for c in constants(imported.mod)}


def test_failing_import_is_one_sentence(onnx_model, capfd):
    model = onnx_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="bad_one")],
        {"x": ("float32", [2, 3])},
        {"y": ("float32", [4, 4])},
        {"shape": np.array([4, 4])},
    )
    with pytest.raises(UserError) as error:
        import_model(model)
    assert "ModelProto cannot be imported at operator Reshape 'bad_one'" in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_import_prints_nothing(onnx_model, capfd, recwarn):
    model = onnx_model(
        [
            helper.make_node("Log", ["zero"], ["a"]),  # numpy warns when the importer folds it
            helper.make_node("Add", ["x.1", "a"], ["y"]),
        ],
        {"x.1": ("float32", ["?", 3])},
        {"y": ("float32", ["?", 3])},
        {"zero": np.zeros(3, "float32")},
    )
    import_model(model, FusionConfig(dims={"?": 2}))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_file_and_proto_agree(tmp_path, projection):
    onnx.save(projection, tmp_path / "model.onnx")
    config = FusionConfig(dims={"batch_size": 2})
    from_file = import_model(tmp_path / "model.onnx", config)
    assert from_file.source == "model.onnx"
    tvm.ir.assert_structural_equal(from_file.mod, import_model(projection, config).mod)
