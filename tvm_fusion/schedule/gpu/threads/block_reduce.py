"""Block all-reduce: partial results of threads, reduced for all threads of a row, one barrier.

warp:   each warp reduces its threads' partial results (shuffles)
shared: lane 0 of each warp stores them; __syncthreads
all:    every thread reduces the results of all warps: serially up to MAX_SERIAL_WARPS of them,
        otherwise each warp again by shuffles
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, tirx

from ....core.tir.loops import index, sequence, store_all, update_all
from .warp import each_thread


@dataclass(frozen=True)
class RowThreads:
    """Threads of a block: ``threads`` for each of its ``rows``."""

    # Threads are a power of two up to a warp, whole warps from there on.
    threads: int
    rows: int
    # Whether neighbouring threads have neighbouring rows, rather than elements of a row.
    rows_first: bool = False
    warp_size: int = 32  # threads that exchange values without shared memory

    @property
    def warps(self) -> int:
        """Warps of a row; 1 also where a row has a part of one."""
        return 1 if self.rows_first else max(1, self.threads // self.warp_size)

    @property
    def lanes(self) -> int:
        """Threads of a row in one warp."""
        return self.threads // self.warps

    def each_thread(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, thread)`` in every thread of every row."""
        return self.each_lane(lambda r, w, lane: body(r, w * self.lanes + lane))

    def each_lane(self, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, warp of the row, thread of the warp)`` in every thread of every row."""
        row, warp, lane = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
        if self.warps == 1:
            row = "threadIdx.y"
        if self.rows_first:
            row, lane = "threadIdx.x", "threadIdx.y"
        extents = [(row, self.rows), (warp, self.warps), (lane, self.lanes)]
        return each_thread(extents, body, binds_single=False)


# Warps whose results each thread reduces serially; of more, each warp reduces them like the terms
# of its own threads, which takes twice as long. Rows have more to fill a device.
MAX_SERIAL_WARPS = 8

Declare = Callable[[Sequence[int], str, str, str], ir.Var]


@dataclass(frozen=True)
class Reduction:
    """A reduction across the threads of a row, of one value or of several together."""

    name: str  # for a reader
    # From results and terms to the new results.
    combine: Callable[[Sequence[ir.Expr], Sequence[ir.Expr]], list[ir.Expr]]
    init: Sequence[ir.Expr]  # neutral elements
    terms: Sequence[ir.Var]  # partial results, ``[rows, threads]`` in registers; overwritten
    results: Sequence[ir.Var]  # get the results, ``[rows]`` in the registers of every thread


def block_all_reduce(
    threads: RowThreads, reductions: Sequence[Reduction], declare: Declare
) -> list[tirx.Stmt]:
    """Reduce partial results over the threads of each row.

    TVM lowers the blocks here to warp shuffles, or to a tree in shared memory where there are none.
    The results of warps go through shared memory for all reductions at once; then every thread
    reduces all of them, so that no second barrier publishes the result.

    Parameters
    ----------
    declare
        Declares a buffer of the block for each row: ``declare(shape, dtype, name, scope)``.
    """
    if threads.threads == 1:
        return [threads.each_thread(_copy(one)) for one in reductions]
    if threads.warps == 1:
        return [_warp_reduce(threads, one, one.results) for one in reductions]

    def per_warp(one: Reduction, name: str, scope: str) -> list[ir.Var]:
        return [
            declare([threads.warps], str(b.dtype), f"{b.name}_{name}", scope) for b in one.results
        ]

    found = [per_warp(one, "warp", "local") for one in reductions]
    shared = [per_warp(one, "warps", "shared") for one in reductions]
    stmts = [_warp_reduce(threads, *pair) for pair in zip(reductions, found, strict=True)]
    stmts += [_share(threads, *pair) for pair in zip(found, shared, strict=True)]
    for one, buffers in zip(reductions, shared, strict=True):
        if threads.warps <= MAX_SERIAL_WARPS:
            stmts.append(_reduce_serially(threads, one, buffers))
        else:
            stmts += _reduce_by_warps(threads, one, buffers, per_warp(one, "all", "local"))
    return stmts


def _loads(buffers: Sequence[ir.Var], indices: Sequence[ir.Expr]) -> list[ir.Expr]:
    return [tirx.BufferLoad(b, list(indices)) for b in buffers]


def _copy(one: Reduction) -> Callable[[ir.Expr, ir.Expr], tirx.Stmt]:
    return lambda r, t: store_all(one.results, [r], _loads(one.terms, [r, t]))


def _share(threads: RowThreads, found: Sequence[ir.Var], shared: Sequence[ir.Var]) -> tirx.Stmt:
    """Store the results of each warp in shared memory."""

    def body(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        stored = store_all(shared, [r, w], _loads(found, [r, w]))
        return tirx.IfThenElse(lane == index(0), stored, None)

    return threads.each_lane(body)


def _reduce_serially(threads: RowThreads, one: Reduction, shared: Sequence[ir.Var]) -> tirx.Stmt:
    """Reduce the results of all warps in each thread."""

    def body(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        stmts = [store_all(one.results, [r], _loads(shared, [r, index(0)]))]
        for number in range(1, threads.warps):
            values = _loads(shared, [r, index(number)])
            stmts.append(
                update_all(one.results, [r], one.combine(_loads(one.results, [r]), values))
            )
        return sequence(stmts)

    return threads.each_thread(body)


def _reduce_by_warps(
    threads: RowThreads, one: Reduction, shared: Sequence[ir.Var], found: Sequence[ir.Var]
) -> list[tirx.Stmt]:
    """Reduce the results of all warps in each warp, one for each lane."""
    warps = index(threads.warps)

    def load(r: ir.Expr, w: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        values = [
            tirx.Select(lane < warps, value, start)
            for value, start in zip(
                _loads(shared, [r, tirx.min(lane, warps - 1)]), one.init, strict=True
            )
        ]
        return store_all(one.terms, [r, w * threads.lanes + lane], values)

    def copy(r: ir.Expr, w: ir.Expr, _lane: ir.Expr) -> tirx.Stmt:
        return store_all(one.results, [r], _loads(found, [r, w]))

    reduced = _warp_reduce(threads, one, found)
    return [threads.each_lane(load), reduced, threads.each_lane(copy)]


def _warp_reduce(threads: RowThreads, one: Reduction, results: Sequence[ir.Var]) -> tirx.Stmt:
    """Reduce the partial results of the threads of each warp, as a block that TVM lowers."""
    row, warp, lane = (tirx.Var(name, "int64") for name in ("vr", "vw", "vt"))
    several = threads.warps > 1
    where = [row, warp] if several else [row]
    thread = warp * threads.lanes + lane if several else lane
    update = one.combine(_loads(results, where), _loads(one.terms, [row, thread]))
    iterators = [tirx.IterVar(_range(threads.rows), row, tirx.IterVar.DataPar)]
    if several:
        iterators.append(tirx.IterVar(_range(threads.warps), warp, tirx.IterVar.DataPar))
    iterators.append(tirx.IterVar(_range(threads.lanes), lane, tirx.IterVar.CommReduce))
    reduction = s_tir.SBlock(
        iterators,
        [_point(b, row, thread) for b in one.terms],
        [_point(b, *where) for b in results],
        one.name,
        update_all(results, where, update),
        init=store_all(results, where, [_finite(value) for value in one.init]),
    )

    def body(r: ir.Expr, w: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        values = [r, w, t] if several else [r, t]
        return s_tir.SBlockRealize(values, tirx.IntImm("bool", 1), reduction)

    return threads.each_lane(body)


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
