"""Weights in blocks times rows of int8 in blocks: dot products of bytes (VNNI, AVX2, NEON)."""

from dataclasses import dataclass
from functools import partial

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import block, constant, index, local, loop, sequence, simplified
from ....instructions.cpu import multiply
from ....instructions.instruction import Instruction
from ...problem.block_quantized import BlockQuantized
from ...problem.gemm_view import GemmView
from ..operands.a import RowBlock
from .product import BlockAccumulators, BlockProduct, BlockRows, lanes_of
from .weights import low_bits

_GROUP = 4  # terms of a word of bytes


@dataclass(frozen=True)
class ByteBlocks(BlockProduct):
    """Dot products of bytes, of an A in blocks as well: numbers of int8 with a scale each."""

    a: BlockQuantized  # A
    dot: Instruction  # what multiplies the weights' bytes with A's

    speed = 3
    part_dtype = "int32"
    multiplies_bytes = True
    term_bytes = 1

    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Read A in place, and sum up its blocks."""
        zero = self.integer_zero
        return ByteRows(view, self, rows, 1 if zero is None else -zero)

    @property
    def integer_zero(self) -> int | None:
        """The zero point that all blocks share, from 0 up, if it is an integer."""
        zero = self.weights.zero.value
        if not isinstance(zero, tirx.FloatImm) or not float(zero.value).is_integer():
            return None
        return int(float(zero.value)) - self.weights.low

    def block(self, tile: BlockAccumulators, number: ir.Expr) -> tirx.Stmt:
        """Multiply a block word by word, then by both scales."""
        weights, panel, rows = tile.weights, tile.place.panel, tile.place.rows
        assert isinstance(tile.rows, ByteRows)
        a, offset, clamp = tile.rows, tile.place.offset, tile.place.clamp
        bits = self.weights.bits
        parts = 8 // bits
        first = (rows.first_k + number) * self.size

        def add(k: ir.Expr, numbers: ir.Expr, v: ir.Expr, i: ir.Expr) -> tirx.Stmt:
            word = tirx.Broadcast(a.word(rows, offset + i, k, clamp), self.lanes)
            value = multiply(self.dot, numbers, word, load(tile.part, [i, v]))
            return tirx.BufferStore(tile.part, value, [i, v])

        def step(word: ir.Expr) -> tirx.Stmt:
            stmts: list[tirx.Stmt] = []
            for v in tile.vectors():
                packed = tirx.Var("word", f"int32x{self.lanes}")
                stmts.append(tirx.Bind(packed, weights.word(panel, number, word, v)))
                for part in range(parts):
                    numbers: ir.Expr = packed
                    if parts > 1:
                        moved = packed
                        if part:
                            moved = tirx.shift_right(packed, lanes_of(part * bits, self.lanes))
                        numbers = tirx.Var("numbers", f"int32x{self.lanes}")
                        masked = tirx.bitwise_and(moved, lanes_of(low_bits(bits), self.lanes))
                        stmts.append(tirx.Bind(numbers, masked))
                    k = first + (word * parts + part) * _GROUP
                    stmts.append(tile.each_row(partial(add, k, numbers, v)))
            return sequence(stmts)

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

        words = loop("word", weights.words, step, tirx.ForKind.UNROLLED)
        finish = tile.finish_part(number, scaled, has_zeros=zero is None)
        ahead = weights.ask_ahead(panel, number, tile.vectors())
        return sequence([*ahead, tile.clear_part(initial), words, finish])


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

    def buffers(self) -> list[ir.Var]:
        """Return the sums, where there is a zero point."""
        return [*super().buffers(), *([self._buffer] if self._factor else [])]

    def fill(self, rows: RowBlock) -> tirx.Stmt | None:
        """Sum up the blocks of a task's rows."""
        totals = super().fill(rows)
        if not self._factor:
            return totals
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
        sums = loop("row", count, lambda i: loop("block", blocks, lambda n: one(i, n)))
        return sums if totals is None else sequence([totals, sums])

    def word(self, rows: RowBlock, row: ir.Expr, term: ir.Expr, clamp: bool) -> ir.Expr:
        """Read four adjacent numbers of a row as one word."""
        found = self.value(self.numbers, rows, row, term, clamp)
        *outer, last = found.indices
        lanes = tirx.Ramp(simplified(last), index(1), _GROUP)
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
