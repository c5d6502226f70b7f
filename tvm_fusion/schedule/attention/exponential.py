"""The exponential of softmax: of numbers that are not positive, and 0 where it is next to nothing.

Processors take a hundred times as long for numbers below the smallest normal one as for others, and
masked scores have such exponentials. Beside the 1 of a row's maximum they count for nothing.
"""

from __future__ import annotations

import math

from tvm import ir, tirx

from ..vector_functions import EXP, LN2_HIGH, LN2_LOW, ROUND, ROUND_BITS
from .pattern import FLOAT

LEAST = -86.5  # its exponential and all steps to it are normal numbers


def decay(argument: ir.Expr) -> ir.Expr:
    """``exp(x)`` of a float32 ``x <= 0``, right to 2 ulp; 0 below ``LEAST``; NaN stays NaN.

    Cody and Waite's reduction to ``2**n * exp(r)``, as in
    :func:`tvm_fusion.schedule.vector_functions.exp`, in which ``2**n`` is always a normal number.
    """
    raw, x, shifted, r = (tirx.Var(name, FLOAT) for name in ("raw", "x", "shifted", "r"))

    def number(value: float) -> ir.Expr:
        return tirx.const(value, FLOAT)

    series = number(EXP[-1])
    for coefficient in EXP[-2::-1]:
        series = series * r + number(coefficient)
    bias = tirx.const(127 - ROUND_BITS, "int32")
    power = tirx.reinterpret(
        FLOAT, (tirx.reinterpret("int32", shifted) + bias) << tirx.const(23, "int32")
    )
    result = (series * r * r + r + number(1)) * power
    result = tirx.Select(raw < number(LEAST), number(0), result)
    rounded = shifted - number(ROUND)
    for variable, value in (
        (r, x - rounded * number(LN2_HIGH) - rounded * number(LN2_LOW)),
        (shifted, x * number(1 / math.log(2)) + number(ROUND)),
        (x, tirx.Select(raw < number(LEAST), number(LEAST), raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result
