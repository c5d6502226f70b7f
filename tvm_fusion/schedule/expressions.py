"""Expressions of row programs: what they read and mention, and replacing that."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from .._tvm_structural import structural_map, structural_walk


def substitute(expr: ir.Expr, pairs: Sequence[tuple[ir.Var, ir.Expr]]) -> ir.Expr:
    """Replace variables, the buffers of loads excepted."""
    if not pairs:
        return expr

    def swap(var: ir.Var) -> ir.Expr:
        for old, new in pairs:
            if var.same_as(old):
                return new
        return var

    return structural_map(expr, (ir.Var, swap), order="post")


def loads_of(expr: ir.Expr) -> list[ir.TensorLoad]:
    """Every load of an expression."""
    found: list[ir.TensorLoad] = []
    structural_walk(expr, (ir.TensorLoad, found.append))
    return found


def variables_of(expr: ir.Expr) -> list[ir.Var]:
    """Free variables, buffers included."""
    return list(tirx.analysis.undefined_vars(expr))


def contains(variables: Sequence[ir.Var], one: ir.Var) -> bool:
    """Whether a variable is among others: by identity, since ``==`` builds an expression."""
    return index_of(variables, one) is not None


def index_of(variables: Sequence[ir.Var], one: ir.Var) -> int | None:
    """Position of a variable among others."""
    return next((i for i, v in enumerate(variables) if v.same_as(one)), None)


def row_major_offset(buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Offset in elements of an element of a compact buffer."""
    offset: ir.Expr = tirx.const(0, "int64")
    for extent, index in zip(buffer.shape, indices, strict=True):
        offset = offset * extent + index
    return offset


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
