"""Epilogue of a tiled GEMM: accumulators -> shared memory -> results in coalesced vectors.

    for some slabs of 16 rows and some columns of each warp, as many as fit shared memory:
      barrier;  staged[slice, row, column] = acc          8-byte stores         shared
      barrier, of the cluster for split-K
      thread per vector of columns (or of rows, where outputs are contiguous along M):
        total = staged[0] + staged[1] + ..                ranks and slices in their order
        of pooled rows: of each row of a window, reduced      (pool_registers)
        load what the results read, in vectors            global
        compute element by element, store in vectors      global

An accumulator fragment is C of one ``mma.sync``, 16 rows times 8 columns of a warp; accumulators of
``wgmma`` are such fragments, too.
Of a column split, a thread adds up the sums of each part at its positions.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tvm import DataType, ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import block, coordinates, index, local, sequence, unrolled, when
from ....gpu.launch import VECTOR_BYTES
from ....gpu.memory.shared_tiles import cluster_barrier, load_cluster
from ....gpu.threads.warp import lane_of
from ...problem.epilogue.fuse import store_results
from ...problem.epilogue.pooled_rows import PooledRows
from ..config import TileGemmConfig
from ..grid import TilePlace
from ..shape import M16
from .group_sums import GroupRegisters
from .pool_registers import PoolRegisters
from .results import VectorResults
from .row_values import RowRegisters
from .vectors import result_vectors

SUM_BYTES = 4
# Elements, and vectors at most, of a thread whose loads are issued together.
BATCH_ELEMENTS, MOST_VECTORS = 32, 16


class Mainloop(Protocol):
    """What has accumulators: see :class:`...mma.mainloop.TileMmaMainloop`."""

    acc: ir.Var
    slabs: int
    n8: int
    warps_m: int
    warps_n: int
    warps_k: int
    threads: int

    def has_sums(self, thread: ir.Expr) -> ir.Expr:
        """Whether a thread has accumulators."""

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell a thread's slice of K, and its warp's row and column among the warps."""

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Return the first row, in the block's tile, of a slab of the warps in a row."""

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads that have accumulators."""


class VectorPlace(NamedTuple):
    """A vector of staged sums: its first row and column, the axes there, and whether it exists."""

    row: ir.Expr
    column: ir.Expr
    where: dict[ir.Var, ir.Expr]
    inside: ir.Expr


class TileEpilogue:
    """Stores the results of a block's tile.

    Parameters
    ----------
    shared
        Shared memory, words or bytes, free once all threads have passed a barrier.
    """

    def __init__(
        self, config: TileGemmConfig, place: TilePlace, mainloop: Mainloop, shared: ir.Var
    ) -> None:
        self._config, self._place, self._mainloop, self._shared = config, place, mainloop, shared
        self._slabs, self._columns = config.tile.staged
        self._width = mainloop.warps_n * self._columns
        self._rows = mainloop.warps_m * M16 * self._slabs
        self._stride = self._width + config.problem.stage_pad
        self._positions = self._width // config.problem.parts
        self._vectors = result_vectors(config.problem)
        width = self._vectors.width
        self._batch = min(MOST_VECTORS, BATCH_ELEMENTS // width)
        is_batched = width > 1 or self._vectors.is_plain
        self._made = VectorResults(config, self._vectors, self._batch) if is_batched else None
        self._total = local(
            "total", [width * config.problem.parts], config.problem.contraction.dtype
        )
        self._partial = local("partial", [width], config.problem.contraction.dtype)
        has_slices = mainloop.warps_k * config.tile.split_k > 1
        self._buffers = [self._total, *([self._partial] if has_slices else [])]
        self._buffers += self._made.buffers if self._made is not None else []
        self._row_values = self._group = self._pool = None
        if isinstance(pool := config.problem.contraction.pool, PooledRows):
            self._pool = PoolRegisters(config, pool, width)
            self._buffers += self._pool.buffers
        if config.problem.contraction.row_values is not None:
            self._row_values = RowRegisters(config, self._batch)
            self._buffers += self._row_values.buffers
        if (sums := config.problem.contraction.group_sums) is not None:
            self._group = GroupRegisters(config, sums.width // width)
            self._buffers += self._group.buffers

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write all passes."""
        is_cluster = self._config.tile.split_k > 1
        own = self._mainloop.barrier
        stmts = []
        for number, (slab, first) in enumerate(self._passes()):
            before = cluster_barrier if is_cluster and number else own
            after = cluster_barrier if is_cluster else own
            results = self._results(thread, slab, first)
            staged = self._stage(thread, slab, first)
            stmts += [before(), when(self._mainloop.has_sums(thread), staged)]
            # What results read is on its way while the block waits.
            stmts += [results[0], after(), *results[1:]]
        if is_cluster:  # others may read this block's shared memory until they say so
            stmts.append(cluster_barrier())
        return block("epilogue", sequence(stmts), self._buffers)

    def _passes(self) -> Iterator[tuple[int, int]]:
        """Yield the first slab, and the first column of a warp."""
        for slab in range(0, self._mainloop.slabs, self._slabs):
            for first in range(0, self._mainloop.n8 * self._config.problem.mma.n, self._columns):
                yield slab, first

    def _stage(self, thread: ir.Expr, slab: int, first: int) -> tirx.Stmt:
        """Write accumulators to shared memory, ``[slice, slab, warp, row, column]``."""
        loop_, n, c = self._mainloop, self._config.problem.mma.n, self._config.problem.sums
        row, column = c.of_lane(lane_of(thread, c.lane_count))
        k_slice, warp_m, warp_n = loop_.warp_of(thread)
        start = k_slice * self._rows * self._stride
        start = start + (warp_m * M16 + row) * self._stride + warp_n * self._columns + column

        def one(number: ir.Expr) -> tirx.Stmt:
            i, j = coordinates(number, [self._slabs, self._columns // n])
            fragment = ((slab + i) * loop_.n8 + first // n + j) * c.per_lane
            stmts = []
            for register in range(0, c.per_lane, c.run):
                down, right = c.of_register(register)
                below = i * loop_.warps_m * M16 + down
                to = self._word(start + below * self._stride + (j * n + right))
                sums = load(loop_.acc, [fragment + register])
                stmts.append(self._config.problem.moves.store(to, sums, c.run * SUM_BYTES))
            return sequence(stmts)

        return unrolled("fragment", self._slabs * self._columns // n, one)

    def _word(self, place: ir.Expr) -> ir.TensorLoad:
        """Return a staged sum, of shared memory in words or bytes."""
        item = DataType(str(self._shared.ty.dtype)).itemsize
        return load(self._shared, [place * (4 // item)])

    def _results(self, thread: ir.Expr, slab: int, first: int) -> list[tirx.Stmt]:
        """Load what the results of staged sums read, and store them, in turns of some vectors.

        Loads of a turn are issued before its first store, which might be to the same memory for
        all that the compiler knows. The ranks of split-K share the vectors.
        """
        width, is_along_m = self._vectors.width, self._vectors.is_along_m
        size = self._config.problem.contraction.pooled
        count = self._rows // size * self._positions // width
        step_size = self._config.tile.split_k * self._mainloop.threads
        steps = -(-count // step_size)
        reads = self._row_values is not None or (self._made is not None and self._made.reads)
        # Elements that are stored alone are computed whether they exist or not: between branches,
        # each would wait for its own instructions. 3241x24x2273 with GELU took 22.4 us, not 25.5;
        # but where results read others, 4432x37x1569 with a residual 28.9, not 22.1.
        is_alone = width == 1 and count % step_size == 0 and self._made is not None
        is_alone = is_alone and not (reads or self._group is not None or self._pool is not None)

        def at(step: ir.Expr) -> VectorPlace:
            flat = step * step_size + self._place.rank * self._mainloop.threads + thread
            if is_along_m:
                row, column = coordinates(flat, [index(1), self._positions])
                row = row * width
            else:
                row, column = coordinates(flat, [index(1), self._positions // width])
                row, column = row * size, column * width
            has_one = tirx.const(True) if count % step_size == 0 else flat < count
            return self._vector(row, column, slab, first, has_one)

        stmts = []
        for start in range(0, steps, self._batch):
            some = min(self._batch, steps - start)

            def fill(i: ir.Expr, start: int = start) -> tirx.Stmt:
                place = at(i + start)
                assert self._made is not None
                stmts = [self._made.load(i, place.where)] if self._made.reads else []
                if self._row_values is not None:
                    stmts.append(self._row_values.fill(i, place.where))
                return when(place.inside, sequence(stmts))

            def finish(i: ir.Expr, start: int = start) -> tirx.Stmt:
                place = at(i + start)
                if is_alone:
                    return self._store(i, place, thread, place.inside)
                return when(place.inside, self._store(i, place, thread))

            fills = unrolled("vector", some, fill) if reads else sequence([])
            stmts += [fills, unrolled("vector", some, finish)]
        return stmts

    def _vector(
        self, row: ir.Expr, position: ir.Expr, slab: int, first: int, has_one: ir.Expr
    ) -> VectorPlace:
        """Find the first element of a vector of staged sums, of a column split those of part 0."""
        config, loop = self._config, self._mainloop
        own_slab, warp_m, in_slab = coordinates(row, [index(1), loop.warps_m, M16])
        in_tile = in_slab + loop.slab_row(slab + own_slab, warp_m)
        parts, side_by_side = config.problem.parts, config.problem.panel
        if self._columns % (side_by_side * parts):  # all columns are staged, warps share periods
            warp_n, in_warp, n = index(0), position, position
        else:
            warp_n, in_warp = coordinates(position, [index(1), self._columns // parts])
            n = warp_n * (config.tile.warp_n // parts) + first // parts + in_warp
        column = position
        if parts > 1:
            panel, in_panel = coordinates(in_warp, [index(1), side_by_side])
            column = warp_n * self._columns + panel * (side_by_side * parts) + in_panel
        where = config.grid.element_at(self._place, in_tile, n)
        return VectorPlace(
            row, column, where, tirx.all(has_one, *config.grid.bounds(self._place, in_tile, n))
        )

    def _store(
        self, copy: ir.Expr, place: VectorPlace, thread: ir.Expr, inside: ir.Expr | None = None
    ) -> tirx.Stmt:
        """Add up the sums of a vector, compute its results and store them where it exists."""
        where, width = place.where, self._vectors.width
        parts = range(self._config.problem.parts)
        stmts = []

        def total(part: int, lane: int) -> ir.Expr:
            if self._pool is not None:
                return self._pool.at(lane)
            return load(self._total, [index(part * width + lane)])

        if self._pool is not None:
            stmts.append(self._pool.reduce(where, lambda row: self._of_window(place, row)))
        for part in parts if self._pool is None else ():
            stmts += self._totals(
                part * width, place.row, place.column + part * self._config.problem.panel
            )

        if self._made is None:
            at = [where[a.var] for a in self._config.problem.contraction.stage.axes]
            found = [total(part, 0) for part in parts]
            stmts.append(store_results(self._config.problem.contraction, at, *found))
            return sequence(stmts)
        values = where if self._row_values is None else where | self._row_values.at(copy)
        stmts.append(self._made.finish(copy, values, total, inside))
        if self._group is not None:
            groups = self._config.problem.contraction.group_sums
            assert groups is not None
            made = self._made.made[self._config.problem.contraction.results[groups.result].buffer]
            stmts.append(self._group.keep(0, made, width))
            stmts.append(self._group.store(thread, where, None))
        return sequence(stmts)

    def _of_window(
        self, place: VectorPlace, row: int
    ) -> tuple[list[tirx.Stmt], Callable[[int], ir.Expr]]:
        """Load the sums of a row of a window, of which a place is the first."""
        stmts = self._totals(0, place.row + row, place.column)
        return stmts, lambda lane: load(self._total, [index(lane)])

    def _totals(self, first: int, row: ir.Expr, column: ir.Expr) -> list[tirx.Stmt]:
        """Load staged sums of a part, those of further slices added in their order."""
        width, is_along_m = self._vectors.width, self._vectors.is_along_m
        size = 1 if is_along_m else min(width, VECTOR_BYTES // 4)
        stmts: list[tirx.Stmt] = []
        total, partial = self._total, self._partial
        slices, ranks = self._mainloop.warps_k, self._config.tile.split_k
        for number, (rank, k_slice) in enumerate(itertools.product(range(ranks), range(slices))):
            to, start = (partial, 0) if number else (total, first)
            for lane in range(0, width, size):
                place = (k_slice * self._rows + row) * self._stride + column
                place = place + (lane * self._stride if is_along_m else lane)
                source, own = self._word(place), load(to, [index(start + lane)])
                if ranks > 1:
                    stmts.append(load_cluster(own, source, 4 * size, tirx.const(rank, "int32")))
                else:
                    stmts.append(self._config.problem.moves.load(own, source, 4 * size))
            for lane in range(width if number else 0):
                both = load(total, [index(first + lane)]) + load(partial, [index(lane)])
                stmts.append(tirx.BufferStore(total, both, [first + lane]))
        return stmts
