"""Hyperbolic functions by exponentials and power series, for vectors and all targets.

TVM marks ``cosh`` and ``sinh`` as vectorizable, but its only lowering of them for LLVM is the C
library's scalar function: a vectorized loop over them does not build. AMD's devices have neither.
TOPI's ``atanh`` is ``log((1 + x) / (1 - x)) / 2``, whose relative error
near 0 has no bound.
"""

import math
from collections.abc import Sequence

from tvm import ir, tirx

DTYPES = ("float32", "float64")
_SERIES_BELOW = 1.0  # beyond it the difference of exponentials loses one bit at most
_ATANH_BELOW = 0.25
# Terms of the series: the first one left out is below a quarter of a unit in the last place.
_SINH_TERMS = {"float32": 6, "float64": 10}
_ATANH_TERMS = {"float32": 6, "float64": 13}


def cosh(x: ir.Expr) -> ir.Expr:
    """``h * h / 2 + 1 / (2 h * h)`` with ``h = exp(|x| / 2)``, finite wherever ``cosh`` is."""
    dtype = str(x.ty.dtype)
    root = tirx.exp(tirx.abs(x) * tirx.const(0.5, dtype))
    return root * tirx.const(0.5, dtype) * root + tirx.const(0.5, dtype) / (root * root)


def sinh(x: ir.Expr) -> ir.Expr:
    """``h * h / 2 - 1 / (2 h * h)`` with the sign of ``x``; its power series near 0."""
    dtype = str(x.ty.dtype)
    root = tirx.exp(tirx.abs(x) * tirx.const(0.5, dtype))
    large = root * tirx.const(0.5, dtype) * root - tirx.const(0.5, dtype) / (root * root)
    signed = tirx.Select(x < tirx.const(0, dtype), tirx.const(0, dtype) - large, large)
    factors = [1 / math.factorial(2 * k + 1) for k in range(_SINH_TERMS[dtype])]
    return tirx.Select(
        tirx.abs(x) < tirx.const(_SERIES_BELOW, dtype), _odd_series(factors, x), signed
    )


def atanh(x: ir.Expr) -> ir.Expr:
    """``log((1 + x) / (1 - x)) / 2``; its power series near 0, where that quotient rounds to 1."""
    dtype = str(x.ty.dtype)
    one = tirx.const(1, dtype)
    large = tirx.log((one + x) / (one - x)) * tirx.const(0.5, dtype)
    factors = [1 / (2 * k + 1) for k in range(_ATANH_TERMS[dtype])]
    return tirx.Select(
        tirx.abs(x) < tirx.const(_ATANH_BELOW, dtype), _odd_series(factors, x), large
    )


def _odd_series(factors: Sequence[float], x: ir.Expr) -> ir.Expr:
    """``x * (factors[0] + factors[1] * x**2 + ...)``, by Horner's rule."""
    dtype = str(x.ty.dtype)
    square = x * x
    total: ir.Expr = tirx.const(factors[-1], dtype)
    for factor in factors[-2:0:-1]:
        total = total * square + tirx.const(factor, dtype)
    # x + x * (...): what is added is small, so that the sum's rounding is all there is.
    return x + x * (square * total)
