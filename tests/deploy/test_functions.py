"""Modules of several functions, from TVM itself."""

import numpy as np
import pytest
import tvm
from rounding import assert_products_close
from tvm import relax

import tvm_fusion
from tvm_fusion import DimRange
from tvm_fusion.errors import UserError

WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")


def module(names=("main", "pair")) -> tvm.IRModule:
    """``main`` scales by a matrix; ``pair`` returns a nested tuple over the same matrix."""
    builder = relax.BlockBuilder()
    batch = tvm.tirx.Var("batch", "int64")
    with builder.function(names[0]):
        x = relax.Var("x", relax.TensorType([batch, 16], "float32"))
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(WEIGHT)))
        builder.emit_func_output(y, [x])
    with builder.function(names[1]):
        x = relax.Var("x", relax.TensorType([2, 16], "float32"))
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            z = builder.emit(relax.op.exp(x))
            both = builder.emit_output(relax.Tuple([y, relax.Tuple([z, x])]))
        builder.emit_func_output(both, [x])
    return builder.get()


@pytest.fixture(scope="module")
def artifact():
    return tvm_fusion.compile(module(), dims={"batch": DimRange(1, 4)})


@pytest.fixture(scope="module")
def executable(artifact, tmp_path_factory):
    return tvm_fusion.load(artifact.export(tmp_path_factory.mktemp("two") / "deep" / "two"))


def data(rows):
    return np.random.default_rng(rows).standard_normal((rows, 16)).astype("float32")


def test_each_function_has_its_signature_and_results(executable):
    assert list(executable.signatures) == ["main", "pair"]
    assert [spec.shape for spec in executable.signatures["main"].inputs] == [("batch", 16)]
    assert_products_close(executable(x=data(3))["output_0"], data(3), WEIGHT)
    x = data(2)
    outputs = executable.run({"x": x}, function="pair")
    assert list(outputs) == ["output_0", "output_1", "output_2"]
    assert_products_close(outputs["output_0"], x, WEIGHT)
    np.testing.assert_allclose(outputs["output_1"], np.exp(x), rtol=1e-5)
    np.testing.assert_array_equal(outputs["output_2"], x)


def test_a_weight_that_functions_share_is_stored_once(artifact, executable):
    functions = artifact.manifest["functions"]
    assert functions["main"]["weights"] == functions["pair"]["weights"]
    assert executable.manifest["files"]["weights.bin"]["bytes"] == WEIGHT.nbytes


def test_kernels_are_counted_by_function(artifact):
    kernels = {name: entry["kernels"] for name, entry in artifact.manifest["functions"].items()}
    assert kernels == {"main": 1, "pair": 2}


def test_a_module_without_main_is_called_by_the_function_names(tmp_path):
    mod = module(("prefill", "decode"))
    artifact = tvm_fusion.compile(mod, dims={"batch": DimRange(1, 4)})
    executable = tvm_fusion.load(artifact.export(tmp_path / "a"))
    outputs = executable.run({"x": data(2)}, function="prefill")
    assert_products_close(outputs["output_0"], data(2), WEIGHT)
    with pytest.raises(UserError, match="no function 'main'; expected one of 'prefill', 'decode'"):
        executable(x=data(2))
