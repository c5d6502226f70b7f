import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.frontend.normalize import ExpandPower

F32 = "float32"


def module(exponent):
    @I.ir_module
    class Power:
        @R.function
        def main(x: R.Tensor(("n", 3), F32)) -> R.Tensor(("n", 3), F32):
            with R.dataflow():
                a = R.exp(x)
                b = R.subtract(a, R.const(1.0, F32))
                c = R.power(b, R.const(exponent, F32))
                y = R.negative(c)
                R.output(y)
            return y

    return Power


def test_before_and_expected():
    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", 3), F32)) -> R.Tensor(("n", 3), F32):
            with R.dataflow():
                a = R.exp(x)
                b = R.subtract(a, R.const(1.0, F32))
                lv = R.multiply(b, b)
                c = R.multiply(lv, b)
                y = R.negative(c)
                R.output(y)
            return y

    tvm.ir.assert_structural_equal(ExpandPower()(module(3.0)), Expected)


@pytest.mark.parametrize(
    ("exponent", "names"),
    [
        (1.0, []),
        (2.0, ["multiply"]),
        (3.0, ["multiply", "multiply"]),
        (0.5, ["sqrt"]),
        (-0.5, ["rsqrt"]),
        (2.5, ["power"]),
        (4.0, ["multiply", "multiply"]),
        (1.5, ["sqrt", "multiply"]),
        (0.75, ["sqrt", "sqrt", "multiply"]),
        (-0.75, ["sqrt", "sqrt", "multiply", "divide"]),
        (-1.0, ["divide"]),
        (-2.0, ["multiply", "divide"]),
        (0.0, ["power"]),
    ],
)
def test_exponents(exponent, names, operators, run, rng):
    after = ExpandPower()(module(exponent))
    assert operators(after["main"])[2:-1] == names
    positive = exponent % 1 != 0
    x = rng.uniform(0.2 if positive else -2, 2, (5, 3)).astype(F32)
    power = np.exp(x.astype("float64")) - 1
    # The difference to 1 is rounded to half of what follows 1: more, where it is little.
    rtol = 2e-6 + abs(exponent) * 1.2e-7 * np.exp(x) / abs(power)
    error = abs(run(after, x) + power**exponent) / abs(power**exponent)
    assert (error <= rtol).all()


@pytest.mark.parametrize("exponent", [0.75, 1.5, 4.0, -0.75, -1.0, -2.0])
def test_limits(exponent, run):
    powers = module(exponent)
    x = np.array([[0.0, 88.7, np.inf], [1e-7, 60.0, 20.0]], F32)
    base = np.exp(x) - 1
    with np.errstate(divide="ignore", over="ignore"):
        expected = -np.power(base.astype("float64"), exponent).astype(F32)
    np.testing.assert_allclose(run(ExpandPower()(powers), x), expected, rtol=1e-4)


@pytest.mark.parametrize(("exponent", "names"), [(2.0, ["multiply"]), (0.75, []), (-1.0, [])])
def test_half_types_are_rounded_once(exponent, names, operators):
    @I.ir_module
    class Power:
        @R.function
        def main(x: R.Tensor((3,), "float16")) -> R.Tensor((3,), "float16"):
            with R.dataflow():
                y = R.power(x, R.const(exponent, "float16"))
                R.output(y)
            return y

    assert operators(ExpandPower()(Power)["main"]) == (names or ["power"])


def test_exponents_that_are_tensors_stay():
    @I.ir_module
    class Tensor:
        @R.function
        def main(x: R.Tensor((1, 3), F32), e: R.Tensor((), F32)) -> R.Tensor((2, 3), F32):
            with R.dataflow():
                a = R.power(x, e)
                y = R.power(a, R.const(np.full((2, 1), 2.0, F32)))
                R.output(y)
            return y

    assert ExpandPower()(Tensor).same_as(Tensor)
