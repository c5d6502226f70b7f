"""Products with weights in blocks: sums of a block in registers, then its scale.

    for block:
      part[mr][nr] = 0
      for word of the block:  numbers of nr columns, unpacked once for mr rows
        part += numbers * A                          float32, or dot products of bytes
      acc += part * scale (of A and of B)

The scale of a block multiplies its sum, not each weight. Of integers on both sides, sums of a block
are exact in int32; a zero point of B takes ``zero * sum of A's block`` from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import (
    block,
    ceildiv,
    constant,
    index,
    local,
    loop,
    sequence,
    substitute,
    unrolled,
    vectorized,
)
from .....program.stage import Axis
from ....cpu.register_tile import VectorUnit
from ...problem.block_quantized import BlockQuantized, block_quantized
from ...problem.gemm_view import GemmView
from ..accumulators import TilePlace, VectorAccumulators
from ..operands.a import DirectA, OperandA, RowBlock
from ..operands.b import OperandB
from .weights import BlockWeights

SPARE = 8  # registers for numbers, their masks and scales


@dataclass(frozen=True)
class BlockProduct(ABC):
    """How blocks of terms are multiplied, for a GEMM."""

    lanes: int  # columns of a vector
    size: int  # terms of a block
    axis: Axis  # the axis of K, over single terms
    weights: BlockQuantized  # B

    #: Products in the time of one of float32.
    speed = 1
    #: Whether A is of bytes, too.
    multiplies_bytes = False
    #: Most products of a term whose pairs are added up in int16.
    pair_sums = 0

    @property
    def by_pairs(self) -> bool:
        """Whether adjacent terms are in the halves of a word."""
        return not self.multiplies_bytes and self.weights.bits < 8

    @property
    def blocks(self) -> Axis:
        """The axis of K over blocks."""
        return Axis(tirx.Var("block", "int64"), ceildiv(self.axis.extent, self.size))

    @abstractmethod
    def operand_a(self, view: GemmView, rows: int) -> BlockRows:
        """Read A, of which a task has some rows."""

    def operand_b(self, packed: BlockWeights) -> OperandB:
        """Read packed weights."""
        return packed

    #: Bytes of a term of A that a task keeps or reads.
    term_bytes = 4

    def accumulators(
        self, view: GemmView, place: TilePlace, a: OperandA, b: OperandB
    ) -> VectorAccumulators:
        """Hold the sums of a tile."""
        assert isinstance(a, BlockRows)
        assert isinstance(b, BlockWeights)
        return BlockAccumulators(view, place, (a, b), self)

    #: Type of the sums of a block.
    part_dtype = "float32"

    def block(self, tile: BlockAccumulators, number: ir.Expr) -> tirx.Stmt:
        """Add the products of a block to a tile's sums."""
        raise NotImplementedError

    def of(self, view: GemmView) -> BlockProduct:
        """Return the same with the B of another view of the GEMM."""
        weights = block_quantized(view.b, self.axis)
        if weights is None:
            raise RuntimeError("a view of a B in blocks has none")
        return replace(self, weights=replace(weights, is_signed=self.weights.is_signed))

    def view(self, view: GemmView) -> GemmView:
        """Count K in blocks."""
        return replace(view, k_axes=(self.blocks,))

    def rows(self, unit: VectorUnit, vectors: int) -> int:
        """Return the most rows of a tile: sums of a block and of all blocks fit in registers."""
        return max(1, (unit.registers - SPARE) // (2 * vectors))


class BlockRows(DirectA):
    """A, read in place over single terms while K is counted in blocks.

    Where B's blocks have a minimum, a task sums up each block of its rows.

    Parameters
    ----------
    view
        The GEMM over single terms.
    height
        Rows of a task.
    """

    def __init__(self, view: GemmView, blocks: BlockProduct, height: int) -> None:
        super().__init__(view)
        self.blocks, self.height = blocks, height
        shape = [index(max(height, 2)), index(constant(blocks.blocks.extent) or 1)]
        self._totals = declare(shape, "float32", "row_totals")
        self._has_totals = bool(blocks.weights.minimum)

    def buffers(self) -> list[ir.Var]:
        """Return the sums of blocks, where they are needed."""
        return [self._totals] if self._has_totals else []

    def fill(self, rows: RowBlock) -> tirx.Stmt | None:
        """Sum up the blocks of a task's rows."""
        if not self._has_totals:
            return None
        size, lanes = self.blocks.size, self.blocks.lanes
        lanes = lanes if size % lanes == 0 else 1

        def one(i: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            parts, total = local("parts", [max(lanes, 2)], "float32"), self._totals

            def add(n: ir.Expr) -> tirx.Stmt:
                def element(lane: ir.Expr) -> tirx.Stmt:
                    value = self.term(rows, i, number * size + n * lanes + lane, False)
                    return tirx.BufferStore(parts, load(parts, [lane]) + value, [lane])

                return vectorized(lanes, element)

            def sum_(lane: ir.Expr) -> tirx.Stmt:
                value = load(total, [i, number]) + load(parts, [lane])
                return tirx.BufferStore(total, value, [i, number])

            none = tirx.const(0.0, "float32")
            stmts = [
                vectorized(lanes, lambda lane: tirx.BufferStore(parts, none, [lane])),
                loop("k", size // lanes, add),
                tirx.BufferStore(total, none, [i, number]),
                loop("lane", lanes, sum_),
            ]
            return block("total", sequence(stmts), [parts])

        count = tirx.min(index(self.height), self.rows - rows.start)
        blocks = self.blocks.blocks.extent
        return loop("row", count, lambda i: loop("block", blocks, lambda n: one(i, n)))

    def without_minimum(
        self,
        value: ir.Expr,
        rows: RowBlock,
        row: ir.Expr,
        number: ir.Expr,
        minimum: ir.Expr | None,
    ) -> ir.Expr:
        """Take the minimums of a block, times the sum of A's, from the products of a row."""
        if minimum is None:
            return value
        total = load(self._totals, [rows.slot + row, rows.first_k + number])
        return value - minimum * tirx.Broadcast(total, self.blocks.lanes)

    def value(
        self, value: ir.Expr, rows: RowBlock, row: ir.Expr, term: ir.Expr, clamp: bool = False
    ) -> ir.Expr:
        """Evaluate an expression of A at a row of a block of rows, and a term."""
        number = rows.start + row
        if clamp:
            number = tirx.min(number, self.rows - 1)
        place = {**rows.place, **self.row_place(number), self.blocks.axis.var: term}
        return substitute(value, place)

    def term(self, rows: RowBlock, row: ir.Expr, term: ir.Expr, clamp: bool) -> ir.Expr:
        """Read an element; zero beyond K."""
        value = self.value(self.view.a, rows, row, term, clamp)
        extent = constant(self.blocks.axis.extent)
        if extent is None or extent % self.blocks.size == 0:
            return value
        return tirx.if_then_else(term < index(extent), value, tirx.const(0, str(value.ty.dtype)))


class BlockAccumulators(VectorAccumulators):
    """Sums in vector registers, of which those of one block are apart."""

    def __init__(
        self,
        view: GemmView,
        place: TilePlace,
        operands: tuple[BlockRows, BlockWeights],
        product: BlockProduct,
    ) -> None:
        super().__init__(view, place, "float32", operands, None)
        self.rows, self.weights = operands
        self.product, self.place = product, place
        self.part = local("part", [place.height, place.width], product.part_dtype)
        self.pairs = local("pairs", [place.height, 2 * place.width], "int16")

    @property
    def buffers(self) -> list[ir.Var]:
        """The registers."""
        return [self.buffer, self.part, *([self.pairs] if self.product.pair_sums else [])]

    def accumulate(self) -> tirx.Stmt:
        """Multiply, block by block."""
        return loop("block", self.place.panel.k, lambda n: self.product.block(self, n))

    def vectors(self) -> list[tirx.Ramp]:
        """List the lanes of each vector of a row."""
        lanes = self.product.lanes
        starts = range(0, self.place.width, lanes)
        return [tirx.Ramp(index(start), index(1), lanes) for start in starts]

    def each_row(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Write a statement for every row."""
        return unrolled("i", self.place.height, body)

    def clear_part(self, initial: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Begin the sums of a block with numbers, by row."""

        def row(i: ir.Expr) -> tirx.Stmt:
            value = tirx.Broadcast(initial(i), self.product.lanes)
            return sequence([tirx.BufferStore(self.part, value, [i, v]) for v in self.vectors()])

        return self.each_row(row)

    def finish_part(
        self,
        number: ir.Expr,
        scaled: Callable[[ir.Expr, ir.Expr, ir.Expr, tirx.Ramp], ir.Expr],
        has_zeros: bool = False,
    ) -> tirx.Stmt:
        """Add the sums of a block to those of all blocks.

        Parameters
        ----------
        scaled
            Gives them by row, scale and zero points of a vector of columns, and its lanes.
        has_zeros
            Whether the zero points are read.
        """
        weights, panel = self.weights, self.place.panel

        def vector(v: tirx.Ramp) -> tirx.Stmt:
            binds: list[tirx.Stmt] = []
            scale = bound(binds, "scale", weights.scale(panel, number, v))
            zeros = scale
            if has_zeros:
                zeros = bound(binds, "zero", weights.zero(panel, number, v))
            minimum: ir.Expr | None = None
            if weights.has_minimum:
                minimum = bound(binds, "minimum", weights.minimum(panel, number, v))

            def row(i: ir.Expr) -> tirx.Stmt:
                own = self.place.offset + i
                value = scaled(i, scale, zeros, v)
                value = self.rows.without_minimum(value, self.place.rows, own, number, minimum)
                return tirx.BufferStore(self.buffer, load(self.buffer, [i, v]) + value, [i, v])

            return sequence([*binds, self.each_row(row)])

        return sequence([vector(v) for v in self.vectors()])


def bound(stmts: list[tirx.Stmt], name: str, value: ir.Expr) -> ir.Var:
    """Bind a value that several rows read."""
    var = tirx.Var(name, str(value.ty.dtype))
    stmts.append(tirx.Bind(var, value))
    return var


def lanes_of(value: int, lanes: int) -> ir.Expr:
    """Repeat a number in all lanes."""
    return tirx.Broadcast(tirx.const(value, "int32"), lanes)
