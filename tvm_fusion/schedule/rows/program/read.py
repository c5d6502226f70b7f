"""Reading a group as a program of rows."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ...._tvm.ir.structural import structural_walk
from ....core.tir.expressions import has_division, load, map_loads, substitute, variables
from ....core.tir.loops import index
from ....ecg.work import at
from ....program.domain import Domain
from ....program.group import Group
from ....program.lane_conditions import decide_for_blocks
from ....program.layouts import is_layout_map
from ....program.program import Program
from ....program.stage import Axis, Stage
from ....program.stages.align import align
from ....program.stages.reindex import Reindexed, reindex
from ....program.stages.relayout import relaid
from .group_lanes import with_group_lanes

# Axes in the order of memory where channels are the last axis, or that of blocks.
#
# A reduction such as pooling is over (n, c, h, w), though ``x[n, c // 16, h, w, c % 16]`` are its
# images. Here c becomes two axes, and that of the lanes the last one, so that kernels read and
# write whole vectors:
#
#     rows       n, c, h, w        ->  n, block, h, w, lane
#     inner      c                 ->  block, lane
#     reduced    c, i, j           ->  block, i, j, lane
#
# Where the channels are no multiple of a block, lanes are as many as divide both. Channels that are
# the last axis as a whole, ``x[n, h, w, c]``, are taken in blocks as well.


_LEAST = 4  # lanes, below which axes stay as they are
_BLOCK = 16  # lanes of channels that are the last axis as a whole
_Lanes = list[dict[ir.Var, int]]  # per stage: axes to split, and by how much


def with_channel_lanes(program: Program, sums_alone: bool = True) -> Program:
    """Split the axes of channels that are blocks in memory.

    Parameters
    ----------
    program
        Some of its inputs or outputs are in blocked layouts.
    sums_alone
        Whether to split reduced axes as well where no axis of a result is split.

    Returns
    -------
    Program
        The same one where no axis can be split.
    """
    lanes = _wanted(program)
    if not any(lanes) or not (sums_alone or _splits_results(program, lanes)):
        return program
    rows = _split_rows(program, lanes)
    stages = [_split_reduced(s, own) for s, own in zip(program.stages, lanes, strict=True)]
    reaxed: list[Reindexed] = []
    for stage, own in zip(stages, lanes, strict=True):
        first, last = stage.axes[: program.row_rank], stage.axes[program.row_rank :]
        exprs: list[tuple[ir.Expr, ir.Expr]] = []
        for part in (first, last):
            exprs += [(_outer(a, own), _extent(a, own)) for a in part]
            exprs += [(_lane(a, own), index(own[a.var])) for a in part if a.var in own]
        new = reindex(stage.axes, [e for e, _ in exprs], [x for _, x in exprs], complete=True)
        if new is None:
            return program
        reaxed.append(new)
    done = relaid(stages, reaxed, program.row_rank + rows, program.outputs)
    return replace(program, stages=done, row_rank=program.row_rank + rows)


def _wanted(program: Program) -> _Lanes:
    """List axes that are divided by the lanes of a tensor, and those that follow them."""
    outside = {*program.inputs, *program.outputs}
    lanes: _Lanes = [{} for _ in program.stages]
    for stage, own in zip(program.stages, lanes, strict=True):
        writes = zip(stage.targets, stage.indices, strict=True)
        for buffer, indices in (*writes, *((x.source, x.indices) for x in stage.loads)):
            if buffer in outside:
                found = _divided(buffer, indices) or _last(stage, program.row_rank, indices)
                for var, lane in found.items():
                    own[var] = math.gcd(own.get(var, lane), lane)
        for axis in (*stage.axes, *stage.reduce):
            if axis.var in own:
                own[axis.var] = math.gcd(own[axis.var], axis.size or 1)
                if own[axis.var] < _LEAST or own[axis.var] == axis.size:
                    del own[axis.var]
    _share_rows(program, lanes)
    _follow(program, lanes)
    return lanes


def _divided(buffer: ir.Var, indices: Sequence[ir.Expr]) -> dict[ir.Var, int]:
    """List the variables that an access divides by the extent of the last dimension."""
    if not len(indices):
        return {}
    last = buffer.ty.shape[-1]
    if not isinstance(last, tirx.IntImm) or not has_division(indices[-1]):
        return {}
    found: list[ir.Expr] = []
    structural_walk(indices[-1], (tirx.FloorMod, found.append))
    whole = [f for f in found if isinstance(f.b, tirx.IntImm) and int(f.b) == int(last)]
    return {v: int(last) for f in whole for v in variables(f.a)}


def _last(stage: Stage, rows: int, indices: Sequence[ir.Expr]) -> dict[ir.Var, int]:
    """Name the axis along the last dimension where other axes of its kind follow it."""
    for axes in (stage.axes[:rows], stage.axes[rows:], stage.reduce):
        wide = [a.var for a in axes if a.size != 1]
        if len(indices) and any(v.same_as(indices[-1]) for v in wide[:-1]):
            return {indices[-1]: _BLOCK}
    return {}


def _share_rows(program: Program, lanes: _Lanes) -> None:
    """Split a row axis in all stages or in none."""
    for position in range(program.row_rank):
        at = [s.axes[position].var for s in program.stages]
        some = [own[v] for v, own in zip(at, lanes, strict=True) if v in own]
        for var, own in zip(at, lanes, strict=True):
            if some:
                own[var] = math.gcd(*some)


def _follow(program: Program, lanes: _Lanes) -> None:
    """Split what reads internal buffers along axes that are split."""
    written = {t: k for k, s in enumerate(program.stages) for t in s.targets}
    for stage, own in zip(program.stages, lanes, strict=True):
        mine = {a.var for a in (*stage.axes[program.row_rank :], *stage.reduce)}
        for found in stage.loads:
            k = written.get(found.source)
            if k is None:
                continue
            producer = program.stages[k]
            write = producer.indices[producer.targets.index(found.source)]
            for there, here in zip(write, found.indices, strict=True):
                if isinstance(there, ir.Var) and there in lanes[k] and here in mine:
                    own.setdefault(here, lanes[k][there])


def _splits_results(program: Program, lanes: _Lanes) -> bool:
    """Whether an axis of rows or of results in them is split."""
    stages = zip(program.stages, lanes, strict=True)
    return any(axis.var in own for stage, own in stages for axis in stage.axes)


def _split_rows(program: Program, lanes: _Lanes) -> int:
    """Count the row axes that are split."""
    return sum(a.var in lanes[0] for a in program.stages[0].axes[: program.row_rank])


def _split_reduced(stage: Stage, own: dict[ir.Var, int]) -> Stage:
    if not any(a.var in own for a in stage.reduce):
        return stage
    outer: list[Axis] = []
    inner: list[Axis] = []
    places: dict[ir.Var, ir.Expr] = {}
    for axis in stage.reduce:
        size = own.get(axis.var)
        if size is None:
            outer.append(axis)
            continue
        name = axis.var.name
        block = Axis(ir.Var(f"{name}_block", axis.var.ty), _extent(axis, own))
        lane = Axis(ir.Var(f"{name}_lane", axis.var.ty), index(size))
        outer.append(block)
        inner.append(lane)
        places[axis.var] = block.var * index(size) + lane.var
    reduce = (*outer, *inner)
    domain = Domain((*stage.axes, *reduce))
    values = tuple(domain.simplify(substitute(v, places)) for v in stage.values)
    return replace(stage, reduce=reduce, values=values)


def _outer(axis: Axis, own: dict[ir.Var, int]) -> ir.Expr:
    return tirx.floordiv(axis.var, index(own[axis.var])) if axis.var in own else axis.var


def _lane(axis: Axis, own: dict[ir.Var, int]) -> ir.Expr:
    return tirx.floormod(axis.var, index(own[axis.var]))


def _extent(axis: Axis, own: dict[ir.Var, int]) -> ir.Expr:
    if axis.var not in own:
        return axis.extent
    return index(int(axis.extent) // own[axis.var])


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
