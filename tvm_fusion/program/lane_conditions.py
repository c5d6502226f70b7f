"""Conditions on channels, decided for whole blocks of them.

A concatenation chooses by ``k * 16 + lane < 64``. Where all lanes of a block lie on one side, that
is ``k * 16 < 64``, and a vector of lanes needs no choice of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import ir, sym, tirx

from .._tvm.ir.structural import structural_map
from ..core.tir.expressions import substitute, variables
from ..core.tir.loops import index
from .stage import Axis, Stage

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def decide_for_blocks(stage: Stage) -> Stage:
    """Take lanes out of comparisons that are alike for all lanes of a block.

    Parameters
    ----------
    stage
        Its axes of known extents, at the end of which lanes are, are tried.
    """
    analyzer = sym.Analyzer()
    axes = [a for a in (*stage.axes, *stage.reduce) if a.size is not None and a.size > 1]
    for axis in axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), axis.extent))
    values = tuple(decide_for_lanes(v, axes, analyzer) for v in stage.values)
    changed = any(not a.same_as(b) for a, b in zip(values, stage.values, strict=True))
    return replace(stage, values=values) if changed else stage


def decide_for_lanes(value: ir.Expr, axes: Sequence[Axis], analyzer: sym.Analyzer) -> ir.Expr:
    """Take lanes out of the comparisons of a value that are alike for all of them.

    Parameters
    ----------
    value
        Its comparisons of int64 are tried.
    axes
        The lanes, of known extents.
    analyzer
        Knows the ranges of all variables.
    """

    def decide(comparison: ir.Expr) -> ir.Expr:
        if str(comparison.a.ty.dtype) != "int64":
            return comparison
        for axis in axes:
            if axis.var in variables(comparison):
                found = _without(comparison, axis, analyzer)
                if found is not None:
                    return found
        return comparison

    callbacks: list[tuple[type, Callable]] = [(kind, decide) for kind in COMPARISONS]
    return structural_map(value, callbacks, order="post")


def _without(comparison: ir.Expr, axis: Axis, analyzer: sym.Analyzer) -> ir.Expr | None:
    """Write a comparison without an axis whose values make no difference."""
    size = axis.size
    assert size is not None
    distance = _distance(comparison)  # the comparison holds where this is at least 0
    first, second, last = (
        analyzer.simplify(substitute(distance, {axis.var: index(k)})) for k in (0, 1, size - 1)
    )
    step = analyzer.simplify(second - first)
    if not isinstance(step, tirx.IntImm) or abs(int(step)) != 1:
        return None
    # Numbers from a multiple of the size to the one before the next: none of them crosses 0.
    least = first if int(step) == 1 else last
    most = analyzer.simplify(least + (size - 1) * abs(int(step)))
    if not analyzer.can_prove_equal(first + last, least + most):
        return None
    if not analyzer.can_prove_equal(tirx.floormod(least, index(size)), 0):
        return None
    decided = analyzer.simplify(least >= 0)
    return decided


def _distance(comparison: ir.Expr) -> ir.Expr:
    a, b = comparison.a, comparison.b
    if isinstance(comparison, tirx.LT):
        return b - a - 1
    if isinstance(comparison, tirx.LE):
        return b - a
    if isinstance(comparison, tirx.GT):
        return a - b - 1
    return a - b
