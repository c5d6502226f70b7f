"""Contractions among the stages of a program: sums of products of two operands."""

from collections.abc import Iterable
from functools import lru_cache

import tvm_ffi
from tvm import ir, tirx

from ..core.tir.expressions import is_load_of, loads, variables
from .stage import Stage


@lru_cache(maxsize=4096)  # stages are told apart by identity
def is_contraction(stage: Stage) -> bool:
    """Whether a stage sums products of two different operands."""
    operands = None if stage.is_map else operands_of(stage)
    return operands is not None and not tvm_ffi.structural_equal(*operands)


def operands_of(stage: Stage) -> tuple[ir.Expr, ir.Expr] | None:
    """Split ``T[..] + a * b`` into a and b, one of which must miss an axis that the other has."""
    term = term_of(stage)
    first = stage.init[0] if stage.init else None
    if not isinstance(first, (tirx.IntImm, tirx.FloatImm)) or float(first.value) != 0:
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


def term_of(stage: Stage) -> ir.Expr | None:
    """Return the summand of ``T[..] + term``; ``None`` of another update."""
    update = stage.values[0]
    if len(stage.targets) != 1 or not isinstance(update, tirx.Add):
        return None
    for own, term in ((update.a, update.b), (update.b, update.a)):
        if is_load_of(own, stage.targets[0]):
            return term
    return None


def has_windows(stage: Stage, read: Iterable[ir.TensorLoad]) -> bool:
    """Whether an index adds up terms and output places, as that of a convolution's image does."""
    terms, places = ({a.var for a in axes} for axes in (stage.reduce, stage.axes))
    used = (variables(i) for x in read for i in x.indices)
    return any(found & terms and found & places for found in used)


def dependents(stages: Iterable[Stage], first: Stage) -> list[Stage]:
    """List the stages that need what one computes, directly or by others, in order."""
    found, written = [], set(first.targets)
    for stage in stages:
        if stage is not first and stage.reads & written:
            found.append(stage)
            written |= set(stage.targets)
    return found
