"""What the threads of a row found becomes known to all of them, with one barrier a walk."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, s_tir, tirx

from .block import Block
from .emit import assign, element, integer, sequence, store_all
from .geometry import IN_TURN
from .stages import Stage


def combine(block: Block, stages: Sequence[Stage]) -> list[tirx.Stmt]:
    """Combine the threads' terms of some reductions.

    Threads of a warp exchange registers (TVM lowers the blocks here to shuffles, or to a tree in
    shared memory where there are none). What the warps of a row found goes through shared memory,
    for all reductions at once; then every thread takes in all of it, so that there is one barrier,
    not one more for the result.
    """
    geometry = block.geometry
    every = geometry.every
    if geometry.threads == 1:
        return [every(_known(block, stage)) for stage in stages]
    if geometry.warps == 1:
        return [_over_lanes(block, stage, block.results(stage)) for stage in stages]
    found = [_buffers(block, stage, "warp", "local") for stage in stages]
    shared = [_buffers(block, stage, "warps", "shared") for stage in stages]
    stmts = [_over_lanes(block, s, own) for s, own in zip(stages, found, strict=True)]
    stmts += [_publish(block, *pair) for pair in zip(found, shared, strict=True)]
    take = _in_turn if geometry.warps <= IN_TURN else _by_lanes
    return stmts + [s for pair in zip(stages, shared, strict=True) for s in take(block, *pair)]


def _known(block: Block, stage: Stage):
    results, terms = block.results(stage), block.terms(stage)
    return lambda r, t: store_all(results, [r], [element(b, [r, t]) for b in terms])


def _buffers(block: Block, stage: Stage, name: str, scope: str) -> list[ir.Var]:
    """Declare one element a warp for each result."""
    return [
        block.scratch([block.geometry.warps], str(t.dtype), f"{t.name}_{name}", scope)
        for t in stage.targets
    ]


def _publish(block: Block, found: Sequence[ir.Var], shared: Sequence[ir.Var]) -> tirx.Stmt:
    """Let one thread of each warp write what the warp found."""

    def body(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        values = [element(own, [r, w]) for own in found]
        return tirx.IfThenElse(lane == integer(0), store_all(shared, [r, w], values), None)

    return block.geometry.every_lane(body)


def _in_turn(block: Block, stage: Stage, shared: Sequence[ir.Var]) -> list[tirx.Stmt]:
    """Let each thread combine what all warps found."""
    results = block.results(stage)

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        stmts = [store_all(results, [r], [element(b, [r, integer(0)]) for b in shared])]
        for number in range(1, block.geometry.warps):
            values = [element(b, [r, integer(number)]) for b in shared]
            stmts.append(assign(results, [r], _combined(stage, results, r, values)))
        return sequence(stmts)

    return [block.geometry.every(body)]


def _combined(
    stage: Stage, results: Sequence[ir.Var], r: ir.Expr, values: Sequence[ir.Expr]
) -> list[ir.Expr]:
    if stage.combine is None:
        raise ValueError(f"{stage.name} is no reduction")
    return stage.combine([element(b, [r]) for b in results], values)


def _by_lanes(block: Block, stage: Stage, shared: Sequence[ir.Var]) -> list[tirx.Stmt]:
    """Let the threads of each warp take in a warp's result each, and combine those."""
    geometry = block.geometry
    terms = block.terms(stage)
    warps = integer(geometry.warps)

    def body(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        there = [element(b, [r, tirx.min(lane, warps - 1)]) for b in shared]
        values = [
            tirx.Select(lane < warps, value, start)
            for value, start in zip(there, stage.init, strict=True)
        ]
        return store_all(terms, [r, w * geometry.lanes + lane], values)

    again = _buffers(block, stage, "all", "local")
    results = block.results(stage)

    def known(r: ir.Expr, w: ir.Expr, _lane: ir.Expr) -> tirx.Stmt:
        return store_all(results, [r], [element(b, [r, w]) for b in again])

    return [
        geometry.every_lane(body),
        _over_lanes(block, stage, again),
        geometry.every_lane(known),
    ]


def _over_lanes(block: Block, stage: Stage, results: Sequence[ir.Var]) -> tirx.Stmt:
    """Combine the terms of the threads of each warp, as a block that TVM lowers."""
    geometry = block.geometry
    terms = block.terms(stage)
    row, warp, lane = (tirx.Var(name, "int64") for name in ("vr", "vw", "vt"))
    if stage.combine is None:
        raise ValueError(f"{stage.name} is no reduction")
    several = geometry.warps > 1
    where = [row, warp] if several else [row]
    thread = warp * geometry.lanes + lane if several else lane
    update = stage.combine(
        [element(b, where) for b in results], [element(b, [row, thread]) for b in terms]
    )
    iterators = [tirx.IterVar(_range(geometry.rows), row, tirx.IterVar.DataPar)]
    if several:
        iterators.append(tirx.IterVar(_range(geometry.warps), warp, tirx.IterVar.DataPar))
    iterators.append(tirx.IterVar(_range(geometry.lanes), lane, tirx.IterVar.CommReduce))
    reduction = s_tir.SBlock(
        iterators,
        [_point(b, row, thread) for b in terms],
        [_point(b, *where) for b in results],
        stage.name,
        assign(results, where, update),
        init=store_all(results, where, [_known_to_tvm(value) for value in stage.init]),
    )

    def body(r: ir.Expr, w: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [r, w, t] if several else [r, t]
        return s_tir.SBlockRealize(values, tirx.IntImm("bool", 1), reduction)

    return geometry.every_lane(body)


def _known_to_tvm(start: ir.Expr) -> ir.Expr:
    """Put the finite number by which TVM knows an extremum for the infinity that it starts from.

    Nothing starts from it: all lanes have a term.
    """
    if not isinstance(start, tirx.FloatImm) or not math.isinf(start.value):
        return start
    limit = tirx.max_value if start.value > 0 else tirx.min_value
    return limit(str(start.ty.dtype))


def _point(buffer: ir.Var, *indices: ir.Expr) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, 1) for i in indices])


def _range(extent: int) -> ir.Range:
    return ir.Range(integer(0), integer(extent))
