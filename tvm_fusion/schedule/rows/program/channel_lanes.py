"""Axes in the order of memory where channels are the last axis, or that of blocks.

A reduction such as pooling is over (n, c, h, w), though ``x[n, c // 16, h, w, c % 16]`` are its
images. Here c becomes two axes, and that of the lanes the last one, so that kernels read and write
whole vectors:

    rows       n, c, h, w        ->  n, block, h, w, lane
    inner      c                 ->  block, lane
    reduced    c, i, j           ->  block, i, j, lane

Where the channels are no multiple of a block, lanes are as many as divide both. Channels that are
the last axis as a whole, ``x[n, h, w, c]``, are taken in blocks as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.structural import structural_walk
from ....core.tir.expressions import has_division, substitute, variables
from ....core.tir.loops import index
from ....program.domain import Domain
from ....program.program import Program
from ....program.stage import Axis, Stage
from ....program.stages.reindex import Reindexed, reindex
from ....program.stages.relayout import relaid

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
