"""Replace maxima by a single instruction where NaN need not propagate."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx


def plain_maximum(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Choose the larger of two numbers; of NaN and a number, the second.

    One x86 instruction, where ``tirx.Max``, which propagates NaN, has three.
    """
    return tirx.Select(tirx.GT(a, b), a, b)


def is_maximum(expr: ir.Expr) -> bool:
    """Whether an expression is the maximum of two others, NaN propagated or not."""
    if isinstance(expr, tirx.Select):
        return tvm_ffi.structural_equal(expr, plain_maximum(expr.true_value, expr.false_value))
    return isinstance(expr, tirx.Max)
