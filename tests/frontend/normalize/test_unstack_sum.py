import numpy as np
import pytest
import tvm
from onnx import helper
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.normalize import UnstackSum
from tvm_fusion.signature import DimRange

F32 = "float32"


@I.ir_module
class Before:
    @R.function
    def main(a: R.Tensor(("n", 4), F32), b: R.Tensor((4,), F32)) -> R.Tensor(("n", 4), F32):
        n = T.int64()
        with R.dataflow():
            c = R.broadcast_to(a, R.shape([n, 4]))
            d = R.broadcast_to(b, R.shape([n, 4]))
            e = R.stack((c, d), axis=0)
            y = R.sum(e, axis=[0], keepdims=False)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(a: R.Tensor(("n", 4), F32), b: R.Tensor((4,), F32)) -> R.Tensor(("n", 4), F32):
        with R.dataflow():
            lv = R.add(a, b)
            y = lv
            R.output(y)
        return y


def test_before_and_expected():
    tvm.ir.assert_structural_equal(UnstackSum()(Before), Expected)


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("Sum", ["add", "add"]),
        ("Mean", ["add", "add", "multiply"]),
        ("Max", ["maximum", "maximum"]),
        ("Min", ["minimum", "minimum"]),
    ],
)
def test_onnx_operators(op, names, onnx_model, onnxruntime_run, operators, run, rng):
    model = onnx_model(
        [helper.make_node(op, ["a", "b", "c"], ["y"])],
        {"a": (F32, ["n", 1, 5]), "b": (F32, [3, 1]), "c": (F32, [1])},
        {"y": (F32, ["n", 3, 5])},
    )
    mod = import_model(model, FusionConfig(dims={"n": DimRange(1, 4)})).mod
    assert operators(mod["main"]) == names
    for n in (1, 4):
        a = rng.standard_normal((n, 1, 5), dtype=F32)
        b = rng.standard_normal((3, 1), dtype=F32)
        c = rng.standard_normal(1, dtype=F32)
        (expected,) = onnxruntime_run(model, a=a, b=b, c=c)
        np.testing.assert_allclose(run(mod, a, b, c), expected, rtol=1e-6, atol=1e-7)


def test_other_reductions_of_stacks_stay():
    @I.ir_module
    class Along:
        @R.function
        def main(a: R.Tensor((2, 4), F32)) -> R.Tensor((2, 2), F32):
            with R.dataflow():
                e = R.stack((a, a), axis=0)
                y = R.sum(e, axis=[2], keepdims=False)
                R.output(y)
            return y

    @I.ir_module
    class Shared:
        @R.function
        def main(
            a: R.Tensor((2, 4), F32),
        ) -> R.Tuple(R.Tensor((2, 4), F32), R.Tensor((2, 2, 4), F32)):
            with R.dataflow():
                e = R.stack((a, a), axis=0)
                y = R.sum(e, axis=[0], keepdims=False)
                z = R.exp(e)
                R.output(y, z)
            return (y, z)

    assert UnstackSum()(Along).same_as(Along)
    assert UnstackSum()(Shared).same_as(Shared)


def test_partial_sums_of_half_types_are_not_rounded(onnx_model, run):
    names = ["a", "b", "c"]
    node = helper.make_node("Sum", names, ["y"])
    model = onnx_model([node], {n: ("float16", [3]) for n in names}, {"y": ("float16", [3])})
    values = np.array([[6e4, 1.0, 2048], [6e4, 2.0**-11, 1], [-6e4, 2.0**-11, 1]], "f2")
    result = run(import_model(model, FusionConfig()).mod, *values)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, np.array([6e4, 1 + 2.0**-10, 2050], "f2"))
