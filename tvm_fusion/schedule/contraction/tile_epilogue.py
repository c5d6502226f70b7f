"""Epilogue of a tiled GEMM: accumulators -> shared memory -> results in coalesced vectors.

    for some slabs of 16 rows and some columns of each warp, as many as fit shared memory:
      barrier;  staged[slice, row, column] = acc          8-byte stores         shared
      barrier, of the cluster for split-K
      thread per vector of columns (or of rows, where outputs are contiguous along M):
        total = staged[0] + staged[1] + ..                ranks and slices in their order
        load what the results read, in vectors            global
        compute element by element, store in vectors      global

An accumulator fragment is 16 rows times 8 columns of a warp: lane t has columns ``t % 4 * 2`` and
the next, of rows ``t // 4`` and ``t // 4 + 8``. So have those of ``mma.sync`` and of ``wgmma``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import (
    block,
    constant,
    coordinates,
    index,
    local,
    product,
    sequence,
    unrolled,
    when,
)
from ..gpu.launch import VECTOR_BYTES
from ..gpu.mma import ACCUMULATORS, GROUPS, THREADS_IN_GROUP, WARP
from ..gpu.shared_tiles import cluster_barrier, load_cluster, load_shared, store_shared
from .fuse_epilogue import store_results
from .tile_gemm_config import TileGemmConfig, TilePlace, axis_values
from .tile_results import VectorResults, result_vectors
from .tile_shape import M16, STAGE_PAD


class Mainloop(Protocol):
    """What makes accumulators: see :class:`.tile_mma_mainloop.TileMmaMainloop`."""

    acc: ir.Var
    slabs: int
    n8: int
    warps_m: int
    warps_n: int
    warps_k: int
    threads: int
    buffers: list[ir.Var]

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the loop over K."""

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell a thread's slice of K, and its warp's row and column among the warps."""

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Give the first row, in the block's tile, of a slab of the warps in a row."""

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads that have accumulators."""


class TileEpilogue:
    """Stores the results of a block's tile.

    Parameters
    ----------
    cut : TileGemmConfig
        The product.
    place : TilePlace
        The block's tile.
    mainloop : Mainloop
        Has the accumulators.
    shared : Var
        Shared memory, float32 words, free once all threads have passed a barrier.
    """

    def __init__(
        self, cut: TileGemmConfig, place: TilePlace, mainloop: Mainloop, shared: ir.Var
    ) -> None:
        self._cut, self._place, self._mainloop, self._shared = cut, place, mainloop, shared
        self._slabs, self._columns = cut.staged
        self._width = mainloop.warps_n * self._columns
        self._rows = mainloop.warps_m * M16 * self._slabs
        self._stride = self._width + STAGE_PAD
        self._vectors = result_vectors(cut)

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write all passes."""
        is_cluster = self._cut.split_k > 1
        own = self._mainloop.barrier
        stmts = []
        for number, (slab, first) in enumerate(self._passes()):
            before = cluster_barrier if is_cluster and number else own
            stmts += [before(), self._stage(thread, slab, first)]
            stmts.append(cluster_barrier() if is_cluster else own())
            stmts.append(self._results(thread, slab, first))
        if is_cluster:  # others may read this block's shared memory until they say so
            stmts.append(cluster_barrier())
        return sequence(stmts)

    def _passes(self) -> Iterator[tuple[int, int]]:
        """Yield the first slab, and the first column of a warp."""
        for slab in range(0, self._mainloop.slabs, self._slabs):
            for first in range(0, self._mainloop.n8 * GROUPS, self._columns):
                yield slab, first

    def _stage(self, thread: ir.Expr, slab: int, first: int) -> tirx.Stmt:
        """Write accumulators to shared memory, ``[slice, slab, warp, row, column]``."""
        loop_ = self._mainloop
        lane = tirx.floormod(thread, index(WARP))
        group = tirx.floordiv(lane, index(THREADS_IN_GROUP))
        column = tirx.floormod(lane, index(THREADS_IN_GROUP)) * 2
        k_slice, warp_m, warp_n = loop_.warp_of(thread)
        start = k_slice * self._rows * self._stride
        start = start + (warp_m * M16 + group) * self._stride + warp_n * self._columns + column

        def one(number: ir.Expr) -> tirx.Stmt:
            i, j = coordinates(number, [self._slabs, self._columns // GROUPS])
            fragment = ((slab + i) * loop_.n8 + first // GROUPS + j) * ACCUMULATORS
            stmts = []
            for half in range(2):
                row = i * loop_.warps_m * M16 + half * GROUPS
                to = load(self._shared, [start + row * self._stride + j * GROUPS])
                stmts.append(store_shared(to, load(loop_.acc, [fragment + 2 * half]), 8))
            return sequence(stmts)

        return unrolled("fragment", self._slabs * self._columns // GROUPS, one)

    def _results(self, thread: ir.Expr, slab: int, first: int) -> tirx.Stmt:
        """Store the results of staged sums; the ranks of split-K share them."""
        width, is_along_m = self._vectors.width, self._vectors.is_along_m
        count = self._rows * self._width // width
        ranks = self._cut.split_k
        step_size = ranks * self._mainloop.threads

        def one(step: ir.Expr) -> tirx.Stmt:
            flat = step * step_size + self._place.rank * self._mainloop.threads + thread
            if is_along_m:
                row, column = coordinates(flat, [index(1), self._width])
                row = row * width
            else:
                row, column = coordinates(flat, [index(1), self._width // width])
                column = column * width
            made = self._vector(row, column, slab, first)
            return made if count % step_size == 0 else when(flat < count, made)

        # Unrolled, so that all loads are issued before the first result is computed.
        return unrolled("vector", -(-count // step_size), one)

    def _vector(self, row: ir.Expr, column: ir.Expr, slab: int, first: int) -> tirx.Stmt:
        """Store the results of one vector of staged sums."""
        cut, width = self._cut, self._vectors.width
        own_slab, warp_m, in_slab = coordinates(row, [index(1), self._mainloop.warps_m, M16])
        m = self._place.m_tile * cut.block_m + in_slab
        m = m + self._mainloop.slab_row(slab + own_slab, warp_m)
        warp_n = tirx.floordiv(column, index(self._columns))
        n = self._place.n_tile * cut.block_n + warp_n * cut.warp_n + first
        n = n + tirx.floormod(column, index(self._columns))
        total = local("total", [width], "float32")
        buffers, stmts = [total], self._totals(total, row, column)
        where = {
            **cut.axes_at(self._place.batch),
            **axis_values(cut.m_axes, m),
            **axis_values(cut.n_axes, n),
        }
        if width == 1:
            place = [where[a.var] for a in cut.contraction.stage.axes]
            stmts.append(store_results(cut.contraction, place, load(total, [index(0)])))
        else:
            results = VectorResults(cut, self._vectors)
            stmts.append(results.load(index(0), where))
            stmts.append(results.compute(index(0), where, lambda lane: load(total, [index(lane)])))
            stmts.append(results.store(where))
            buffers += results.buffers
        inside = [
            position < extent
            for position, extent, size in (
                (m, product([a.extent for a in cut.m_axes]), cut.block_m),
                (n, index(cut.n), cut.block_n),
            )
            if constant(extent) is None or int(extent) % size
        ]
        body = block("epilogue", sequence(stmts), buffers)
        return when(tirx.all(*inside), body) if inside else body

    def _totals(self, total: ir.Var, row: ir.Expr, column: ir.Expr) -> list[tirx.Stmt]:
        """Load staged sums, those of further slices added in their order."""
        width, is_along_m = self._vectors.width, self._vectors.is_along_m
        size = 1 if is_along_m else min(width, VECTOR_BYTES // 4)
        stmts: list[tirx.Stmt] = []
        part = local("part", [width], "float32")
        slices, ranks = self._mainloop.warps_k, self._cut.split_k
        for number, (rank, k_slice) in enumerate(itertools.product(range(ranks), range(slices))):
            to = part if number else total
            for lane in range(0, width, size):
                place = (k_slice * self._rows + row) * self._stride + column
                place = place + (lane * self._stride if is_along_m else lane)
                source, own = load(self._shared, [place]), load(to, [index(lane)])
                if ranks > 1:
                    stmts.append(load_cluster(own, source, 4 * size, tirx.const(rank, "int32")))
                else:
                    stmts.append(load_shared(own, source, 4 * size))
            for lane in range(width if number else 0):
                both = load(total, [index(lane)]) + load(part, [index(lane)])
                stmts.append(tirx.BufferStore(total, both, [lane]))
        return stmts if slices * ranks == 1 else [block("partials", sequence(stmts), [part])]
