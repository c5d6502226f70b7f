"""Compose operators of both frameworks of Relax operators."""

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..tensor_types import dtype_of

op = relax.op


def elu(
    x: Any, alpha: float, scale: float = 1.0, input_scale: float = 1.0, dtype: str = "float32"
) -> Any:
    """Return ``scale * x`` above zero, ``scale * alpha * (exp(input_scale * x) - 1)`` below.

    ``dtype`` is the type that the result is rounded to. The difference is exact to 2**-24: enough
    for float16, which has no smaller numbers, and not for bfloat16, where near zero a series of
    three terms takes its place.
    """
    narrow = dtype

    def times(value: Any, factor: float) -> Any:
        return value if factor == 1 else op.multiply(value, relax.const(factor, dtype))

    dtype = dtype_of(x)
    zero = relax.const(0, dtype)
    power = op.minimum(times(x, input_scale), zero)
    below = op.subtract(op.exp(power), relax.const(1, dtype))
    if narrow == "bfloat16":
        series = op.add(relax.const(0.5, dtype), op.multiply(power, relax.const(1 / 6, dtype)))
        series = op.add(relax.const(1, dtype), op.multiply(power, series))
        is_near = op.greater(power, relax.const(-(2.0**-6), dtype))
        below = op.where(is_near, op.multiply(power, series), below)
    return op.where(op.greater_equal(x, zero), times(x, scale), times(below, alpha * scale))


def remainder(x: Any, y: Any, emit: Callable[[Any], Any]) -> Any:
    """Return Python's remainder of floats, with the sign of the divisor.

    It is ``fmod`` corrected by one divisor: ``floor_mod`` loses it for large quotients and for
    infinite divisors.
    """
    rest, zero = emit(op.mod(x, y)), relax.const(0, dtype_of(x))
    other_sign = op.not_equal(op.less(rest, zero), op.less(y, zero))
    other_sign = op.logical_and(op.not_equal(rest, zero), other_sign)
    return op.where(other_sign, op.add(rest, y), rest)
