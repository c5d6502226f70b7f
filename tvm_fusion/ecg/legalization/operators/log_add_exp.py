"""The logarithm of a sum of two exponentials, without computing either: they overflow from 89 on.

TOPI's is ``log(exp(a) + exp(b))``: infinite for ``a = 90`` in float32, minus infinity for -110.
"""

from __future__ import annotations

import math

from tvm import ir, tirx

from .broadcast import elementwise


def _value(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """``max(a, b) + log(1 + exp(-|a - b|))``; ``a + log 2`` where both are the same, infinities."""
    dtype = str(x.ty.dtype)
    smaller = tirx.exp(tirx.const(0, dtype) - tirx.abs(x - y))
    different = tirx.max(x, y) + tirx.log(tirx.const(1, dtype) + smaller)
    return tirx.Select(x.equal(y), x + tirx.const(math.log(2), dtype), different)


log_add_exp = elementwise("log_add_exp", _value)
