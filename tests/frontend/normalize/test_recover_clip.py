import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax, te, tirx, topi
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.normalize import RecoverClip
from tvm_fusion.signature import DimRange

F32 = "float32"


def limited(low=None, high=None, shape=(3, 5), dtype=F32):
    """Spell a clip the way the importer does, bounds already folded."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            if low is not None:
                y = builder.emit_te(topi.maximum, y, relax.const(low, dtype))
            if high is not None:
                y = builder.emit_te(topi.minimum, y, relax.const(high, dtype))
            out = builder.emit_output(relax.op.exp(y) if dtype == F32 else y)
        builder.emit_func_output(out)
    return builder.get()


def test_before_and_expected():
    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", 5), F32)) -> R.Tensor(("n", 5), F32):
            with R.dataflow():
                lv = R.clip(x, tirx.FloatImm(F32, 0.0), tirx.FloatImm(F32, 6.0))
                y = R.exp(lv)
                R.output(y)
            return y

    before = limited(0.0, 6.0, (tirx.Var("n", "int64"), 5))
    tvm.ir.assert_structural_equal(RecoverClip()(before), Expected, map_free_vars=True)


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.0, None, ["maximum", "exp"]),
        (None, 6.0, ["minimum", "exp"]),
        (-np.inf, 6.0, ["minimum", "exp"]),
        (0.0, np.inf, ["maximum", "exp"]),
        (-np.inf, np.inf, ["exp"]),
        (2.0, 1.0, ["maximum", "minimum", "exp"]),
    ],
)
def test_bounds(low, high, names, operators, run, rng):
    before = limited(low, high)
    after = RecoverClip()(before)
    assert operators(after["main"]) == names
    assert [gvar.name_hint for gvar in after.get_global_vars()] == ["main"]
    x = 4 * rng.standard_normal((3, 5), dtype=F32)
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-6)


def test_integers(run):
    after = RecoverClip()(limited(-2, 3, dtype="int32"))
    x = np.arange(-7, 8, dtype="int32").reshape(3, 5)
    np.testing.assert_array_equal(run(after, x), np.clip(x, -2, 3))


def test_bounds_that_are_not_constants_or_nan_stay(operators):
    nan = limited(np.nan)
    assert operators(RecoverClip()(nan)["main"]) == ["call_tir", "exp"]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), F32))
    low = relax.Var("low", relax.TensorType((), F32))
    with builder.function("main", [x, low]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit_te(topi.maximum, x, low))
        builder.emit_func_output(out)
    before = builder.get()
    assert RecoverClip()(before).same_as(before)


def test_functions_are_known_by_what_they_compute(operators):
    def reversed_maximum(x, low):
        return te.compute(x.shape, lambda i, j: te.max(x[2 - i, j], low()), name="maximum")

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 5), F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_te(
                reversed_maximum, x, relax.const(0.0, F32), primfunc_name_hint="maximum"
            )
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    assert operators(RecoverClip()(builder.get())["main"]) == ["call_tir"]


@pytest.mark.parametrize("opset", [6 + 1, 13])
def test_onnx_clip(opset, onnx_model, onnxruntime_run, operators, run, rng):
    if opset < 11:
        nodes, weights = [helper.make_node("Clip", ["x"], ["y"], min=-0.5, max=1.5)], {}
    else:
        nodes = [helper.make_node("Clip", ["x", "lo", "hi"], ["y"])]
        weights = {"lo": np.float32(-0.5), "hi": np.float32(1.5)}
    model = onnx_model(nodes, {"x": (F32, ["n", 5])}, {"y": (F32, ["n", 5])}, weights, opset=opset)
    mod = import_model(model, FusionConfig(dims={"n": DimRange(1, 9)})).mod
    assert operators(mod["main"]) == ["clip"]
    x = 2 * rng.standard_normal((7, 5), dtype=F32)
    np.testing.assert_array_equal(run(mod, x), onnxruntime_run(model, x=x)[0])
