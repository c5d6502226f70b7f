"""The large factor as tensor cores take it: weights of a half type, or small integers with scales.

Their vectors are copied to shared memory ahead of use. Scales are those of groups of terms: they
multiply the sums of a group, in float32, not each weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

from tvm import DataType, ir, sym, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ..copies_gpu import BYTES, copy
from ..loops import index, sequence, substitute
from .elements import Elements, Vector
from .fragment_slim import FragmentSlim, bare
from .half_numbers import HalfNumbers, scaled_number
from .registers import Registers
from .weights import widened

Where = dict[ir.Var, ir.Expr]


class FragmentWeights:
    """The weights of a thread's tile.

    Parameters
    ----------
    cut : FragmentSlim
        The product.
    analyzer : Analyzer
        Knows the ranges of what stands in indices.

    Attributes
    ----------
    order : list of int
        In which a tile's terms follow each other in fragments.
    scales : list of callable or None
        For integers, of each column the factor of its sums at a copy, a place and a thread.
    buffers : list of Var
        What holds weights.
    """

    def __init__(self, cut: FragmentSlim, analyzer: sym.Analyzer) -> None:
        tile, elements = cut.tile, Elements(analyzer)
        large = bare(cut.large)
        self._weights = [
            [elements.read(tile.at(large, i, j)) for i in range(tile.terms)]
            for j in range(tile.width)
        ]
        vectors = elements.vectors()
        copied = [vector for vector in vectors if _size(vector) == BYTES]
        others = [vector for vector in vectors if _size(vector) != BYTES]
        self._copied = Registers(copied, cut.pieces, cut.threads)
        self._others = Registers(others, cut.pieces, cut.threads)
        self._rings = [self._ring(vector, cut) for vector in copied]
        self.buffers = [*self._copied.arrays, *self._others.arrays, *self._rings]
        self.order = [*range(tile.terms)]
        self.scales: list[Callable[[ir.Expr, Where, ir.Expr], ir.Expr]] | None = None
        self._numbers: HalfNumbers | None = None
        if cut.is_quantised:
            self._read_numbers(cut)

    def _ring(self, vector: Vector, cut: FragmentSlim) -> ir.Var:
        shape = (cut.ahead, cut.pieces, *cut.ring, len(vector.elements))
        dtype = str(vector.first.ty.dtype)
        return scratch([index(d) for d in shape], dtype, "ring", "shared.dyn")

    def _read_numbers(self, cut: FragmentSlim) -> None:
        split = [[scaled_number(weight) for weight in column] for column in self._weights]
        found = [[pair for pair in column if pair is not None] for column in split]
        numbers = [[number for number, _ in column] for column in found]
        words = self._copied if self._copied.holds(numbers[0][0].field.element) else self._others
        self._numbers = HalfNumbers(numbers, words, cut.half, cut.threads)
        self.order = self._numbers.order
        self.buffers.append(self._numbers.array)
        self.scales = [self._scale(column[0][1]) for column in found]

    def _scale(self, factors: Sequence[ir.Expr]) -> Callable[[ir.Expr, Where, ir.Expr], ir.Expr]:
        wide = [widened(factor, lambda _: None) for factor in factors]
        value = reduce(mul, wide, tirx.const(1, "float32")) if not wide else reduce(mul, wide)

        def scale(copy: ir.Expr, where: Where, thread: ir.Expr) -> ir.Expr:
            return self._held(value, copy, where, thread)

        return scale

    def ask(self, slot: Sequence[ir.Expr], where: Where) -> tirx.Stmt:
        """Ask for the vectors of a tile, for a place in the rings."""
        copies = zip(self._rings, self._copied.vectors, strict=True)
        places = [(load(ring, [*slot, index(0)]), vector.first) for ring, vector in copies]
        return sequence([copy(to, substitute(first, where)) for to, first in places])

    def read(self, piece: ir.Expr, where: Where, thread: ir.Expr) -> tirx.Stmt:
        """Read what is not copied of a tile."""
        return self._others.fill(piece, where, None, thread)

    def take(self, slot: Sequence[ir.Expr], piece: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Take a tile from the rings."""

        def held(number: int, lane: ir.Expr) -> ir.Expr:
            return load(self._rings[number], [*slot, lane])

        return self._copied.fill(piece, {}, held, thread)

    def convert(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Make numbers of a copy's integers; those of other copies are gone then."""
        return sequence([]) if self._numbers is None else self._numbers.fill(copy, thread)

    def value(
        self, column: int, term: int, copy: ir.Expr, where: Where, thread: ir.Expr
    ) -> ir.Expr:
        """Give a weight of the copy that was converted last."""
        if self._numbers is not None:
            return self._numbers.value(column, term, thread)
        return self._held(self._weights[column][term], copy, where, thread)

    def _held(self, value: ir.Expr, copy: ir.Expr, where: Where, thread: ir.Expr) -> ir.Expr:
        value = self._others.values(self._copied.values(value, copy, thread), copy, thread)
        return substitute(value, where)


def _size(vector: Vector) -> int:
    return len(vector.elements) * DataType(str(vector.first.ty.dtype)).itemsize
