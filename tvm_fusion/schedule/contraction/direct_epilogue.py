"""Epilogue of a GEMM from registers: results of pairs of columns, without shared memory.

    for slab, for tile of eight columns, for the two rows of a thread:
      pair of adjacent columns:  load what the results read, compute, store     4 or 8 bytes

Four lanes have eight adjacent columns of a row, which are 16 bytes of a half type.
"""

from __future__ import annotations

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
from ..gpu.mma import ACCUMULATORS, GROUPS, THREADS_IN_GROUP, WARP
from ..gpu.wgmma import M
from .fuse_epilogue import store_results
from .tile_epilogue import ResultVectors, result_vectors, vector_results
from .tile_gemm_config import M16, TilePlace, axis_values
from .wgmma_config import WgmmaConfig

PAIR = 2  # adjacent columns of a thread


class DirectEpilogue:
    """Stores the results of a consumer's accumulators.

    Parameters
    ----------
    cut : WgmmaConfig
        The product.
    place : TilePlace
        The tile.
    acc : Var
        Accumulators of a thread, ``[slab, column tile, 4]``.
    first_row : Expr
        The consumer's first row of the tile.
    """

    def __init__(
        self, cut: WgmmaConfig, place: TilePlace, acc: ir.Var, first_row: ir.Expr
    ) -> None:
        self._cut, self._place, self._acc, self._first_row = cut, place, acc, first_row
        found = result_vectors(cut)
        is_paired = found.width >= PAIR and not found.is_along_m
        self._vectors = ResultVectors(PAIR if is_paired else 1, False)

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup."""
        cut = self._cut
        warp, lane = coordinates(thread, [index(1), WARP])
        group, pair = coordinates(lane, [index(1), THREADS_IN_GROUP])

        def one(number: ir.Expr) -> tirx.Stmt:
            slab, n8, half = coordinates(number, [cut.slabs, cut.n8, 2])
            row = self._first_row + slab * M + warp * M16 + half * GROUPS + group
            m = self._place.m_tile * cut.block_m + row
            n = self._place.n_tile * cut.block_n + n8 * GROUPS + pair * PAIR
            first = (slab * cut.n8 + n8) * ACCUMULATORS + half * PAIR
            if self._vectors.width == PAIR:
                return self._guarded(m, n, first, PAIR)
            return sequence([self._guarded(m, n + i, first + i, 1) for i in range(PAIR)])

        return unrolled("fragment", cut.slabs * cut.n8 * 2, one)

    def _guarded(self, m: ir.Expr, n: ir.Expr, first: ir.Expr, width: int) -> tirx.Stmt:
        """Store the results of a pair of sums, or of one, where they are inside."""
        cut = self._cut
        total = local("total", [width], "float32")
        stmts = [
            tirx.BufferStore(total, load(self._acc, [first + i]), [i]) for i in range(width)
        ]
        where = {
            **cut.axes_at(self._place.batch),
            **axis_values(cut.m_axes, m),
            **axis_values(cut.n_axes, n),
        }
        buffers = [total]
        if width == 1:
            at = [where[a.var] for a in cut.contraction.stage.axes]
            stmts.append(store_results(cut.contraction, at, load(total, [index(0)])))
        else:
            made, more = vector_results(cut, self._vectors, total, where)
            stmts, buffers = [*stmts, made], [*buffers, *more]
        body = block("epilogue", sequence(stmts), buffers)
        extent = product([a.extent for a in cut.m_axes])
        inside = []
        if constant(extent) is None or int(extent) % cut.block_m:
            inside.append(m < extent)
        if cut.n % cut.block_n:
            inside.append(n < cut.n)
        return when(tirx.all(*inside), body) if inside else body
