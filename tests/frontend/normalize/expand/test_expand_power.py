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
        (4.0, ["power"]),
    ],
)
def test_exponents(exponent, names, operators, run, rng):
    after = ExpandPower()(module(exponent))
    assert operators(after["main"])[2:-1] == names
    positive = exponent % 1 != 0
    x = rng.uniform(0.2 if positive else -2, 2, (5, 3)).astype(F32)
    expected = -((np.exp(x.astype("float64")) - 1) ** exponent)
    np.testing.assert_allclose(run(after, x), expected, rtol=2e-6)


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
