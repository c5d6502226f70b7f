"""The two products of FlashAttention on tensor cores: scores of a tile of keys, and results.

mma.sync
    for k16 of the head dimension, for n16 keys:   b_frag = ldmatrix(k);  s += q_frag * b_frag
    for k16 keys, for n16 columns of v:            b_frag = ldmatrix(v);  acc += p_frag * b_frag
wgmma, k and v from shared memory
    s = q_frag * k
    acc += p_frag * v
"""

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, sequence, unrolled
from ...gpu.matrix.ldmatrix import ELEMENTS, ldmatrix_x4, row_major_lane, transposed_lane
from ...gpu.matrix.mma_sync import mma_m16n8k16
from ...gpu.matrix.wgmma import Operand, multiply_fragments
from ...gpu.memory.swizzle import SwizzledRows
from ...gpu.memory.tma import ROW_BYTES
from .block import FlashMmaBlock


class FlashMmaProducts(FlashMmaBlock):
    """One thread, and its part of products of its warp or warpgroup."""

    def _fragment(
        self, rows: SwizzledRows, first: ir.Expr, k16: ir.Expr, to: ir.TensorLoad
    ) -> tirx.Stmt:
        """Load 16 rows and 16 columns."""
        row, half = row_major_lane(self._t)
        place = rows.element(first + row, k16 * 2 + half, row)
        return ldmatrix_x4(to, load(self._shared, [place]), False)

    def _load_fragments_of_queries(self, k16: ir.Expr, begin: ir.Expr) -> tirx.Stmt:
        def one(m: ir.Expr) -> tirx.Stmt:
            row = self._g * self._config.rows_of_warp + m * 16
            to = load(self._q_frag, [begin + m * ELEMENTS])
            return self._fragment(self._config.q_rows, row, k16, to)

        return unrolled("m", self._config.m16, one)

    def _load_queries(self) -> tirx.Stmt:
        size = self._config.m16 * ELEMENTS

        def one(k16: ir.Expr) -> tirx.Stmt:
            return self._load_fragments_of_queries(k16, k16 * size)

        return unrolled("k16", self._config.depth16 // 16, one)

    def _stage(self, n: ir.Expr) -> ir.Expr:
        return tirx.floormod(n, index(self._config.stages)) * self._config.block_n

    def _multiply_keys(self, n: ir.Expr) -> tirx.Stmt:
        config = self._config
        if config.uses_wgmma:
            sizes = config.block_n, config.depth16
            product = self._warpgroup_product(n, config.k_rows(), self._s, self._q_frag, sizes)
            return sequence([self._load_queries(), product])

        def over_depth(k16: ir.Expr) -> tirx.Stmt:
            begin = k16 * config.m16 * ELEMENTS if config.q_in_registers else index(0)

            def over_keys(n16: ir.Expr) -> tirx.Stmt:
                row, to = self._stage(n) + n16 * 16, load(self._b_frag, [index(0)])
                loaded = self._fragment(config.k_rows(), row, k16, to)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = begin + m * ELEMENTS
                    return [load(self._q_frag, [start + i * 4]) for i in range(2)]

                return sequence([loaded, self._products(self._s, self._key_cells, n16, a_rows)])

            loaded = [] if config.q_in_registers else [self._load_fragments_of_queries(k16, begin)]
            return sequence([*loaded, unrolled("n16", config.block_n // 16, over_keys)])

        return sequence([self._zero(self._s), unrolled("k16", config.depth16 // 16, over_depth)])

    def _products(self, to: ir.Var, columns8: int, n16: ir.Expr, a_rows) -> tirx.Stmt:
        """Multiply all rows of the warp with two fragments of eight columns."""

        def one(i: ir.Expr) -> tirx.Stmt:
            m, j = coordinates(i, [self._config.m16, 2])
            c = load(to, [(m * columns8 + n16 * 2 + j) * self._mma.c.per_lane])
            return mma_m16n8k16(self._half, c, a_rows(m), load(self._b_frag, [j * 4]))

        return unrolled("i", self._config.m16 * 2, one)

    def _multiply_values(self, n: ir.Expr, is_waited_for: bool = True) -> tirx.Stmt:
        """Add the product of weights and a tile; without a wait where a warpgroup multiplies."""
        config = self._config
        rows = config.v_rows()
        if config.uses_wgmma:
            sizes = config.column16, config.block_n
            return self._warpgroup_product(n, rows, self._acc, self._p_frag, sizes, is_waited_for)

        def over_keys(k16: ir.Expr) -> tirx.Stmt:
            def over_columns(n16: ir.Expr) -> tirx.Stmt:
                row, half = transposed_lane(self._t)
                place = rows.element(self._stage(n) + k16 * 16 + row, n16 * 2 + half, row)
                to = load(self._b_frag, [index(0)])
                loaded = ldmatrix_x4(to, load(self._shared, [place]), is_transposed=True)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = (m * (self._key_cells // 2) + k16) * ELEMENTS
                    return [load(self._p_frag, [start + i * 4]) for i in range(2)]

                return sequence(
                    [loaded, self._products(self._acc, self._column_cells, n16, a_rows)]
                )

            return unrolled("n16", config.column16 // 16, over_columns)

        return unrolled("k16", config.block_n // 16, over_keys)

    def _warpgroup_product(
        self,
        n: ir.Expr,
        rows: SwizzledRows,
        to: ir.Var,
        a: ir.Var,
        sizes: tuple[int, int],
        is_waited_for: bool = True,
    ) -> tirx.Stmt:
        """Multiply fragments of the warpgroup with a tile of keys, or of values."""
        is_keys = to.same_as(self._s)
        place = rows.element(self._stage(n), index(0), index(0))
        b = Operand(is_keys, self._config.block_n * ROW_BYTES), load(self._shared, [place])
        acc, a_frag = load(to, [index(0)]), load(a, [index(0)])
        return multiply_fragments(
            self._half, *sizes, acc, a_frag, b, not is_keys, is_waited_for=is_waited_for
        )
