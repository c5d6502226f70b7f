"""Packed weights in blocks: numbers of 2, 4 or 8 bits in lanes of columns, and factors.

    numbers [panel][block][word][nr]   words of 32 bits, a lane for each column
    scale   [panel][block][nr]         in the file's type, of some blocks where they share it;
                                       integers of 4 bits of two blocks in a byte
    zero, minimum                      likewise, where they are no constants

A word has a word's group of k for dot products: 4 bytes, or the low halves of 4 bytes and, of the
next 4 k, their high halves (or four quarters). One load, masks and shifts make all words of bytes.
For bfloat16, adjacent k of 4 bits and fewer are 16 bits apart, so that each shift leaves a pair in
place; for dot products of int16, those of 8 bits are, too.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load, loads
from .....core.tir.loops import ceildiv, constant, index, prefetch, substitute
from .....program.stage import Axis
from ....instructions.cpu import WORD
from ...problem.block_quantized import BlockQuantized, Factor, value_range
from ...problem.functions.packing import Reordered
from ...problem.gemm_view import GemmView
from ...problem.sum_of_products import SumOfProducts
from ..operands.b import OperandB, Panel

_GROUP, BYTE = 4, 8  # bytes of a word, and their bits
# Bytes of numbers behind those that are multiplied. Of 40,000 x 896 numbers of 4 bits, one row took
# 1.95 ms without them and 0.90 with, eight rows 3.3 and 2.3 (Xeon with AMX, one busy core).
AHEAD = 4096


@dataclass(frozen=True, eq=False)
class _PackedFactor:
    """A factor that some blocks share."""

    packed: Reordered
    blocks: int
    together: int  # in a byte


class BlockWeights(OperandB):
    """Panels of a constant B in blocks, packed at compile time.

    Parameters
    ----------
    view
        The GEMM over single terms.
    size
        Terms of a block here, a divisor of those that share factors.
    width
        Columns of a panel.
    by_pairs
        Whether adjacent terms are in the halves of a word rather than in its bytes.
    """

    def __init__(
        self, view: GemmView, weights: BlockQuantized, size: int, width: int, by_pairs: bool
    ) -> None:
        super().__init__(view, width)
        self._by_pairs = by_pairs
        self.weights, self.size = weights, size
        self._axis, self._column = view.k_axes[-1], view.n_axes[-1]
        self._around = (*view.batch, *view.n_axes[:-1])
        self.words = size * weights.bits // WORD
        number = Axis(tirx.Var("panel", "int64"), ceildiv(self._column.extent, width))
        lane = Axis(tirx.Var("lane", "int64"), index(width))
        block = Axis(tirx.Var("block", "int64"), ceildiv(self._axis.extent, size))
        word = Axis(tirx.Var("word", "int64"), index(self.words))
        outer = (*self._around, number, block)
        position = number.var * width + lane.var
        first = block.var * size

        def inside(value: ir.Expr, column: ir.Expr, term: ir.Expr | None) -> ir.Expr:
            """Choose zeros beyond the last column and the last term."""
            limits = []
            if (constant(self._column.extent) or 0) % width:
                limits.append(column < index(self._column.extent))
            if term is not None and (constant(self._axis.extent) or 0) % size:
                limits.append(term < index(self._axis.extent))
            for limit in limits:
                value = tirx.if_then_else(limit, value, tirx.const(0, str(value.ty.dtype)))
            return value

        def part(term: int) -> ir.Expr:
            """Return a number, as it is stored, in the place that it has in its word."""
            k = first + word.var * (WORD // weights.bits) + term
            value = substitute(weights.numbers, {self._column.var: position, self._axis.var: k})
            value = tirx.Cast("int32", value) - tirx.const(weights.origin, "int32")
            if weights.is_signed:
                value = tirx.bitwise_and(value, tirx.const(255, "int32"))
            shift = tirx.const(self.shift_of(term), "int32")
            return tirx.shift_left(inside(value, position, k), shift)

        joined = part(0)
        for term in range(1, WORD // weights.bits):
            joined = tirx.bitwise_or(joined, part(term))
        self._numbers = self._packed(weights.numbers, (*outer, word, lane), joined, "numbers")

        def factor(shared: Factor, name: str) -> _PackedFactor | float:
            if not loads(shared.value):
                return float(shared.value.value)
            core = shared.value
            while isinstance(core, tirx.Cast):
                core = core.value
            own = max(1, min(shared.size, size * count) // size)
            many = Axis(tirx.Var("block", "int64"), index(-(-count // own)))
            place = {self._column.var: position, self._axis.var: many.var * (own * size)}
            value = inside(substitute(core, place), position, None)
            bounds = value_range(core)
            together = 2 if bounds and bounds[0] >= 0 and bounds[1] < 16 else 1
            if together > 1:
                value, many = _in_halves(value, many)
            axes = (*self._around, number, many, lane)
            packed = self._packed(shared.value, axes, value, name)
            return _PackedFactor(packed, own, together)

        count = constant(block.extent) or 1
        self._scale = [factor(x, "scale") for x in weights.scale]
        self._minimum = [factor(x, "minimum") for x in weights.minimum]
        self._zero = factor(weights.zero, "zero")
        every = [*self._scale, *self._minimum, self._zero]
        self.packed = [self._numbers, *(x.packed for x in every if isinstance(x, _PackedFactor))]

    def _packed(self, expr: ir.Expr, axes: Sequence[Axis], value: ir.Expr, name: str) -> Reordered:
        (source,) = {x.source for x in loads(expr)}
        shape = [index(a.extent) for a in axes]
        buffer = declare(shape, str(value.ty.dtype), f"{source.name}_{name}")
        return Reordered(source, buffer, tuple(axes), value)

    def shift_of(self, term: int) -> int:
        """Return the lowest bit of a number in its word."""
        if self._by_pairs:
            return term // 2 * self.weights.bits + term % 2 * (WORD // 2)
        half, byte = divmod(term, _GROUP)
        return byte * BYTE + half * self.weights.bits

    def word(self, panel: Panel, block: ir.Expr, number: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """Read words of numbers, one for each lane."""
        return load(self._numbers.buffer, [*self._place(panel, block), number, lane])

    def number(
        self, packed: ir.Var, term: int, panel: Panel, block: ir.Expr, lanes: tirx.Ramp
    ) -> ir.Expr:
        """Unpack the numbers of one term of a word, less their zero points, in float32."""
        count, bits, zero = lanes.lanes, self.weights.bits, self.constant_zero
        shift = self.shift_of(term)
        moved = tirx.shift_right(packed, _all(shift, count)) if shift else packed
        if count == 16 and bits < BYTE and zero is not None:
            # A permutation reads the four lowest bits of each lane: a table of all 16 numbers.
            values = [tirx.const(n % (1 << bits) - zero, "float32") for n in range(16)]
            table = tirx.Shuffle(values, [tirx.const(n, "int32") for n in range(16)])
            name = "llvm.x86.avx512.permvar.sf.512"
            return tirx.call_llvm_pure_intrin("float32x16", name, table, moved)
        moved = tirx.bitwise_and(moved, _all((1 << bits) - 1, count))
        return tirx.Cast(f"float32x{count}", moved) - self.zero(panel, block, lanes)

    def ask_ahead(
        self, panel: Panel, block: ir.Expr, vectors: Sequence[tirx.Ramp]
    ) -> list[tirx.Stmt]:
        """Ask memory for the words of a block that is multiplied later."""
        row_bytes = self.width * WORD // 8
        later = block + -(-AHEAD // (self.words * row_bytes))
        return [
            prefetch(self.word(panel, later, index(word), v.base), 1)
            for word in range(self.words)
            for v in vectors
        ]

    def scale(self, panel: Panel, block: ir.Expr, lanes: tirx.Ramp) -> ir.Expr:
        """Read the scales of a block, in float32."""
        return self._product(self._scale, panel, block, lanes)

    def minimum(self, panel: Panel, block: ir.Expr, lanes: tirx.Ramp) -> ir.Expr:
        """Read the minimums of a block, in float32."""
        return self._product(self._minimum, panel, block, lanes)

    def zero(self, panel: Panel, block: ir.Expr, lanes: tirx.Ramp) -> ir.Expr:
        """Read the zero points of a block, as numbers are stored."""
        found = self._product([self._zero], panel, block, lanes)
        origin = tirx.const(float(self.weights.origin), "float32")
        return found - tirx.Broadcast(origin, lanes.lanes) if self.weights.origin else found

    @property
    def has_minimum(self) -> bool:
        """Whether blocks have a minimum."""
        return bool(self._minimum)

    @property
    def constant_zero(self) -> float | None:
        """The zero point that all blocks share, as numbers are stored."""
        return self._zero - self.weights.origin if isinstance(self._zero, float) else None

    def _product(
        self,
        factors: Sequence[_PackedFactor | float],
        panel: Panel,
        block: ir.Expr,
        lanes: tirx.Ramp,
    ) -> ir.Expr:
        found: ir.Expr | None = None
        for factor in factors:
            if isinstance(factor, _PackedFactor):
                *around, number = self._place(panel, block)
                number = tirx.floordiv(number, index(factor.blocks))
                byte = tirx.floordiv(number, index(factor.together))
                value = load(factor.packed.buffer, [*around, byte, lanes])
                if factor.together > 1:
                    half = tirx.floormod(number, index(factor.together))
                    value = _half(value, half, lanes.lanes)
                if str(factor.packed.buffer.ty.dtype) != "float32":
                    value = tirx.Cast(f"float32x{lanes.lanes}", value)
            else:
                value = tirx.Broadcast(tirx.const(factor, "float32"), lanes.lanes)
            found = value if found is None else found * value
        return tirx.Broadcast(tirx.const(1.0, "float32"), lanes.lanes) if found is None else found

    def _place(self, panel: Panel, block: ir.Expr) -> list[ir.Expr]:
        return [*(panel.place[a.var] for a in self._around), panel.number, panel.first_k + block]

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the first word of a block."""
        return self.word(panel, reduced[-1], index(0), lane)


def _all(value: int, lanes: int) -> ir.Expr:
    return tirx.Broadcast(tirx.const(value, "int32"), lanes)


def low_bits(bits: int, each: int = BYTE) -> int:
    """Return a mask of the low bits of each byte of a word, or of each part of other bits."""
    return sum(((1 << bits) - 1) << shift for shift in range(0, WORD, each))


def _in_halves(value: ir.Expr, blocks: Axis) -> tuple[ir.Expr, Axis]:
    """Join the numbers of 4 bits of two blocks in a byte."""
    count = constant(blocks.extent) or 1
    pair = Axis(tirx.Var("pair", "int64"), index(-(-count // 2)))
    low, high = (
        tirx.Cast("uint8", substitute(value, {blocks.var: pair.var * 2 + half})) for half in (0, 1)
    )
    if count % 2:
        none = tirx.const(0, "uint8")
        high = tirx.if_then_else(pair.var * 2 + 1 < index(count), high, none)
    return tirx.bitwise_or(low, tirx.shift_left(high, tirx.const(4, "uint8"))), pair


def _half(packed: ir.Expr, half: ir.Expr, lanes: int) -> ir.Expr:
    """Take the low or the high halves out of bytes, as words."""
    shift = tirx.Broadcast(tirx.Cast("int32", half * 4), lanes)
    moved = tirx.shift_right(tirx.Cast(f"int32x{lanes}", packed), shift)
    return tirx.bitwise_and(moved, _all(15, lanes))


def is_packable(contraction: SumOfProducts, view: GemmView, constants: Collection[ir.Var]) -> bool:
    """Whether B is made of constants that nothing else reads, and of static extents."""
    sources = {x.source for x in loads(view.b)}
    if any(constant(a.extent) is None for a in (*view.batch, *view.n_axes, *view.k_axes)):
        return False
    others = [view.a, *(r.value for r in contraction.results)]
    read = {x.source for e in others for x in loads(e)}
    return bool(sources) and sources <= set(constants) and not sources & read
