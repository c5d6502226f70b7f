"""Epilogue of a GEMM through a warp's shared memory: results of rows that are not aligned.

    for slab, for the two rows of a thread, for groups of 32 columns:
      load what the results read, adjacent columns by adjacent lanes      global
      staged[row, column] = acc;  barrier of the warp                     shared
      total = staged[..];  compute, store                                 global
      barrier of the warp

From registers, lanes would store single elements, each in a sector of its own.
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import block, coordinates, index, local, sequence, unrolled, when
from ..gpu.cp_async import warp_sync
from ..gpu.mma import ACCUMULATORS, GROUPS, THREADS_IN_GROUP, WARP
from ..gpu.shared_tiles import load_shared, store_shared, touch
from ..gpu.wgmma import WARPS, M
from .tile_gemm_config import TilePlace
from .tile_results import ResultVectors, VectorResults, result_vectors
from .tile_shape import M16, STAGE_PAD
from .wgmma_config import STAGED_COLUMNS, WgmmaConfig

MOST_WIDTH = 2  # elements of vectors that are staged; wider ones are stored from registers


def stages_results(vectors: ResultVectors) -> bool:
    """Whether results of a width are stored through shared memory."""
    return vectors.width <= MOST_WIDTH and vectors.is_plain and not vectors.is_along_m


class StagedEpilogue:
    """Stores the results of a consumer's accumulators.

    Parameters
    ----------
    cut : WgmmaConfig
        The product.
    place : TilePlace
        The tile.
    acc : Var
        Accumulators of a thread, ``[slab, column tile, 4]``.
    first_row, consumer : Expr
        The consumer's first row of the tile, and its number.
    shared : Var
        Shared memory, in bytes.
    """

    def __init__(
        self,
        cut: WgmmaConfig,
        place: TilePlace,
        acc: ir.Var,
        first_row: ir.Expr,
        consumer: ir.Expr,
        shared: ir.Var,
    ) -> None:
        self._cut, self._place, self._acc, self._shared = cut, place, acc, shared
        self._first_row, self._consumer = first_row, consumer
        self._vectors = result_vectors(cut)
        self._count = GROUPS * STAGED_COLUMNS // WARP // self._vectors.width  # of a lane

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup."""
        cut = self._cut
        warp, lane = coordinates(thread, [index(1), WARP])
        made = VectorResults(cut, self._vectors, self._count)
        total = local("total", [self._vectors.width], "float32")
        groups = cut.block_n // STAGED_COLUMNS

        def one(number: ir.Expr) -> tirx.Stmt:
            slab, half, group = coordinates(number, [cut.slabs, 2, groups])
            row = self._first_row + slab * M + warp * M16 + half * GROUPS
            start = (self._consumer * WARPS + warp) * cut.staged_bytes + cut.staging_offset
            tile = slab * cut.n8
            stmts = [self._load(made, lane, row, group)] if made.reads else []
            stmts += self._stage(lane, start, tile, group, half)
            stmts += [warp_sync(), self._store(made, total, lane, start, row, group), warp_sync()]
            return sequence(stmts)

        parts = unrolled("part", cut.slabs * 2 * groups, one)
        touched = [touch(self._acc, cut.accumulators - 1), touch(total, int(total.ty.shape[0]) - 1)]
        return block("epilogue", sequence([*touched, parts]), [total, *made.buffers])

    def _stage(
        self, lane: ir.Expr, start: ir.Expr, tile: ir.Expr, group: ir.Expr, half: ir.Expr
    ) -> list[tirx.Stmt]:
        """Write the sums of a row and some columns of a thread to shared memory."""
        row, quad = coordinates(lane, [index(1), THREADS_IN_GROUP])
        stmts: list[tirx.Stmt] = []
        for i in range(STAGED_COLUMNS // GROUPS):
            to = self._word(start, row, quad * 2 + i * GROUPS)
            first = (tile + group * (STAGED_COLUMNS // GROUPS) + i) * ACCUMULATORS + half * 2
            stmts.append(store_shared(to, load(self._acc, [first]), 8))
        return stmts

    def _load(self, made: VectorResults, lane: ir.Expr, row: ir.Expr, group: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr) -> tirx.Stmt:
            _, m, n = self._vector(i, lane, row, group)
            return made.load(i, self._where(*self._cut.clamped(m, n, self._vectors.width)))

        return unrolled("vector", self._count, one)

    def _store(
        self,
        made: VectorResults,
        total: ir.Var,
        lane: ir.Expr,
        start: ir.Expr,
        row: ir.Expr,
        group: ir.Expr,
    ) -> tirx.Stmt:
        width = self._vectors.width

        def one(i: ir.Expr) -> tirx.Stmt:
            (staged_row, column), m, n = self._vector(i, lane, row, group)
            where = self._where(m, n)
            source = self._word(start, staged_row, column)
            stmts = [
                load_shared(load(total, [index(0)]), source, 4 * width),
                made.compute(i, where, lambda _, lane: load(total, [index(lane)])),
                made.store(where),
            ]
            inside = self._cut.bounds(m, n)
            return when(tirx.all(*inside), sequence(stmts)) if inside else sequence(stmts)

        return unrolled("vector", self._count, one)

    def _vector(
        self, i: ir.Expr, lane: ir.Expr, row: ir.Expr, group: ir.Expr
    ) -> tuple[tuple[ir.Expr, ir.Expr], ir.Expr, ir.Expr]:
        """Give a lane's vector: its staged row and column, and its row and column of C."""
        width = self._vectors.width
        staged = coordinates(i * WARP + lane, [index(1), STAGED_COLUMNS // width])
        staged_row, column = staged[0], staged[1] * width
        m = self._place.m_tile * self._cut.block_m + row + staged_row
        n = self._place.n_tile * self._cut.block_n + group * STAGED_COLUMNS + column
        return (staged_row, column), m, n

    def _where(self, m: ir.Expr, n: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return self._cut.element_at(self._place.batch, m, n)

    def _word(self, start: ir.Expr, row: ir.Expr, column: ir.Expr) -> ir.TensorLoad:
        place = (row * (STAGED_COLUMNS + STAGE_PAD) + column) * 4
        return load(self._shared, [start + place])
