"""Epilogue of a GEMM whose results are not vectors: rows of 32 adjacent elements, one a lane.

    for slab, for 32 columns of a warp's 16 rows:
      staged[row, column] = acc                      8-byte stores          shared, of the warp
      syncwarp
      for row:  total[row] = staged[row, lane]                              shared
      for row:  made[row] = result of total[row] and what it reads          global
      for row:  store made[row]: 32 adjacent elements of the row            global
      syncwarp

So are rows whose size is no multiple of a vector, such as 50,257 logits: stored from where wgmma
leaves them, each element would be a sector of its own.
"""

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, local, sequence, substitute, unrolled, when
from ...gpu.matrix.wgmma import WARPS, M
from ...gpu.memory.cp_async import warp_sync
from ...gpu.memory.shared_tiles import load_shared, store_shared, touch
from ..problem.results import Result
from ..tile.grid import TilePlace
from ..tile.shape import M16
from .config import STAGED_STRIDE, STAGED_WARP_BYTES, WgmmaConfig


class StagedEpilogue:
    """Stores the results of a consumer's accumulators; see DirectEpilogue.

    Parameters
    ----------
    acc
        Accumulators of a thread, ``[slab, column tile, 4]``.
    first_row
        The consumer's first row of the tile.
    shared
        Shared memory, bytes.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    loads_early = False

    def __init__(
        self,
        config: WgmmaConfig,
        place: TilePlace,
        acc: ir.Var,
        first_row: ir.Expr,
        consumer: ir.Expr,
        shared: ir.Var,
    ) -> None:
        self._config, self._place, self._acc, self._first_row = config, place, acc, first_row
        self._consumer, self._shared = consumer, shared
        self._total = local("total", [M16], config.problem.contraction.dtype)
        self._made = [
            local(f"result{number}", [M16], str(result.buffer.ty.dtype))
            for number, result in enumerate(config.problem.contraction.results)
        ]
        self.buffers = [self._total, *self._made]

    def prologue(self, _thread: ir.Expr) -> tirx.Stmt:
        """Do nothing before the sums are complete."""
        return sequence([])

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup."""
        config = self._config
        mma = config.problem.mma
        warp, lane = coordinates(thread, [index(1), mma.lanes])
        base = (self._consumer * WARPS + warp) * STAGED_WARP_BYTES + config.staging_offset
        stmts = [touch(self._acc, config.accumulators - 1), touch(self._total, M16 - 1)]
        for slab in range(config.slabs):
            m = self._first_row + slab * M + warp * M16  # of the tile
            for first in range(0, config.tile.block_n, mma.lanes):
                n = first + lane
                tile = slab * config.n8 + first // mma.n
                stmts += [self._stage(base, lane, tile), warp_sync()]
                stmts += [self._totals(base, lane), *self._results(m, n), warp_sync()]
        return sequence(stmts)

    def _stage(self, base: ir.Expr, lane: ir.Expr, first: int) -> tirx.Stmt:
        """Write 16 rows of four tiles of eight columns to the warp's shared memory."""
        mma, c = self._config.problem.mma, self._config.problem.mma.c
        row, column = c.of_lane(lane)
        down, _ = c.of_register(c.run)  # from a lane's first row to the other
        start = base + (row * STAGED_STRIDE + column) * 4

        def one(number: ir.Expr) -> tirx.Stmt:
            tile, half = coordinates(number, [mma.lanes // mma.n, 2])
            to = start + (half * down * STAGED_STRIDE + tile * mma.n) * 4
            fragment = (tile + first) * c.per_lane + half * c.run
            return store_shared(load(self._shared, [to]), load(self._acc, [fragment]), c.run * 4)

        return unrolled("fragment", 2 * mma.lanes // mma.n, one)

    def _totals(self, base: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
        """Read a column of the warp's shared memory."""

        def one(row: ir.Expr) -> tirx.Stmt:
            place = load(self._shared, [base + (row * STAGED_STRIDE + lane) * 4])
            return load_shared(load(self._total, [row]), place, 4)

        return unrolled("row", M16, one)

    def _results(self, m: ir.Expr, n: ir.Expr) -> list[tirx.Stmt]:
        """Compute all rows before the first store, which might alias what they load."""
        stmts = []
        for result, made in zip(self._config.problem.contraction.results, self._made, strict=True):

            def compute(row: ir.Expr, result: Result = result, made: ir.Var = made) -> tirx.Stmt:
                sums = {self._config.problem.contraction.total: load(self._total, [row])}
                where = self._nearest(m + row, n)
                value = substitute(result.value, {**where, **sums})
                stored = tirx.BufferStore(made, value, [row])
                if result.condition is None:
                    return stored
                return when(substitute(result.condition, where), stored)

            def store(row: ir.Expr, result: Result = result, made: ir.Var = made) -> tirx.Stmt:
                where = self._config.grid.element_at(self._place, m + row, n)
                places = [substitute(i, where) for i in result.indices]
                stored = tirx.BufferStore(result.buffer, load(made, [row]), places)
                return self._guarded(result, where, m + row, n, stored)

            stmts += [unrolled("row", M16, compute), unrolled("row", M16, store)]
        return stmts

    def _nearest(self, m: ir.Expr, n: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the axes of an element, or of the last one before it that exists.

        Between branches around those that do not, each would wait for its own instructions.
        """
        config, place = self._config, self._place
        rows = config.grid.row_at(place.m_tile, m, is_clamped=True)
        where = config.problem.axes_at(place.batch)
        return where | rows | config.grid.column_at(place.n_tile, n, clamped=1)

    def _guarded(
        self,
        result: Result,
        where: dict[ir.Var, ir.Expr],
        m: ir.Expr,
        n: ir.Expr,
        stmt: tirx.Stmt,
    ) -> tirx.Stmt:
        conditions = self._config.grid.bounds(self._place, m, n)
        if result.condition is not None:
            conditions.append(substitute(result.condition, where))
        return when(tirx.all(*conditions), stmt) if conditions else stmt
