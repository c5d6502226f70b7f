import numpy as np
import pytest
import tvm
from onnx import helper
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.config import FusionConfig
from tvm_fusion.frontend import import_model
from tvm_fusion.frontend.normalize import ClipPoolWindow
from tvm_fusion.signature import DimRange

F32 = "float32"


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor(("n", 4, 7, 7), F32)) -> R.Tensor(("n", 4, 1, 1), F32):
        with R.dataflow():
            y = R.nn.avg_pool2d(
                x,
                pool_size=[1280, 1280],
                strides=[1280, 1280],
                padding=[0, 0, 0, 0],
                ceil_mode=True,
                count_include_pad=True,
            )
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor(("n", 4, 7, 7), F32)) -> R.Tensor(("n", 4, 1, 1), F32):
        with R.dataflow():
            y = R.mean(x, axis=[2, 3], keepdims=True)
            R.output(y)
        return y


def test_before_and_expected():
    tvm.ir.assert_structural_equal(ClipPoolWindow()(Before), Expected)


def pool(onnx_model, op, size, **attrs):
    rank = len(attrs["kernel_shape"])
    return onnx_model(
        [helper.make_node(op, ["x"], ["y"], **attrs)],
        {"x": (F32, ["n", 3, *size])},
        {"y": (F32, ["n", 3, *["?"] * rank])},
        opset=19,
    )


@pytest.mark.slow_beyond(11)
@pytest.mark.parametrize(
    ("op", "include"), [("AveragePool", 0), ("AveragePool", 1), ("MaxPool", 0)]
)
@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        ((5, 6), {"kernel_shape": [9, 9], "strides": [9, 9], "ceil_mode": 1}),
        ((5, 6), {"kernel_shape": [9, 2], "strides": [9, 2], "ceil_mode": 1}),
        ((5, 6), {"kernel_shape": [9, 3], "strides": [9, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
        ((5, 6), {"kernel_shape": [8, 8], "strides": [7, 7], "ceil_mode": 1, "pads": [1, 0, 0, 1]}),
        ((6,), {"kernel_shape": [11], "strides": [8], "ceil_mode": 1}),
        ((6,), {"kernel_shape": [4], "dilations": [2], "strides": [2], "ceil_mode": 1}),
        ((7,), {"kernel_shape": [5], "dilations": [2], "strides": [3], "ceil_mode": 1}),
        ((4, 3, 5), {"kernel_shape": [6, 6, 6], "strides": [6, 6, 6], "ceil_mode": 1}),
    ],
)
def test_windows_beyond_the_input(op, size, attrs, include, onnx_model, onnxruntime_run, run, rng):
    if op == "AveragePool":
        attrs = attrs | {"count_include_pad": include}
    model = pool(onnx_model, op, size, **attrs)
    mod = import_model(model, FusionConfig(dims={"n": DimRange(1, 4)})).mod
    for n in (1, 3):
        x = rng.standard_normal((n, 3, *size), dtype=F32)
        (expected,) = onnxruntime_run(model, x=x)
        result = run(mod, x)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_the_window_is_cut(onnx_model):
    model = pool(onnx_model, "MaxPool", (5, 6), kernel_shape=[9, 2], strides=[9, 2], ceil_mode=1)
    mod = import_model(model, FusionConfig(dims={"n": 1})).mod
    call = mod["main"].body.blocks[0].bindings[0].value
    assert [int(n) for n in call.attrs.pool_size] == [5, 2]


def test_average_over_the_whole_input_is_a_mean(onnx_model, operators, run, rng):
    model = pool(onnx_model, "AveragePool", (5, 6), kernel_shape=[5, 6])
    mod = import_model(model, FusionConfig(dims={"n": 2})).mod
    assert operators(mod["main"]) == ["mean"]
    x = rng.standard_normal((2, 3, 5, 6), dtype=F32)
    expected = x.mean((2, 3), keepdims=True, dtype="float64")
    np.testing.assert_allclose(run(mod, x), expected, rtol=1e-5, atol=1e-6)


def test_ordinary_pools_stay():
    @I.ir_module
    class Ordinary:
        @R.function
        def main(x: R.Tensor((1, 4, 7, "w"), F32)) -> R.Tensor(None, F32, ndim=4):
            with R.dataflow():
                y = R.nn.avg_pool2d(x, pool_size=[9, 9], padding=[4, 4, 4, 4])
                z = R.nn.max_pool2d(y, pool_size=[3, 3])
                R.output(z)
            return z

    assert ClipPoolWindow()(Ordinary).same_as(Ordinary)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    ("attrs", "window"),
    [
        ({"kernel_shape": [40, 3], "strides": [40, 2]}, [9, 3]),
        ({"kernel_shape": [12, 3], "strides": [4, 2], "pads": [2, 0, 1, 1]}, [11, 3]),
        ({"kernel_shape": [3, 3], "strides": [3, 2]}, [3, 3]),
    ],
)
def test_windows_beyond_any_extent_of_a_range(
    op, attrs, window, onnx_model, onnxruntime_run, run, rng
):
    model = onnx_model(
        [helper.make_node(op, ["x"], ["y"], ceil_mode=1, **attrs)],
        {"x": (F32, [1, 2, "h", 7])},
        {"y": (F32, [1, 2, "?", "?"])},
        opset=19,
    )
    mod = import_model(model, FusionConfig(dims={"h": DimRange(3, 9)})).mod
    call = mod["main"].body.blocks[0].bindings[0].value
    assert [int(n) for n in call.attrs.pool_size] == window
    for h in (3, 5, 9):
        x = rng.standard_normal((1, 2, h, 7), dtype=F32)
        (expected,) = onnxruntime_run(model, x=x)
        np.testing.assert_allclose(run(mod, x), expected, rtol=1e-5, atol=1e-6)


def test_windows_over_a_range_stay_where_padding_counts():
    @I.ir_module
    class Counted:
        @R.function
        def main(x: R.Tensor((1, 4, 7, "w"), F32)) -> R.Tensor(None, F32, ndim=4):
            R.func_attr({"tir_var_upper_bound": {"w": 5}})
            with R.dataflow():
                y = R.nn.avg_pool2d(
                    x, pool_size=[9, 9], padding=[4, 4, 4, 4], count_include_pad=True
                )
                R.output(y)
            return y

    assert ClipPoolWindow()(Counted).same_as(Counted)
