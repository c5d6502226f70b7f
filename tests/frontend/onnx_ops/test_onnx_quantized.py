"""Quantized operators against ONNX Runtime: bytes may differ by one where sums are ties."""

import numpy as np
import pytest

from tvm_fusion.device import parse

pytestmark = pytest.mark.slow_beyond(2)

F32 = "float32"
HAS_VNNI = any("vnni" in feature for feature in parse("cpu").device.features)
types = pytest.mark.parametrize("dtype", ["int8", "uint8"])


def some(rng, dtype, *shape):
    limits = np.iinfo(dtype)
    # Without VNNI, ONNX Runtime adds two products of bytes in 16 bits: those of all bytes saturate.
    least, most = (limits.min, limits.max) if HAS_VNNI else (limits.min // 2, limits.max // 2)
    return np.asarray(rng.integers(least, most + 1, shape), dtype)


def scale(rng, *shape):
    return np.asarray(rng.uniform(0.01, 0.02, shape), F32)


def zero(rng, dtype, *shape):
    return np.asarray(some(rng, dtype, *shape) // 2, dtype)


@types
@pytest.mark.parametrize("by_column", [False, True])
def test_matmul(agrees, rng, dtype, by_column):
    columns = (5,) if by_column else ()
    inputs = {
        **{"a": some(rng, "uint8", 3, 37), "as": scale(rng), "az": zero(rng, "uint8")},
        **{"b": some(rng, dtype, 37, 5), "bs": scale(rng, *columns),
           "bz": zero(rng, dtype, *columns)},
        **{"ys": np.array(0.9, F32), "yz": np.array(11, "uint8")},
    }  # fmt: skip
    agrees("QLinearMatMul", inputs, {"y": "uint8"}, constants=["b", "bs", "bz"], atol=1)


@types
@pytest.mark.parametrize(
    ("bias", "attrs"), [(False, {"pads": [1, 0, 1, 2]}), (True, {"strides": [2, 1], "group": 2})]
)
def test_convolution(agrees, rng, dtype, bias, attrs):
    group = attrs.get("group", 1)
    inputs = {
        **{"x": some(rng, dtype, 2, 4, 7, 6), "xs": scale(rng), "xz": zero(rng, dtype)},
        **{"w": some(rng, "int8", 6, 4 // group, 3, 3), "ws": scale(rng, 6),
           "wz": np.zeros(6, "int8")},
        **{"ys": np.array(0.7, F32), "yz": np.array(3, dtype)},
    }  # fmt: skip
    if bias:
        inputs["b"] = rng.integers(-5000, 5000, 6).astype("int32")
    constants = [n for n in inputs if n[0] != "x"]
    agrees("QLinearConv", inputs, {"y": dtype}, constants=constants, atol=1, **attrs)


@pytest.mark.parametrize(
    ("dtype", "weight", "zero"),
    [("uint8", "int8", 0), ("uint8", "uint8", 128), ("uint8", "uint8", 100), ("int8", "int8", 0)],
)
def test_convolution_of_many_channels(agrees, rng, dtype, weight, zero):
    """Vectors of output channels, words of input channels, a zero point as padding."""
    inputs = {
        **{"x": some(rng, dtype, 2, 22, 7, 6), "xs": scale(rng), "xz": np.array(5, dtype)},
        **{"w": some(rng, weight, 33, 22, 3, 3), "ws": scale(rng), "wz": np.array(zero, weight)},
        **{"ys": np.array(1.7, F32), "yz": np.array(3, dtype)},
        "b": rng.integers(-5000, 5000, 33).astype("int32"),
    }
    constants = [n for n in inputs if n[0] != "x" or n in ("xs", "xz")]
    agrees("QLinearConv", inputs, {"y": dtype}, constants=constants, atol=1, pads=[1, 2, 0, 1])


@pytest.mark.parametrize("is_known", [True, False])
def test_integer_convolution_with_the_zero_point_of_the_run_time(agrees, rng, is_known):
    inputs = {
        **{"x": some(rng, "uint8", 1, 30, 6, 7), "w": some(rng, "int8", 17, 30, 3, 3)},
        "xz": np.array(117, "uint8"),
    }
    constants = ["w", "xz"] if is_known else ["w"]
    agrees("ConvInteger", inputs, {"y": "int32"}, constants=constants, rtol=0, atol=0,
           pads=[1, 1, 1, 1])  # fmt: skip


@pytest.mark.parametrize("channels", [3, 40])
def test_integer_convolution_is_exact(agrees, rng, channels):
    inputs = {
        "x": some(rng, "uint8", 1, channels, 6, 7),
        "w": some(rng, "uint8", 5, channels, 3, 3),
    }
    inputs |= {"xz": np.array(117, "uint8"), "wz": np.array(90, "uint8")}
    agrees("ConvInteger", inputs, {"y": "int32"}, constants=["w", "xz", "wz"], rtol=0, atol=0,
           pads=[1, 1, 1, 1])  # fmt: skip


@pytest.mark.parametrize("is_quantized", [False, True])
def test_gemm(agrees, rng, is_quantized):
    inputs = {
        **{"a": some(rng, "uint8", 3, 17), "as": scale(rng), "az": zero(rng, "uint8")},
        **{"b": some(rng, "int8", 5, 17), "bs": scale(rng, 5), "bz": np.zeros(5, "int8")},
        "c": rng.integers(-5000, 5000, 5).astype("int32"),
    }
    if is_quantized:
        inputs |= {"ys": np.array(0.5, F32), "yz": np.array(7, "uint8")}
    agrees("com.microsoft::QGemm", inputs, {"y": "uint8" if is_quantized else F32}, transB=1,
           constants=["b"], atol=1 if is_quantized else 1e-4)  # fmt: skip


@types
def test_matmul_to_float(agrees, rng, dtype):
    inputs = {
        **{"a": some(rng, "uint8", 3, 17), "b": some(rng, dtype, 17, 5)},
        **{"as": scale(rng, 1), "bs": scale(rng, 5), "az": np.array([9], "uint8")},
        **{"bz": zero(rng, dtype, 5), "c": rng.standard_normal(5, F32)},
    }
    agrees("com.microsoft::MatMulIntegerToFloat", inputs, {"y": F32}, constants=["b"], atol=1e-4)


def test_dynamic_matmul(agrees, rng):
    inputs = {"a": rng.standard_normal((3, 17), F32), "b": some(rng, "int8", 17, 5)}
    inputs |= {"bs": scale(rng, 5), "_bz": None, "c": rng.standard_normal(5, F32)}
    agrees("com.microsoft::DynamicQuantizeMatMul", inputs, {"y": F32}, constants=["b"], atol=1e-3)


@types
@pytest.mark.parametrize("name", ["Add", "Mul"])
def test_arithmetic(agrees, rng, dtype, name):
    inputs = {
        **{"a": some(rng, dtype, 3, 17), "as": scale(rng), "az": zero(rng, dtype)},
        **{"b": some(rng, dtype, 3, 17), "bs": scale(rng), "bz": zero(rng, dtype)},
        **{"ys": np.array(0.03, F32), "yz": np.array(7, dtype)},
    }
    agrees(f"com.microsoft::QLinear{name}", inputs, {"y": dtype}, atol=1)


@types
@pytest.mark.parametrize("name", ["Sigmoid", "LeakyRelu", "GlobalAveragePool"])
def test_activations(agrees, rng, dtype, name):
    inputs = {"a": some(rng, dtype, 2, 3, 4, 5), "as": scale(rng), "az": zero(rng, dtype)}
    inputs |= {"ys": np.array(0.01, F32), "yz": np.array(7, dtype)}
    constants = ["as", "az", "ys", "yz"]
    agrees(f"com.microsoft::QLinear{name}", inputs, {"y": dtype}, constants=constants, atol=1)


LAST = {"channels_last": 1}
WINDOWS = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}


@types
@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("AveragePool", {**WINDOWS, "count_include_pad": 1}),
        ("AveragePool", {**WINDOWS, **LAST, "ceil_mode": 1}),
        ("GlobalAveragePool", LAST),
        ("Softmax", {"opset": 13, "axis": 1}),
        ("Softmax", {"opset": 11, "axis": 2}),
    ],
)
def test_of_one_tensor(agrees, rng, dtype, name, attributes):
    inputs = {"a": some(rng, dtype, 2, 3, 5, 7), "as": scale(rng), "az": zero(rng, dtype)}
    of_shares = np.array(1 / 256, F32), np.array(np.iinfo(dtype).min, dtype)
    of_means = np.array(0.01, F32), np.array(7, dtype)
    inputs["ys"], inputs["yz"] = of_shares if name == "Softmax" else of_means
    constants = ["as", "az", "ys", "yz"]
    agrees(
        f"com.microsoft::QLinear{name}", inputs, {"y": dtype}, constants=constants, atol=1,
        **attributes,
    )  # fmt: skip


@types
def test_concat(agrees, rng, dtype):
    inputs = {"ys": np.array(0.02, F32), "yz": np.array(7, dtype)}
    for name, width in (("a", 3), ("b", 1), ("c", 8)):
        inputs |= {
            name: some(rng, dtype, 5, width), f"{name}s": scale(rng), f"{name}z": zero(rng, dtype)
        }  # fmt: skip
    constants = [name for name in inputs if len(name) > 1]
    agrees(
        "com.microsoft::QLinearConcat", inputs, {"y": dtype}, constants=constants, atol=1, axis=1
    )


@types
def test_where(agrees, rng, dtype):
    inputs = {"c": rng.random((5, 1)) < 0.5}
    for name, rows in (("a", 5), ("b", 1)):
        inputs |= {
            name: some(rng, dtype, rows, 9), f"{name}s": scale(rng), f"{name}z": zero(rng, dtype)
        }  # fmt: skip
    inputs |= {"ys": np.array(0.02, F32), "yz": np.array(7, dtype)}
    constants = [name for name in inputs if len(name) > 1]
    agrees("com.microsoft::QLinearWhere", inputs, {"y": dtype}, constants=constants, atol=1)


@types
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(agrees, rng, dtype, axis):
    shape = [6, 8]
    shape[axis] //= 2
    inputs = {"x": rng.standard_normal((6, 8), F32), "s": scale(rng, *shape)}
    inputs["z"] = zero(rng, dtype, *shape)
    attrs = {"axis": axis, "block_size": 2, "opset": 21}
    agrees("QuantizeLinear", inputs, {"y": dtype}, atol=1, **attrs)
    inputs["x"] = some(rng, dtype, 6, 8)
    agrees("DequantizeLinear", inputs, {"y": F32}, **attrs)
