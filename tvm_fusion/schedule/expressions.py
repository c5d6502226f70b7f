"""Membership of variables by identity, and maxima that need not propagate NaN."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx


def variables_of(expr: ir.Expr) -> list[ir.Var]:
    """Free variables, buffers included."""
    return list(tirx.analysis.undefined_vars(expr))


def contains(variables: Sequence[ir.Var], one: ir.Var) -> bool:
    """Whether a variable is among others: by identity, since ``==`` builds an expression."""
    return index_of(variables, one) is not None


def index_of(variables: Sequence[ir.Var], one: ir.Var) -> int | None:
    """Position of a variable among others."""
    return next((i for i, v in enumerate(variables) if v.same_as(one)), None)


def plain_maximum(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Choose the larger of two numbers; of NaN and a number, the second.

    For maxima whose NaN is found otherwise: one instruction of x86, where ``tirx.Max``, which
    passes NaN on, has three.
    """
    return tirx.Select(tirx.GT(a, b), a, b)


def is_maximum(expr: ir.Expr) -> bool:
    """Whether an expression is the maximum of two others, NaN passed on or not."""
    if isinstance(expr, tirx.Select):
        return tvm_ffi.structural_equal(expr, plain_maximum(expr.true_value, expr.false_value))
    return isinstance(expr, tirx.Max)
