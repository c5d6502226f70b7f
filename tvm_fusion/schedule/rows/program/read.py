"""Reading a group as a program of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load, map_loads, substitute
from ....ecg.work import at
from ....program.group import Group
from ....program.lane_conditions import decide_for_blocks
from ....program.layouts import is_layout_map
from ....program.program import Program
from ....program.stage import Axis, Stage
from ....program.stages.align import align
from .channel_lanes import with_channel_lanes
from .group_lanes import with_group_lanes

# Scalars that every row computes again, so that a kernel of rows needs no launch before it.
#
# A flag of a whole tensor, such as whether any element is infinite, has no rows: with it, all rows
# would be one block's. Where few terms are left of it, each row reduces them by itself:
#
#     m = max over i of t[i]                        rows n
#     rows n                                          m[n] = max over i of t[i]
#       y[n, c] = f(x[n, c], m)                       y[n, c] = f(x[n, c], m[n])

_INT64 = ir.PrimType("int64")


def with_recomputed_scalars(program: Program, most: int) -> Program | None:
    """Let each row of the other stages compute the scalars of a program.

    Parameters
    ----------
    program
        All of it one row, as some of its stages have one result.
    most
        Terms of a scalar, at most.

    Returns
    -------
    Program or None
        With the rows of the other stages; ``None`` where there are no such scalars, where others
        read them as well, or where the other stages have no rows either.
    """
    scalars = _scalars(program)
    rest = [stage for stage in program.stages if stage not in scalars]
    targets = [t for stage in scalars for t in stage.targets]
    if not scalars or not rest or any(t in program.outputs for t in targets):
        return None
    if any(_count(stage.reduce) > most for stage in scalars):
        return None
    aligned = align(rest, [*program.inputs, *targets], program.outputs)
    extents = [axis.extent for axis in aligned.stages[0].axes[: aligned.rows]]
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents):
        return None
    of_row = {t: declare(extents, str(t.ty.dtype), t.name) for t in targets}
    own = [_of_row(stage, extents, of_row) for stage in scalars]
    others = [_reading(stage, stage.axes[: aligned.rows], of_row) for stage in aligned.stages]
    return replace(program, stages=(*own, *others), row_rank=aligned.rows)


def _scalars(program: Program) -> list[Stage]:
    """List the stages of one result that read inputs, or other such results, only."""
    found: list[Stage] = []
    internal = set(program.internal)
    for stage in program.stages:
        known = {t for other in found for t in other.targets}
        if _count(stage.axes) == 1 and (stage.reads & internal) <= known:
            found.append(stage)
    return found


def _count(axes: Sequence[Axis]) -> float:
    """Multiply extents; those that are symbolic count as more than any number."""
    return math.prod(math.inf if axis.size is None else axis.size for axis in axes)


def _of_row(stage: Stage, extents: Sequence[ir.Expr], of_row: dict[ir.Var, ir.Var]) -> Stage:
    """Replace a scalar's axes, of extent 1, by those of rows."""
    rows = tuple(Axis(ir.Var("row", _INT64), extent) for extent in extents)
    point = {axis.var: tirx.IntImm("int64", 0) for axis in stage.axes}
    values = tuple(substitute(value, point) for value in stage.values)
    return replace(
        _reading(replace(stage, values=values), rows, of_row),
        axes=rows,
        targets=tuple(of_row[t] for t in stage.targets),
        indices=tuple(tuple(axis.var for axis in rows) for _ in stage.targets),
        solution=None,
    )


def _reading(stage: Stage, rows: Sequence[Axis], of_row: dict[ir.Var, ir.Var]) -> Stage:
    """Let a stage read the scalars of its own row."""

    def change(found: ir.TensorLoad) -> ir.Expr:
        own = of_row.get(found.source)
        return found if own is None else load(own, [axis.var for axis in rows])

    return replace(stage, values=tuple(map_loads(value, change) for value in stage.values))


# Terms of a scalar that each row of a GPU reduces again: some 32 loads of each of 64 threads, in
# flight together. On one H200 T5's flags of 128 and of 1,024 rows have a kernel of 1.6 and 2.2 us.
MOST_RECOMPUTED = 1 << 11


def rows_of(group: Group, on_cpu: bool) -> Program:
    """Return the program of a group, its axes in the order of memory where images have blocks.

    A thread of a CPU takes several groups of channels that are in one vector; a GPU has too few
    rows then, where channels are the last axis as a whole, and its threads read whole rows in the
    order of memory, which blocks of channels are not. On a GPU each row computes scalars of few
    terms again, where all would be one row with them.
    """
    if not on_cpu and count_rows(group.program) == 1:
        found = with_recomputed_scalars(group.program, MOST_RECOMPUTED)
        if found is not None:
            return found
    if any(is_layout_map(op.func) for op in group.members):
        program = with_group_lanes(group.program) if on_cpu else None
        program = program or with_channel_lanes(group.program, sums_alone=on_cpu)
        return replace(program, stages=tuple(map(decide_for_blocks, program.stages)))
    return group.program


def count_rows(program: Program) -> int:
    """Count the rows of a program."""
    axes = program.stages[0].axes[: program.row_rank]
    return math.prod(at(axis.extent) for axis in axes)
