import numpy as np
import pytest

F32 = "float32"


@pytest.mark.parametrize(("positive", "negative"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_signs_of_infinity(agrees, positive, negative):
    x = np.array([-np.inf, -1, np.inf, np.nan], F32)
    attrs = {"detect_positive": positive, "detect_negative": negative}
    agrees("IsInf", {"x": x}, {"y": "bool"}, **attrs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainders_of_floats(agrees, dtype):
    x = np.array(
        [5.5, -5.5, 7, -3, 0, 4, np.inf, np.nan, 1e30], dtype if dtype != "float16" else F32
    )
    y = np.array([3, 3, -np.inf, np.inf, 2, -2, 3, 1, 0.1], x.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = x.astype(dtype), y.astype(dtype)
        python, c = np.mod(x, y), np.fmod(x, y)
    finite = np.isfinite(y)
    agrees("Mod", {"x": x, "y": y}, {"z": dtype}, opset=13, expected=[c], fmod=1)
    x, y, python = x[finite], y[finite], python[finite]
    agrees("Mod", {"x": x, "y": y}, {"z": dtype}, opset=28, expected=[python], rtol=1e-3, fmod=0)


@pytest.mark.parametrize("op", ["Elu", "Selu", "ThresholdedRelu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_in_every_type(agrees, rng, op, dtype):
    x = rng.standard_normal(37).astype(dtype)
    alpha = np.float32(0.7)
    below = alpha * np.expm1(x)
    expected = {
        "Elu": np.where(x < 0, below, x),
        "Selu": np.float32(1.05070102214813232421875) * np.where(x < 0, below, x),
        "ThresholdedRelu": np.where(x > alpha, x, 0),
    }[op]
    result = expected.astype(dtype)
    agrees(op, {"x": x}, {"y": dtype}, expected=[result], opset=10, alpha=float(alpha))


@pytest.mark.parametrize("op", ["Max", "Mean", "Min", "Sum"])
def test_joins_of_nothing(agrees, op):
    nothing, row = np.zeros((0, 1), F32), np.ones((1, 3), F32)
    agrees(op, {"x": nothing, "y": row, "z": row}, {"w": F32}, expected=[np.zeros((0, 3), F32)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_signs(agrees, dtype):
    x = np.array([-3, 0, 2, 0, np.nan, np.inf] if "float" in dtype else [-3, 0, 2], dtype)
    agrees("Sign", {"x": x}, {"y": dtype}, expected=[np.sign(x)])


@pytest.mark.slow_beyond(5)
@pytest.mark.parametrize("base", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("exponent", ["int32", "int64"])
def test_integer_powers(agrees, base, exponent):
    x = np.array([0, 1, -1, 2, -3, 7, 0, 3, -1], "int64").astype(base)
    y = np.array([0, 9, 3, 10, 5, 3, 2, 65, -3 if base != "uint8" else 2], exponent)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    powers = [pow(a, b, 2**64) if b >= 0 else a for a, b in pairs]  # 1 and -1 to odd powers
    expected = np.array([n - 2**64 if n >= 2**63 else n for n in powers], "int64").astype(base)
    agrees("Pow", {"x": x, "y": y}, {"z": base}, expected=[expected], opset=15)


def test_powers_of_other_types(agrees):
    x, y = np.array([2, 3, 4], "int64"), np.array([0.5, 2, 1], F32)
    agrees("Pow", {"x": x, "y": y}, {"z": "int64"}, expected=[np.array([1, 9, 4])])
    agrees("Pow", {"y": y, "x": x}, {"z": F32}, expected=[(y**x).astype(F32)])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_reductions_of_booleans(agrees, rng, op):
    x = rng.random((5, 7)) < 0.5
    expected = (np.max if op == "ReduceMax" else np.min)(x, axis=1, keepdims=True)
    inputs = {"x": x, "a": np.array([1])}
    agrees(op, inputs, {"y": "bool"}, constants=["a"], opset=20, expected=[expected])


def test_slopes_of_channels_before_opset_7(agrees, rng):
    x, slope = rng.standard_normal((2, 3, 5, 7), F32), rng.random(3, F32)
    expected = np.where(x < 0, x * slope[:, None, None], x)
    inputs = {"x": x, "s": slope}
    agrees("PRelu", inputs, {"y": F32}, constants=["s"], opset=6, expected=[expected])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "uint32"])
def test_activations_of_integers(agrees, dtype):
    x = np.array([1, 3, 4, 100, -3, -4, -90], "int64").astype(dtype)
    y = x.astype("float64")
    y = np.where(y < -3.5, y + 1.5, np.where(y > 3.5, y - 1.5, 0)).astype(dtype)
    agrees("Shrink", {"x": x}, {"y": dtype}, expected=[y], lambd=3.5, bias=1.5)
    if dtype != "uint8":
        slope = np.array([2, 3, 5, 7, 11, 13, 17], dtype)
        expected = np.where(x < 0, x * slope, x)
        agrees("PRelu", {"x": x, "s": slope}, {"y": dtype}, expected=[expected])


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_functions_of_sums_of_integers(agrees, rng, op):
    x, axes = rng.integers(1, 20, (3, 5)).astype("int32"), np.array([1])
    agrees(op, {"x": x, "a": axes}, {"y": "int32"}, constants=["a"], keepdims=0)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_log_sum_exp_of_infinities(agrees, rng, keepdims):
    x = rng.standard_normal((5, 3, 7)).astype(F32)
    x[0], x[1, :, 2:], x[2, 1, 3], x[3, 0, 0] = -np.inf, -np.inf, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.reduce(x.astype("float64"), (0, 2), keepdims=bool(keepdims))
        rows = np.logaddexp.reduce(x.astype("float64"), 2, keepdims=bool(keepdims))
    for axes, result in (([0, -1], expected), ([2], rows)):
        agrees(
            "ReduceLogSumExp",
            {"x": x},
            {"y": F32},
            expected=[result.astype(F32)],
            opset=13,
            axes=axes,
            keepdims=keepdims,
        )
