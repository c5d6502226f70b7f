"""Constants in the expressions of a pattern: numbers, positions and masks that were tensors."""

from collections.abc import Collection
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.structural import structural_map
from ....core.contract.template import Refusal
from ....core.tir.expressions import choice, map_loads
from ....ecg.closed_form import element_at
from ....program.group import Group
from .match import FLOATS, read
from .pattern import Pattern, widened


def read_group(group: Group, floats: Collection[str] = FLOATS) -> Pattern | Refusal:
    """Match a group as attention, constants written into it, or give the difference.

    Parameters
    ----------
    group
        Its inputs may be constants.
    floats
        Types that scores may have.
    """
    pattern = read(group.program, floats)
    return pattern if isinstance(pattern, Refusal) else with_constants(pattern, group)


def with_constants(pattern: Pattern, group: Group) -> Pattern:
    """Write closed forms of a group's constants into the score and the weight.

    Scalars become numbers, ``arange`` a position, a causal mask a comparison of positions; a mask
    that hides nothing vanishes.

    Parameters
    ----------
    pattern
        The attention of the group.
    group
        Whose inputs may be constants.
    """
    known: dict[ir.Var, tirx.IndexMap] = {}
    for buffer, value in zip(group.program.inputs, group.inputs, strict=True):
        if value.closed_form is not None:
            known[buffer] = value.closed_form
    if not known:
        return pattern

    def known_value(load: ir.TensorLoad) -> ir.Expr:
        form = known.get(load.source)
        return load if form is None else element_at(form, load.indices)

    def written(expr: ir.Expr) -> ir.Expr:
        found = map_loads(expr, known_value)
        return expr if found.same_as(expr) else widened(_folded(found))

    masked, sink = pattern.masked_weight, pattern.sink
    return replace(
        pattern,
        score=written(pattern.score),
        weight=written(pattern.weight),
        masked_weight=None if masked is None else written(masked),
        sink=None if sink is None else written(sink),
    )


def _folded(expr: ir.Expr) -> ir.Expr:
    """Drop choices that are always made in one way, and zeros that are added."""
    callbacks = [
        ((tirx.Select, ir.Call), _chosen),
        (tirx.Not, _negated),
        ((tirx.And, tirx.Or), _joined),
        (tirx.Add, _without_zero),
    ]
    return structural_map(expr, callbacks, order="post")


def _chosen(expr: ir.Expr) -> ir.Expr:
    parts = choice(expr)
    known = None if parts is None else _truth(parts[0])
    if parts is None or known is None:
        return expr
    return parts[1] if known else parts[2]


def _negated(expr: tirx.Not) -> ir.Expr:
    known = _truth(expr.a)
    return expr if known is None else tirx.const(not known, "bool")


def _joined(expr: tirx.And | tirx.Or) -> ir.Expr:
    neutral = isinstance(expr, tirx.And)
    for one, other in ((expr.a, expr.b), (expr.b, expr.a)):
        known = _truth(one)
        if known is not None:
            return other if known == neutral else one
    return expr


def _without_zero(expr: tirx.Add) -> ir.Expr:
    for one, other in ((expr.a, expr.b), (expr.b, expr.a)):
        while isinstance(one, tirx.Cast):
            one = one.value
        if isinstance(one, tirx.FloatImm) and one.value == 0:
            return other
    return expr


def _truth(expr: ir.Expr) -> bool | None:
    return bool(expr.value) if isinstance(expr, tirx.IntImm) else None
