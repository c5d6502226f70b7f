"""Packed weights in blocks: numbers of 4 or 8 bits in lanes of columns, and factors beside them.

    numbers [panel][block][word][nr]   words of 32 bits, a lane for each column
    scale   [panel][block][nr]         in the file's type
    zero    [panel][block][nr]         where it is no constant

A word has a word's group of k for dot products: 4 bytes, or the low halves of 4 bytes and, of the
next 4 k, their high halves. One load, a mask and a shift make both words of bytes. For bfloat16,
adjacent k of 4 bits are 16 bits apart, so that each shift leaves a pair in place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import ir, tirx

from ...._tvm.buffer import declare
from ....core.expressions import load, loads
from ....core.loops import ceildiv, constant, index, substitute
from ....program.stage import Axis
from ..problem.block_quantized import BlockQuantized
from ..problem.gemm_view import GemmView
from ..problem.packing_function import Reordered
from ..problem.sum_of_products import SumOfProducts
from .operand_b import OperandB, Panel

_WORD, _GROUP, _BYTE = 32, 4, 8  # bits of a word, its bytes, and their bits
LOW_HALVES = 0x0F0F0F0F


class BlockWeights(OperandB):
    """Panels of a constant B in blocks, packed at compile time.

    Parameters
    ----------
    view : GemmView
        The GEMM over single terms.
    weights : BlockQuantized
        Its B.
    size : int
        Terms of a block here, a divisor of those that share factors.
    width : int
        Columns of a panel.
    by_pairs : bool
        Whether adjacent terms of 4 bits are in the halves of a word rather than in its bytes.
    """

    def __init__(
        self, view: GemmView, weights: BlockQuantized, size: int, width: int, by_pairs: bool
    ) -> None:
        super().__init__(view, width)
        self._by_pairs = by_pairs
        self.weights, self.size = weights, size
        self._axis, self._column = view.k_axes[-1], view.n_axes[-1]
        self._around = (*view.batch, *view.n_axes[:-1])
        self.words = size * weights.bits // _WORD
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
            """Return a number, from 0 up, in the place that it has in its word."""
            k = first + word.var * (_WORD // weights.bits) + term
            value = substitute(weights.numbers, {self._column.var: position, self._axis.var: k})
            value = tirx.Cast("int32", value) - tirx.const(weights.low, "int32")
            shift = tirx.const(self.shift_of(term), "int32")
            return tirx.shift_left(inside(value, position, k), shift)

        joined = part(0)
        for term in range(1, _WORD // weights.bits):
            joined = tirx.bitwise_or(joined, part(term))
        self._numbers = self._packed(weights.numbers, (*outer, word, lane), joined, "numbers")

        def factor(expr: ir.Expr, name: str) -> Reordered | None:
            if not loads(expr):
                return None
            core = expr.value if isinstance(expr, tirx.Cast) else expr
            place = {self._column.var: position, self._axis.var: first}
            value = inside(substitute(core, place), position, None)
            return self._packed(expr, (*outer, lane), value, name)

        self._scale, self._zero = factor(weights.scale, "scale"), factor(weights.zero, "zero")
        self.packed = [x for x in (self._numbers, self._scale, self._zero) if x is not None]

    def _packed(self, expr: ir.Expr, axes: Sequence[Axis], value: ir.Expr, name: str) -> Reordered:
        (source,) = {x.source for x in loads(expr)}
        shape = [index(a.extent) for a in axes]
        buffer = declare(shape, str(value.ty.dtype), f"{source.name}_{name}")
        return Reordered(source, buffer, tuple(axes), value)

    def shift_of(self, term: int) -> int:
        """Return the lowest bit of a number in its word."""
        if self._by_pairs and self.weights.bits < _BYTE:
            return term // 2 * self.weights.bits + term % 2 * (_WORD // 2)
        half, byte = divmod(term, _GROUP)
        return byte * _BYTE + half * self.weights.bits

    def word(self, panel: Panel, block: ir.Expr, number: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """Read words of numbers, one for each lane."""
        return load(self._numbers.buffer, [*self._place(panel, block), number, lane])

    def scale(self, panel: Panel, block: ir.Expr, lanes: tirx.Ramp) -> ir.Expr:
        """Read the scales of a block, in float32."""
        return self._factors(self._scale, self.weights.scale, panel, block, lanes)

    def zero(self, panel: Panel, block: ir.Expr, lanes: tirx.Ramp) -> ir.Expr:
        """Read the zero points of a block, as numbers are counted: from 0 up."""
        found = self._factors(self._zero, self.weights.zero, panel, block, lanes)
        low = tirx.const(float(self.weights.low), "float32")
        return found - tirx.Broadcast(low, lanes.lanes) if self.weights.low else found

    @property
    def constant_zero(self) -> float | None:
        """The zero point that all blocks share, from 0 up."""
        zero = self.weights.zero
        return float(zero.value) - self.weights.low if isinstance(zero, tirx.FloatImm) else None

    def _factors(
        self,
        packed: Reordered | None,
        expr: ir.Expr,
        panel: Panel,
        block: ir.Expr,
        lanes: tirx.Ramp,
    ) -> ir.Expr:
        if packed is None:
            return tirx.Broadcast(tirx.const(float(expr.value), "float32"), lanes.lanes)
        found = load(packed.buffer, [*self._place(panel, block), lanes])
        is_float32 = str(packed.buffer.ty.dtype) == "float32"
        return found if is_float32 else tirx.Cast(f"float32x{lanes.lanes}", found)

    def _place(self, panel: Panel, block: ir.Expr) -> list[ir.Expr]:
        return [*(panel.place[a.var] for a in self._around), panel.number, panel.first_k + block]

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the first word of a block."""
        return self.word(panel, reduced[-1], index(0), lane)


def is_packable(contraction: SumOfProducts, view: GemmView, constants: Collection[ir.Var]) -> bool:
    """Whether B is made of constants that nothing else reads, and of static extents."""
    sources = {x.source for x in loads(view.b)}
    if any(constant(a.extent) is None for a in (*view.batch, *view.n_axes, *view.k_axes)):
        return False
    others = [view.a, *(r.value for r in contraction.results)]
    read = {x.source for e in others for x in loads(e)}
    return bool(sources) and sources <= set(constants) and not sources & read
