"""The large factor as tensor cores take it: weights of a half type, or small integers with scales.

Scales are those of groups of terms. They multiply the sums of a group, in float32, not each weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

from tvm import ir, sym, tirx

from ...fusion.expressions import variables
from ..gpu.mma import CHUNK
from ..gpu.register_buffers import Registers
from ..gpu.vector_loads import Elements, Vector
from ..loops import sequence, substitute
from .dequantize import widened
from .dequantize_f16x2 import HalfNumbers, Part, scaled_number
from .skinny_mma_config import FragmentSlim, bare

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
    parts : list of list of Part
        For integers, of each column how the terms of each instruction are written.
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
        copies = cut.ahead * cut.pieces
        vectors = elements.vectors()
        # Scales of groups are parts of lines that the next steps' are parts of, too.
        scales = [v for v in vectors if len(v.elements) == 1 and tile.down in _variables(v)]
        self._registers = Registers(vectors, copies, cut.threads, is_stream=bool(scales))
        self.buffers = list(self._registers.arrays)
        self.order = [*range(tile.terms)]
        self.scales: list[Callable[[ir.Expr, Where, ir.Expr], ir.Expr]] | None = None
        self.parts: list[list[Part]] = []
        self._numbers: HalfNumbers | None = None
        if cut.is_quantised:
            self._read_numbers(cut)

    def _read_numbers(self, cut: FragmentSlim) -> None:
        split = [[scaled_number(weight) for weight in column] for column in self._weights]
        found = [[pair for pair in column if pair is not None] for column in split]
        numbers = [[number for number, _ in column] for column in found]
        self._numbers = HalfNumbers(numbers, self._registers, cut.half, cut.threads)
        self.order = self._numbers.order
        self.parts = [self._numbers.parts(column, CHUNK) for column in range(cut.width)]
        self.buffers.append(self._numbers.array)
        self.scales = [self._scale(column[0][1]) for column in found]

    def _scale(self, factors: Sequence[ir.Expr]) -> Callable[[ir.Expr, Where, ir.Expr], ir.Expr]:
        wide = [widened(factor, lambda _: None) for factor in factors]
        value = reduce(mul, wide) if wide else tirx.const(1, "float32")

        def scale(copy: ir.Expr, where: Where, thread: ir.Expr) -> ir.Expr:
            return substitute(self._registers.values(value, copy, thread), where)

        return scale

    def read(self, copy: ir.Expr, where: Where, thread: ir.Expr) -> tirx.Stmt:
        """Read a tile at some place into a copy."""
        return self._registers.fill(copy, where, None, thread)

    def convert(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Write a copy's integers as numbers; those of other copies are gone then."""
        return sequence([]) if self._numbers is None else self._numbers.fill(copy, thread)

    def value(
        self, column: int, term: int, copy: ir.Expr, where: Where, thread: ir.Expr
    ) -> ir.Expr:
        """Give a weight of the copy that was converted last."""
        if self._numbers is not None:
            return self._numbers.value(column, term, thread)
        held = self._registers.values(self._weights[column][term], copy, thread)
        return substitute(held, where)


def _variables(vector: Vector) -> set[ir.Var]:
    return {v for i in vector.first.indices for v in variables(i)}
