"""Contractions among the stages of a program: sums of products of two operands."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from ..core.expressions import is_load_of, loads, variables
from .stage import Stage


def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums products of two different operands."""
    operands = None if stage.is_map else operands_of(stage)
    return operands is not None and not tvm_ffi.structural_equal(*operands)


def operands_of(stage: Stage) -> tuple[ir.Expr, ir.Expr] | None:
    """Split ``T[..] + a * b`` into a and b, one of which must miss an axis that the other has."""
    update = stage.values[0]
    if len(stage.targets) != 1 or not isinstance(update, tirx.Add):
        return None
    first = stage.init[0] if stage.init else None
    if not isinstance(first, (tirx.IntImm, tirx.FloatImm)) or float(first.value) != 0:
        return None
    target = stage.targets[0]
    if is_load_of(update.a, target):
        term = update.b
    elif is_load_of(update.b, target):
        term = update.a
    else:
        return None
    while isinstance(term, tirx.Cast):
        term = term.value
    if not isinstance(term, tirx.Mul):
        return None
    left, right = term.a, term.b
    if not loads(left) or not loads(right):
        return None
    axes = {a.var for a in stage.axes}
    missing = [axes - variables(left), axes - variables(right)]
    return (left, right) if missing[0] or missing[1] else None
