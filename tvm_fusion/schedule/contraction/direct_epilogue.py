"""Epilogue of a GEMM from registers: results in vectors, without shared memory.

    for slab, for the two rows of a thread, for some groups of 32 columns:
      total[8] of each group = what four lanes have, transposed           shuffles, or moves
      load what the results read, in vectors, of all groups               global
      for each group:  compute element by element, store in vectors       global

Of four tiles of eight columns, each of four lanes has two columns of a row; transposed, each has
one tile: eight adjacent columns. Where columns of B are interleaved, each has 16 adjacent ones.
Rows and columns beyond the edge load the last ones again.
"""

from __future__ import annotations

import itertools

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.expressions import load
from ...core.loops import (
    block,
    coordinates,
    index,
    local,
    sequence,
    unrolled,
    when,
)
from ..gpu.mma import ACCUMULATORS, GROUPS, THREADS_IN_GROUP, WARP
from ..gpu.shared_tiles import touch
from ..gpu.wgmma import M
from .fuse_epilogue import store_results
from .tile_gemm_config import TilePlace
from .tile_results import ResultVectors, VectorResults, result_vectors
from .tile_shape import M16
from .wgmma_config import WgmmaConfig
from .wgmma_results import ResultPlaces

COLUMNS = GROUPS * THREADS_IN_GROUP  # of four lanes
# Groups of columns whose loads are in flight together: as many as accumulators leave registers for.
AT_ONCE, FEWER_AT_ONCE, MANY_ACCUMULATORS = 4, 2, 96

_TRANSPOSE = """
__device__ __forceinline__ void {name}(float* to, const float* acc) {{
  bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  float v[8], w[8];
  #pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = acc[i / 2 * 4 + i % 2];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    int low = i / 2 * 4 + i % 2;
    float other = __shfl_xor_sync(0xffffffffu, odd ? v[low] : v[low + 2], 1);
    w[low] = odd ? other : v[low];
    w[low + 2] = odd ? v[low + 2] : other;
  }}
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    float other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 4], 2);
    to[i] = high ? other : w[i];
    to[i + 4] = high ? w[i + 4] : other;
  }}
}}
"""


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

    def __init__(self, cut: WgmmaConfig, place: TilePlace, acc: ir.Var, first_row: ir.Expr) -> None:
        self._cut, self._acc, self._first_row = cut, acc, first_row
        self._places = ResultPlaces(cut, place)
        found = result_vectors(cut)
        self._vectors = ResultVectors(1 if found.is_along_m else found.width, False)

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup."""
        cut = self._cut
        warp, lane = coordinates(thread, [index(1), WARP])
        row_in_8, quad = coordinates(lane, [index(1), THREADS_IN_GROUP])
        columns = cut.staged_columns
        groups, own = cut.block_n // columns, columns // THREADS_IN_GROUP
        has_many = cut.accumulators >= MANY_ACCUMULATORS
        at_once = (FEWER_AT_ONCE if has_many else AT_ONCE) * GROUPS // own
        while groups % at_once:
            at_once -= 1

        def one(number: ir.Expr) -> tirx.Stmt:
            slab, half, part = coordinates(number, [cut.slabs, 2, groups // at_once])
            row = self._first_row + slab * M + warp * M16 + half * GROUPS + row_in_8
            m, n = self._places.of(row, part * (at_once * columns) + quad * own)
            total = local("total", [at_once * own], "float32")
            stmts = [touch(total, at_once * own - 1)]
            for i in range(at_once):
                stmts += self._sums(total, i, slab * cut.n8, part * at_once + i, half)
            firsts = [n + i * columns for i in range(at_once)]
            return self._results(sequence(stmts), total, m, firsts, own)

        parts = unrolled("part", cut.slabs * 2 * (groups // at_once), one)
        return sequence([touch(self._acc, cut.accumulators - 1), parts])

    def _sums(
        self, total: ir.Var, i: int, tile: ir.Expr, group: ir.Expr, half: ir.Expr
    ) -> list[tirx.Stmt]:
        """Give a thread adjacent columns of a group."""
        if self._cut.operands[1].is_interleaved:
            return interleaved_sums(self._cut, self._acc, total, tile, group, half, i)
        first = (tile + group * THREADS_IN_GROUP) * ACCUMULATORS + half * 2
        return [_transpose(load(total, [index(i * GROUPS)]), load(self._acc, [first]))]

    def _results(
        self, sums: tirx.Stmt, total: ir.Var, m: ir.Expr, firsts: list[ir.Expr], own: int
    ) -> tirx.Stmt:
        """Store the results of adjacent columns of some groups, each from a column on."""
        cut, width = self._cut, self._vectors.width
        places = [n + j for n in firsts for j in range(0, own, width)]
        stmts = [sums]
        if width == 1:
            for i, column in enumerate(places):
                where = self._places.where(m, column)
                at = [where[a.var] for a in cut.contraction.stage.axes]
                stored = store_results(cut.contraction, at, load(total, [index(i)]))
                stmts.append(when(self._places.inside(m, column), stored))
            return block("epilogue", sequence(stmts), [total])
        results = VectorResults(cut, self._vectors, len(places))
        for i, column in enumerate(places):
            stmts.append(results.load(index(i), self._places.clamped(m, column, width)))
        for i, column in enumerate(places):

            def sum_of(lane: int, i: int = i) -> ir.Expr:
                return load(total, [index(i * width + lane)])

            where = self._places.where(m, column)
            stmts.append(results.compute(index(i), where, sum_of))
            stmts.append(when(self._places.inside(m, column), results.store(where)))
        return block("epilogue", sequence(stmts), [total, *results.buffers])


def interleaved_sums(
    cut: WgmmaConfig,
    acc: ir.Var,
    total: ir.Var,
    tile: ir.Expr,
    group: ir.Expr,
    half: ir.Expr,
    copy: int = 0,
) -> list[tirx.Stmt]:
    """Gather 16 adjacent columns of a thread, whose columns of B were interleaved.

    Column 2 * quad + i of tile t of eight is column ``(t % (n8 / 8) * 8 + 2 * quad + i) * 8 +
    t / (n8 / 8)`` of C: those of one quad and all t of a remainder are adjacent.
    """
    per_matrix = cut.n8 // GROUPS
    stmts = []
    for i, matrix in itertools.product(range(2), range(GROUPS)):
        place = (tile + matrix * per_matrix + group) * ACCUMULATORS + half * 2 + i
        to = index(copy * 2 * GROUPS + i * GROUPS + matrix)
        stmts.append(tirx.BufferStore(total, load(acc, [place]), [to]))
    return stmts


def _transpose(to: ir.TensorLoad, acc: ir.TensorLoad) -> tirx.Stmt:
    """Give each of four lanes the eight columns of its own of four tiles."""
    name = "tvm_fusion_transpose_quad"
    addresses = tirx.address_of(to), tirx.address_of(acc)
    source = _TRANSPOSE.format(name=name)
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
