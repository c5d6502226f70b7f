"""The sums of one thread of a product of few rows: tiles are read, then used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, tirx

from ...fusion.expressions import load
from ..gpu.register_buffers import Registers
from ..gpu.vector_loads import Elements
from ..loops import Body, index, local, sequence, substitute, unrolled
from .dequantize import common, has_integers, widened
from .gemv_config import Slim

Held = Callable[[ir.Expr, int, ir.Expr], ir.Expr]


class TileSums:
    """What adds tiles to a thread's sums.

    Parameters
    ----------
    cut : Slim
        The product.
    number, vector : Expr
        The block, and the tile of columns in it.
    sums : Var
        Registers of the sums.
    place : callable
        Where a sum is in them, from its number: rows, then pieces, then columns.

    Attributes
    ----------
    registers : list of Var
        What holds tiles.
    """

    def __init__(
        self,
        cut: Slim,
        number: ir.Expr,
        vector: ir.Expr,
        sums: ir.Var,
        place: Callable[[ir.Expr], list[ir.Expr]],
    ) -> None:
        self._cut, self._number, self._vector = cut, number, vector
        self._sums, self._place = sums, place
        tile, stage, dtype = cut.tile, cut.contraction.stage, cut.contraction.dtype
        analyzer = tile.analyzer((*stage.axes, *stage.reduce))
        values, weights = Elements(analyzer), Elements(analyzer)
        terms = range(tile.terms)
        self._values = [values.read(tile.at(cut.small, i, 0)) for i in terms]
        self._weights = [
            [weights.read(tile.at(cut.large, i, j)) for i in terms] for j in range(tile.width)
        ]
        self._is_quantised = has_integers(cut.large) and dtype == "float32"
        self._small = Registers(values.vectors(), cut.ahead * cut.count)
        self._large = Registers(weights.vectors(), cut.ahead * cut.pieces)
        self._value = local("values", [cut.count], dtype)
        self._weight = local("weight", [1], dtype)
        self._partial = local("partial", [cut.count * tile.width], dtype)
        own = [self._value, self._weight, self._partial]
        self.registers = [*self._large.arrays, *self._small.arrays, *own]

    def read(self, slot: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Read a tile of each piece, and what it meets of each row.

        Parameters
        ----------
        slot : Expr
            Which of the tiles that are held at once it becomes.
        step : Expr
            Which tile of the column it is.
        """
        return sequence([self.take(slot, step), self.read_rows(slot, step)])

    def read_rows(self, slot: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Read what a tile meets of each row."""

        def row(r: ir.Expr) -> tirx.Stmt:
            return self._small.fill(slot * self._cut.count + r, self._at(r, 0, step))

        return self._rows(row)

    def take(self, slot: ir.Expr, step: ir.Expr, held: Held | None = None) -> tirx.Stmt:
        """Read a tile of each piece where the large factor lies, or where else it is held.

        Parameters
        ----------
        slot, step : Expr
            As of :meth:`read`.
        held : callable, optional
            Gives an element by piece, vector and lane.
        """
        cut = self._cut

        def piece(p: ir.Expr) -> tirx.Stmt:
            source = None if held is None else partial(held, p)
            return self._large.fill(slot * cut.pieces + p, self._at(0, p, step), source)

        return unrolled("piece", cut.pieces, piece)

    def each_vector(
        self, step: ir.Expr, body: Callable[[ir.Expr, int, ir.TensorLoad], tirx.Stmt]
    ) -> tirx.Stmt:
        """Do something for the first element of every vector of a tile, by piece and number."""

        def piece(p: ir.Expr) -> tirx.Stmt:
            here = self._at(0, p, step)
            firsts = [substitute(v.load(index(0)), here) for v in self._large.vectors]
            return sequence([body(p, number, first) for number, first in enumerate(firsts)])

        return unrolled("piece", self._cut.pieces, piece)

    def use(self, slot: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Add what :meth:`read` has read."""
        return unrolled("piece", self._cut.pieces, lambda p: self._piece(slot, p, step))

    def _piece(self, slot: ir.Expr, piece: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        cut = self._cut
        copy, here = slot * cut.pieces + piece, self._at(0, piece, step)
        columns = [self._computed(column, copy) for column in self._weights]
        one = [index(0)]

        def hold(weight: ir.Expr) -> tirx.Stmt:
            value = substitute(self._large.values(weight, copy), here)
            return tirx.BufferStore(self._weight, value, one)

        def take(value: ir.Expr) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                held = self._given(value, slot, r, step)
                return tirx.BufferStore(self._value, self._widened(held), [r])

            return self._rows(row)

        def add(column: int, is_scaled: bool, is_first: bool) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                summand = load(self._value, [r]) * load(self._weight, one)
                if is_scaled and is_first:
                    return tirx.BufferStore(self._partial, summand, self._part(r, column))
                if is_scaled:
                    return _add(self._partial, self._part(r, column), summand)
                return _add(self._sums, self._total(r, piece, column), summand)

            return self._rows(row)

        def add_scaled(column: int) -> tirx.Stmt:
            def row(r: ir.Expr) -> tirx.Stmt:
                summand = load(self._partial, self._part(r, column)) * load(self._weight, one)
                return _add(self._sums, self._total(r, piece, column), summand)

            return self._rows(row)

        stmts = []
        for term, value in enumerate(self._values):
            stmts.append(take(value))
            for column, (weights, scale) in enumerate(columns):
                stmts += [hold(weights[term]), add(column, scale is not None, term == 0)]
        for column, (_, scale) in enumerate(columns):
            if scale is not None:
                stmts += [hold(scale), add_scaled(column)]
        return sequence(stmts)

    def _given(self, value: ir.Expr, slot: ir.Expr, row: ir.Expr, step: ir.Expr) -> ir.Expr:
        """Express what is over elements of a row by registers."""
        held = self._small.values(value, slot * self._cut.count + row)
        return substitute(held, self._at(row, 0, step))

    def _computed(
        self, column: Sequence[ir.Expr], copy: ir.Expr
    ) -> tuple[list[ir.Expr], ir.Expr | None]:
        """Express the weights of a column of the tile, and what multiplies all their products."""
        if not self._is_quantised:
            return [self._widened(weight) for weight in column], None
        return common([widened(w, lambda e: self._large.word(e, copy)) for w in column])

    def _widened(self, value: ir.Expr) -> ir.Expr:
        return tirx.Cast(self._cut.contraction.dtype, value)

    def _at(self, row: ir.Expr | int, piece: ir.Expr | int, step: ir.Expr) -> dict[ir.Var, ir.Expr]:
        place = self._cut.place(self._number, row, piece, self._vector)
        return place | {self._cut.tile.down: step}

    def _rows(self, body: Body) -> tirx.Stmt:
        return unrolled("row", self._cut.count, body)

    def _total(self, row: ir.Expr, piece: ir.Expr, column: int) -> list[ir.Expr]:
        return self._place((row * self._cut.pieces + piece) * self._cut.width + column)

    def _part(self, row: ir.Expr, column: int) -> list[ir.Expr]:
        return [row * self._cut.width + column]


def _add(buffer: ir.Var, place: list[ir.Expr], value: ir.Expr) -> tirx.Stmt:
    return tirx.BufferStore(buffer, load(buffer, place) + value, place)
