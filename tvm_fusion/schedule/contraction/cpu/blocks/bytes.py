"""Weights in blocks times rows of int8 in blocks: dot products of bytes (VNNI, AVX2, NEON).

Without VNNI, ``maddubs`` adds pairs of products in int16. Of small weights, so are the pairs of
several terms before they are widened. Weights beyond 7 bits are multiplied in int16.
"""

from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import (
    block,
    constant,
    index,
    local,
    loop,
    sequence,
    simplified,
    vectorized,
)
from ....instructions.cpu import WORD, add_pairs, multiply, pairs_of
from ....instructions.instruction import Instruction
from ...problem.block_quantized import BlockQuantized
from ...problem.gemm_view import GemmView
from ..operands.a import RowBlock
from .product import BlockAccumulators, BlockProduct, BlockRows, bound, lanes_of
from .weights import BYTE, low_bits


@dataclass(frozen=True)
class ByteBlocks(BlockProduct):
    """Dot products of bytes, of an A in blocks as well: numbers of int8 with a scale each."""

    a: BlockQuantized  # A
    dot: Instruction  # what multiplies the weights' bytes with A's

    speed = 3
    part_dtype = "int32"
    multiplies_bytes = True
    term_bytes = 1

    @property
    def by_pairs(self) -> bool:
        """Whether a dot product is of two terms."""
        return self.dot.k == 2

    @property
    def pair_sums(self) -> int:  # type: ignore[override]
        """Most products of a term whose pairs are added up in int16: their sums fit."""
        largest = 2 * 128 * (self.weights.high - self.weights.low)
        return (1 << 15) // (largest + 1) if self.dot.family == "maddubs" else 0

    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Read A in place, and sum up its blocks."""
        zero = self.integer_zero
        return ByteRows(view, self, rows, 1 if zero is None else -zero)

    @property
    def integer_zero(self) -> int | None:
        """The zero point that all blocks share, as stored, if it is an integer."""
        zero = self.weights.zero.value
        if not isinstance(zero, tirx.FloatImm) or not float(zero.value).is_integer():
            return None
        return int(float(zero.value)) - self.weights.origin

    def block(self, tile: BlockAccumulators, number: ir.Expr) -> tirx.Stmt:
        """Multiply a block word by word, then by both scales."""
        weights, panel, rows = tile.weights, tile.place.panel, tile.place.rows
        assert isinstance(tile.rows, ByteRows)
        a, offset, clamp = tile.rows, tile.place.offset, tile.place.clamp
        dot, parts = self.dot, WORD // self.weights.bits // self.dot.k
        first, last = (rows.first_k + number) * self.size, weights.words * parts - 1

        def add(n: int, numbers: ir.Expr, v: tirx.Ramp, i: ir.Expr) -> tirx.Stmt:
            word = a.word(rows, offset + i, first + n * dot.k, clamp)
            word, total = tirx.Broadcast(word, self.lanes), load(tile.part, [i, v])
            if not self.pair_sums:
                value = multiply(dot, numbers, word, total)
                return tirx.BufferStore(tile.part, value, [i, v])
            halves = tirx.Ramp(v.base * 2, index(1), 2 * self.lanes)
            pairs = pairs_of(dot, numbers, word)
            if n % self.pair_sums:
                pairs = load(tile.pairs, [i, halves]) + pairs
            if n != last and (n + 1) % self.pair_sums:
                return tirx.BufferStore(tile.pairs, pairs, [i, halves])
            return tirx.BufferStore(tile.part, add_pairs(dot, pairs, total), [i, v])

        words: list[tirx.Stmt] = []
        for n in range(weights.words):
            for v in tile.vectors():
                packed = bound(words, "word", weights.word(panel, number, index(n), v))
                for part in range(parts):
                    numbers = bound(words, "numbers", self._numbers(packed, part))
                    words.append(tile.each_row(partial(add, n * parts + part, numbers, v)))

        zero = self.integer_zero

        def initial(i: ir.Expr) -> ir.Expr:
            if not zero:
                return tirx.const(0, "int32")
            return a.sum(rows, offset + i, number)

        def scaled(i: ir.Expr, scale: ir.Expr, zeros: ir.Expr, v: tirx.Ramp) -> ir.Expr:
            part = tirx.Cast(f"float32x{self.lanes}", load(tile.part, [i, v]))
            if zero is None:
                total = tirx.Cast("float32", a.sum(rows, offset + i, number))
                part = part - zeros * tirx.Broadcast(total, self.lanes)
            of_a = tirx.Broadcast(a.scale(rows, offset + i, first, clamp), self.lanes)
            return part * (scale * of_a)

        finish = tile.finish_part(number, scaled, has_zeros=zero is None)
        ahead = weights.ask_ahead(panel, number, tile.vectors())
        return sequence([*ahead, tile.clear_part(initial), *words, finish])

    def _numbers(self, packed: ir.Expr, part: int) -> ir.Expr:
        """Take those of one dot product out of words."""
        bits, lanes = self.weights.bits, self.lanes
        if bits == BYTE and not self.by_pairs:
            return packed
        if bits == BYTE:  # the low or the high bytes of halves, with their signs
            halves = tirx.reinterpret(f"int16x{2 * lanes}", packed)
            byte = tirx.Broadcast(tirx.const(BYTE, "int16"), 2 * lanes)
            moved = halves if part else tirx.shift_left(halves, byte)
            return tirx.reinterpret(f"int32x{lanes}", tirx.shift_right(moved, byte))
        moved = tirx.shift_right(packed, lanes_of(part * bits, lanes)) if part else packed
        return tirx.bitwise_and(moved, lanes_of(low_bits(bits, WORD // self.dot.k), lanes))


class ByteRows(BlockRows):
    """A of int8 in blocks; a task sums up the numbers of each block of its rows.

    Parameters
    ----------
    factor
        Times which sums are wanted; 0 where none are.
    """

    def __init__(self, view: GemmView, blocks: ByteBlocks, rows: int, factor: int) -> None:
        super().__init__(view, blocks, rows)
        self.numbers, self._of_a = blocks.a.numbers, blocks.a.scale
        self._factor = factor
        count = constant(blocks.blocks.extent) or 1
        self._buffer = declare([index(max(rows, 2)), index(count)], "int32", "row_sums")
        # Terms in int16, where dot products are of these.
        self._is_wide, self._group = blocks.by_pairs, blocks.dot.k
        shape = [index(max(rows, 2)), index(count * blocks.size)]
        self._wide = declare(shape, "int16", "row_terms")

    def buffers(self) -> list[ir.Var]:
        """Return the sums, where there is a zero point, and the terms."""
        sums = [self._buffer] if self._factor else []
        return [*super().buffers(), *sums, *([self._wide] if self._is_wide else [])]

    def fill(self, rows: RowBlock) -> tirx.Stmt | None:
        """Sum up the blocks of a task's rows, and widen their terms."""
        stmts = [super().fill(rows), self._sum_up(rows), self._widen(rows)]
        found = [stmt for stmt in stmts if stmt is not None]
        return sequence(found) if found else None

    def _widen(self, rows: RowBlock) -> tirx.Stmt | None:
        if not self._is_wide:
            return None
        count = tirx.min(index(self.height), self.rows - rows.start)
        size = self.blocks.size

        def one(i: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            def term(k: ir.Expr) -> tirx.Stmt:
                k = number * size + k
                value = tirx.Cast("int16", self.value(self.numbers, rows, i, k))
                return tirx.BufferStore(self._wide, value, [i, k])

            return vectorized(size, term)

        blocks = self.blocks.blocks.extent
        return loop("row", count, lambda i: loop("block", blocks, lambda n: one(i, n)))

    def _sum_up(self, rows: RowBlock) -> tirx.Stmt | None:
        if not self._factor:
            return None
        count = tirx.min(index(self.height), self.rows - rows.start)
        size, buffer = self.blocks.size, self._buffer

        def one(i: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            total = local("total", [1], "int32")

            def add(k: ir.Expr) -> tirx.Stmt:
                value = self.value(self.numbers, rows, i, number * size + k)
                value = load(total, [0]) + tirx.Cast("int32", value)
                return tirx.BufferStore(total, value, [0])

            zero = tirx.BufferStore(total, tirx.const(0, "int32"), [0])
            value = load(total, [0]) * tirx.const(self._factor, "int32")
            store = tirx.BufferStore(buffer, value, [i, number])
            return block("total", sequence([zero, loop("k", size, add), store]), [total])

        blocks = self.blocks.blocks.extent
        return loop("row", count, lambda i: loop("block", blocks, lambda n: one(i, n)))

    def word(self, rows: RowBlock, row: ir.Expr, term: ir.Expr, clamp: bool) -> ir.Expr:
        """Read adjacent numbers of a row, as many as a dot product has, as one word."""
        if self._is_wide:
            pair = tirx.Ramp(simplified(term), index(1), self._group)
            return tirx.reinterpret("int32", load(self._wide, [rows.slot + row, pair]))
        found = self.value(self.numbers, rows, row, term, clamp)
        *outer, last = found.indices
        lanes = tirx.Ramp(simplified(last), index(1), self._group)
        return tirx.reinterpret("int32", load(found.source, [*outer, lanes]))

    def scale(self, rows: RowBlock, row: ir.Expr, term: ir.Expr, clamp: bool) -> ir.Expr:
        """Read the scale of the block that a term begins."""
        found: ir.Expr = tirx.const(1.0, "float32")
        for n, factor in enumerate(self._of_a):
            value = self.value(factor.value, rows, row, term, clamp)
            found = found * value if n else value
        return found

    def sum(self, rows: RowBlock, row: ir.Expr, number: ir.Expr) -> ir.Expr:
        """Read the sum of a block's numbers; rows beyond M have a place, too."""
        return load(self._buffer, [rows.slot + row, rows.first_k + number])
