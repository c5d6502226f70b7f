"""Block all-reduce of a pass's reductions, with one barrier.

warp:   each warp reduces its threads' partial results (shuffles)
shared: lane 0 of each warp stores them; __syncthreads
all:    every thread reduces the results of all warps: serially up to MAX_SERIAL_WARPS of them,
        otherwise each warp again by shuffles
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, s_tir, tirx

from ...core.loops import index, sequence
from .config_gpu import MAX_SERIAL_WARPS
from .emit import assign, store_all
from .row_program import RowStage
from .thread_block import ThreadBlock


def block_all_reduce(block: ThreadBlock, stages: Sequence[RowStage]) -> list[tirx.Stmt]:
    """Reduce the threads' partial results of some stages, for all threads.

    TVM lowers the blocks here to warp shuffles, or to a tree in shared memory where there are none.
    The results of warps go through shared memory for all stages at once; then every thread reduces
    all of them, so that no second barrier publishes the result.
    """
    config = block.config
    each_thread = config.each_thread
    if config.threads == 1:
        return [each_thread(_store_result(block, stage)) for stage in stages]
    if config.warps == 1:
        return [_warp_reduce(block, stage, block.results(stage)) for stage in stages]
    found = [_buffers(block, stage, "warp", "local") for stage in stages]
    shared = [_buffers(block, stage, "warps", "shared") for stage in stages]
    stmts = [_warp_reduce(block, s, own) for s, own in zip(stages, found, strict=True)]
    stmts += [_share(block, *pair) for pair in zip(found, shared, strict=True)]
    take = _reduce_serially if config.warps <= MAX_SERIAL_WARPS else _reduce_by_warps
    return stmts + [s for pair in zip(stages, shared, strict=True) for s in take(block, *pair)]


def _store_result(block: ThreadBlock, stage: RowStage):
    results, terms = block.results(stage), block.terms(stage)
    return lambda r, t: store_all(results, [r], [tirx.BufferLoad(b, [r, t]) for b in terms])


def _buffers(block: ThreadBlock, stage: RowStage, name: str, scope: str) -> list[ir.Var]:
    """Declare one element for each warp and result."""
    return [
        block.scratch([block.config.warps], str(t.dtype), f"{t.name}_{name}", scope)
        for t in stage.targets
    ]


def _share(block: ThreadBlock, found: Sequence[ir.Var], shared: Sequence[ir.Var]) -> tirx.Stmt:
    """Store the results of each warp in shared memory."""

    def body(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        values = [tirx.BufferLoad(own, [r, w]) for own in found]
        return tirx.IfThenElse(lane == index(0), store_all(shared, [r, w], values), None)

    return block.config.each_lane(body)


def _reduce_serially(
    block: ThreadBlock, stage: RowStage, shared: Sequence[ir.Var]
) -> list[tirx.Stmt]:
    """Reduce the results of all warps in each thread."""
    results = block.results(stage)

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        stmts = [store_all(results, [r], [tirx.BufferLoad(b, [r, index(0)]) for b in shared])]
        for number in range(1, block.config.warps):
            values = [tirx.BufferLoad(b, [r, index(number)]) for b in shared]
            stmts.append(assign(results, [r], _combined(stage, results, r, values)))
        return sequence(stmts)

    return [block.config.each_thread(body)]


def _combined(
    stage: RowStage, results: Sequence[ir.Var], r: ir.Expr, values: Sequence[ir.Expr]
) -> list[ir.Expr]:
    if stage.combine is None:
        raise ValueError(f"{stage.name} is no reduction")
    return stage.combine([tirx.BufferLoad(b, [r]) for b in results], values)


def _reduce_by_warps(
    block: ThreadBlock, stage: RowStage, shared: Sequence[ir.Var]
) -> list[tirx.Stmt]:
    """Reduce the results of all warps in each warp, one for each lane."""
    config = block.config
    terms = block.terms(stage)
    warps = index(config.warps)

    def body(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        there = [tirx.BufferLoad(b, [r, tirx.min(lane, warps - 1)]) for b in shared]
        values = [
            tirx.Select(lane < warps, value, start)
            for value, start in zip(there, stage.init, strict=True)
        ]
        return store_all(terms, [r, w * config.lanes + lane], values)

    again = _buffers(block, stage, "all", "local")
    results = block.results(stage)

    def known(r: ir.Expr, w: ir.Expr, _lane: ir.Expr) -> tirx.Stmt:
        return store_all(results, [r], [tirx.BufferLoad(b, [r, w]) for b in again])

    return [
        config.each_lane(body),
        _warp_reduce(block, stage, again),
        config.each_lane(known),
    ]


def _warp_reduce(block: ThreadBlock, stage: RowStage, results: Sequence[ir.Var]) -> tirx.Stmt:
    """Reduce the partial results of the threads of each warp, as a block that TVM lowers."""
    config = block.config
    terms = block.terms(stage)
    row, warp, lane = (tirx.Var(name, "int64") for name in ("vr", "vw", "vt"))
    if stage.combine is None:
        raise ValueError(f"{stage.name} is no reduction")
    several = config.warps > 1
    where = [row, warp] if several else [row]
    thread = warp * config.lanes + lane if several else lane
    update = stage.combine(
        [tirx.BufferLoad(b, where) for b in results],
        [tirx.BufferLoad(b, [row, thread]) for b in terms],
    )
    iterators = [tirx.IterVar(_range(config.rows), row, tirx.IterVar.DataPar)]
    if several:
        iterators.append(tirx.IterVar(_range(config.warps), warp, tirx.IterVar.DataPar))
    iterators.append(tirx.IterVar(_range(config.lanes), lane, tirx.IterVar.CommReduce))
    reduction = s_tir.SBlock(
        iterators,
        [_point(b, row, thread) for b in terms],
        [_point(b, *where) for b in results],
        stage.name,
        assign(results, where, update),
        init=store_all(results, where, [_finite(value) for value in stage.init]),
    )

    def body(r: ir.Expr, w: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [r, w, t] if several else [r, t]
        return s_tir.SBlockRealize(values, tirx.IntImm("bool", 1), reduction)

    return config.each_lane(body)


def _finite(start: ir.Expr) -> ir.Expr:
    """Replace an infinite neutral element by the finite one by which TVM recognizes extrema.

    It is never used: all lanes have a term.
    """
    if not isinstance(start, tirx.FloatImm) or not math.isinf(start.value):
        return start
    limit = tirx.max_value if start.value > 0 else tirx.min_value
    return limit(str(start.ty.dtype))


def _point(buffer: ir.Var, *indices: ir.Expr) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, 1) for i in indices])


def _range(extent: int) -> ir.Range:
    return ir.Range(index(0), index(extent))
