"""The two products of FlashAttention on tensor cores: scores of a tile of keys, and results.

mma.sync
    for k16 of the head dimension, for n16 keys:   b_frag = ldmatrix(k);  s += q_frag * b_frag
    for k16 keys, for n16 columns of v:            b_frag = ldmatrix(v);  acc += p_frag * b_frag
wgmma, k and v from shared memory, q too where warpgroups take turns
    s = q_frag * k
    acc += p_frag * v
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import coordinates, index, sequence, unrolled
from ..gpu.ldmatrix import ELEMENTS, ldmatrix_x4, row_major_lane, transposed_lane
from ..gpu.mma import ACCUMULATORS, mma_m16n8k16
from ..gpu.swizzle import SwizzledRows
from ..gpu.tma import ROW_BYTES
from ..gpu.wgmma import M, Operand
from ..gpu.wgmma_chain import Product, multiply_and_wait
from .flash_mma_block import FlashMmaBlock


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
            product = multiply_and_wait(self._half, [self._keys_product(n)])
            return sequence([self._load_queries(), product])

        def over_depth(k16: ir.Expr) -> tirx.Stmt:
            begin = k16 * config.m16 * ELEMENTS if config.q_in_registers else index(0)

            def over_keys(n16: ir.Expr) -> tirx.Stmt:
                row, to = self._stage(n) + n16 * 16, load(self._b_frag, [index(0)])
                loaded = self._fragment(config.k_rows(), row, k16, to)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = begin + m * ELEMENTS
                    return [load(self._q_frag, [start + i * 4]) for i in range(2)]

                return sequence([loaded, self._products(self._s, self._n8, n16, a_rows)])

            loaded = [] if config.q_in_registers else [self._load_fragments_of_queries(k16, begin)]
            return sequence([*loaded, unrolled("n16", config.block_n // 16, over_keys)])

        return sequence([self._zero(self._s), unrolled("k16", config.depth16 // 16, over_depth)])

    def _products(self, to: ir.Var, columns8: int, n16: ir.Expr, a_rows) -> tirx.Stmt:
        """Multiply all rows of the warp with two fragments of eight columns."""

        def one(i: ir.Expr) -> tirx.Stmt:
            m, j = coordinates(i, [self._config.m16, 2])
            c = load(to, [(m * columns8 + n16 * 2 + j) * ACCUMULATORS])
            return mma_m16n8k16(self._half, c, a_rows(m), load(self._b_frag, [j * 4]))

        return unrolled("i", self._config.m16 * 2, one)

    def _multiply_values(self, n: ir.Expr) -> tirx.Stmt:
        config = self._config
        rows = config.v_rows()
        if config.uses_wgmma:
            return multiply_and_wait(self._half, [self._values_product(n)])

        def over_keys(k16: ir.Expr) -> tirx.Stmt:
            def over_columns(n16: ir.Expr) -> tirx.Stmt:
                row, half = transposed_lane(self._t)
                place = rows.element(self._stage(n) + k16 * 16 + row, n16 * 2 + half, row)
                to = load(self._b_frag, [index(0)])
                loaded = ldmatrix_x4(to, load(self._shared, [place]), is_transposed=True)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = (m * (self._n8 // 2) + k16) * ELEMENTS
                    return [load(self._p_frag, [start + i * 4]) for i in range(2)]

                return sequence([loaded, self._products(self._acc, self._columns8, n16, a_rows)])

            return unrolled("n16", config.column16 // 16, over_columns)

        return unrolled("k16", config.block_n // 16, over_keys)

    def _keys_product(self, n: ir.Expr, group: int = 0) -> Product:
        """Multiply the queries of a warpgroup with a tile of keys."""
        config = self._config
        a: ir.TensorLoad | tuple[Operand, ir.TensorLoad] = load(self._q_frag, [index(0)])
        if config.is_ping_pong:
            place = config.q_rows.element(index(group * M), index(0), index(0))
            a = Operand(True, config.block_m * ROW_BYTES), load(self._shared, [place])
        b = self._tile_operand(n, config.k_rows(), True)
        return Product(config.block_n, config.depth16, load(self._s, [index(0)]), a, b, False)

    def _values_product(self, n: ir.Expr) -> Product:
        """Multiply the weights of a warpgroup with a tile of values."""
        config = self._config
        acc, a = (load(x, [index(0)]) for x in (self._acc, self._p_frag))
        b = self._tile_operand(n, config.v_rows(), False)
        return Product(config.column16, config.block_n, acc, a, b, True)

    def _tile_operand(
        self, n: ir.Expr, rows: SwizzledRows, is_keys: bool
    ) -> tuple[Operand, ir.TensorLoad]:
        place = rows.element(self._stage(n), index(0), index(0))
        operand = Operand(is_keys, self._config.block_n * ROW_BYTES)
        return operand, load(self._shared, [place])
