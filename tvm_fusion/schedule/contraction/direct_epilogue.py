"""Epilogue of a GEMM from registers: results in vectors, without shared memory.

    for slab, for the two rows of a thread, for some groups of 32 columns:
      total[8] of each group = what four lanes have, transposed           shuffles
      load what the results read, in vectors, of all groups               global
      for each group:  compute element by element, store in vectors       global

Of four tiles of eight columns, each of four lanes has two columns of a row; transposed, each has
one tile: eight adjacent columns. Rows and columns beyond the edge load the last ones again.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...core.expressions import load
from ...core.loops import (
    block,
    constant,
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
        self._cut, self._place, self._acc, self._first_row = cut, place, acc, first_row
        found = result_vectors(cut)
        self._vectors = ResultVectors(1 if found.is_along_m else found.width, False)

    def stmt(self, thread: ir.Expr) -> tirx.Stmt:
        """Write the results of a thread of the warpgroup."""
        cut = self._cut
        warp, lane = coordinates(thread, [index(1), WARP])
        group, quad = coordinates(lane, [index(1), THREADS_IN_GROUP])
        groups = cut.block_n // COLUMNS
        has_many = cut.accumulators >= MANY_ACCUMULATORS
        at_once = min(FEWER_AT_ONCE if has_many else AT_ONCE, groups)
        while groups % at_once:
            at_once -= 1

        def one(number: ir.Expr) -> tirx.Stmt:
            slab, half, part = coordinates(number, [cut.slabs, 2, groups // at_once])
            row = self._first_row + slab * M + warp * M16 + half * GROUPS + group
            m = self._place.m_tile * cut.block_m + row
            column = part * (at_once * COLUMNS) + quad * GROUPS
            n = self._place.n_tile * cut.block_n + column
            tile = slab * cut.n8 + part * (at_once * THREADS_IN_GROUP)
            return self._groups(m, n, tile * ACCUMULATORS + half * 2, at_once)

        parts = unrolled("part", cut.slabs * 2 * (groups // at_once), one)
        return sequence([touch(self._acc, cut.accumulators - 1), parts])

    def _groups(self, m: ir.Expr, n: ir.Expr, first: ir.Expr, count: int) -> tirx.Stmt:
        """Store the results of eight columns of each group from a column on."""
        cut, width = self._cut, self._vectors.width
        total = local("total", [count * GROUPS], "float32")
        each = GROUPS // width
        stmts = [touch(total, count * GROUPS - 1)]
        for i in range(count):
            acc = load(self._acc, [first + i * THREADS_IN_GROUP * ACCUMULATORS])
            stmts.append(_transpose(load(total, [index(i * GROUPS)]), acc))
        places = [n + i * COLUMNS + j * width for i in range(count) for j in range(each)]
        if width == 1:
            for i, column in enumerate(places):
                where = self._where(m, column)
                at = [where[a.var] for a in cut.contraction.stage.axes]
                stored = store_results(cut.contraction, at, load(total, [index(i)]))
                stmts.append(self._guarded(m, column, stored))
            return block("epilogue", sequence(stmts), [total])
        results = VectorResults(cut, self._vectors, len(places))
        for i, column in enumerate(places):
            inside = self._where(self._last(m, cut.m), self._last(column, index(cut.n), width))
            stmts.append(results.load(index(i), inside))
        for i, column in enumerate(places):

            def sums(lane: int, i: int = i) -> ir.Expr:
                return load(total, [index(i * width + lane)])

            where = self._where(m, column)
            stmts.append(results.compute(index(i), where, sums))
            stmts.append(self._guarded(m, column, results.store(where)))
        return block("epilogue", sequence(stmts), [total, *results.buffers])

    def _where(self, m: ir.Expr, n: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return self._cut.element_at(self._place.batch, m, n)

    def _last(self, position: ir.Expr, extent: ir.Expr, width: int = 1) -> ir.Expr:
        """Clamp a position to the last vector, where the last tile reaches beyond."""
        size = self._cut.block_m if width == 1 else self._cut.block_n
        known = constant(extent)
        if known is not None and known % size == 0:
            return position
        return tirx.min(position, extent - width)

    def _guarded(self, m: ir.Expr, n: ir.Expr, stored: tirx.Stmt) -> tirx.Stmt:
        inside = self._cut.bounds(m, n)
        return when(tirx.all(*inside), stored) if inside else stored


def _transpose(to: ir.TensorLoad, acc: ir.TensorLoad) -> tirx.Stmt:
    """Give each of four lanes the eight columns of its own of four tiles."""
    name = "tvm_fusion_transpose_quad"
    addresses = tirx.address_of(to), tirx.address_of(acc)
    source = _TRANSPOSE.format(name=name)
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
