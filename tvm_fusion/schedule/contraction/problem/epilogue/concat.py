"""Concatenations of a product's results with other tensors, written in place by its epilogue.

    for tile of the product:  whole[i, first + j] = epilogue(acc)       its part of the columns
    for element of the other parts:  whole[i, j] = other                a loop nest of its own

A concatenation is a map that reads the sum under a condition on one axis: cut at the bounds that
conditions name, each part reads the sum everywhere or nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir

from .....core.tir.expressions import loads
from .....core.tir.loops import constant
from .....program.stage import Stage
from ....index.address import conditional_loads
from .cut_axis import cut, cuts_of

MOST_PARTS = 8


@dataclass(frozen=True)
class ConcatEpilogue:
    """Stages with concatenations cut into parts."""

    stages: tuple[Stage, ...]  # the sum, and maps that read it at all of their points
    others: tuple[Stage, ...]  # maps that do not read it


def concat_epilogue(stages: Sequence[Stage]) -> ConcatEpilogue | None:
    """Cut maps that read a sum under conditions on one axis; ``None`` where there are none.

    Parameters
    ----------
    stages
        Without internal maps, one reduction among them.
    """
    sums = [s.targets[0] for s in stages if not s.is_map]
    if len(sums) != 1:
        return None
    kept: list[Stage] = []
    others: list[Stage] = []
    for stage in stages:
        if not stage.is_map or is_whole(stage, sums):
            kept.append(stage)
            continue
        parts = parts_of(stage, sums)
        if parts is None:
            return None
        for part in parts:
            (kept if sums_of(loads(part.values[0]), sums) else others).append(part)
    return ConcatEpilogue(tuple(kept), tuple(others)) if others else None


def parts_of(stage: Stage, totals: Sequence[ir.Var]) -> list[Stage] | None:
    """Cut a map along the one axis of its conditions, so that parts read one sum each, or none."""
    cuts = cuts_of(stage.values[0], stage.axes)
    if len(cuts) != 1 or len(stage.targets) != 1:
        return None
    ((var, places),) = cuts.items()
    (axis,) = (a for a in stage.axes if a.var.same_as(var))
    if constant(axis.extent) is None or len(places) >= MOST_PARTS:
        return None
    parts = cut(stage, axis, places)
    return parts if all(is_whole(p, totals) for p in parts) else None


def is_whole(stage: Stage, totals: Sequence[ir.Var]) -> bool:
    """Whether a map reads one of some sums at most, and under no condition."""
    value = stage.values[0]
    is_conditional = bool(sums_of(conditional_loads(value), totals))
    return len(sums_of(loads(value), totals)) <= 1 and not is_conditional


def sums_of(found: Sequence[ir.TensorLoad], totals: Sequence[ir.Var]) -> set[ir.Var]:
    """Find which of some sums are read."""
    return {t for t in totals if any(x.source.same_as(t) for x in found)}
