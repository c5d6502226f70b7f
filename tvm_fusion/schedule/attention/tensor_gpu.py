"""Attention of few rows on tensor cores: each warp multiplies keys and values of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tvm import ir, tirx

from ...fusion.expressions import load
from ..gpu.mma import CHUNK, LINES, SHARERS, SUMS, multiply
from ..gpu.movmatrix import movmatrix
from ..gpu.warp import Combine, warp_all_reduce
from ..loops import coordinates, index, sequence, substitute, when
from .decode import Decode
from .rows_cpu import float_
from .staged_gpu import VECTOR
from .tensor_cut import TENSOR_COLUMNS, TENSOR_KEYS
from .tensor_reads import PAIR, TensorReads


class TensorBlock(TensorReads):
    """A block of warps: a line of four threads has two of sixteen keys, each thread two rows.

    Keys, and columns of values, are the sixteen rows of a product on tensor cores; the eight
    columns are rows of queries, or of weights.
    """

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        super().__init__(cut, number, sums, rest)
        own = self._own
        self._pieces = own("pieces", CHUNK * self._wide, self._half)
        self._weights = own("weights", CHUNK, self._half)
        self._scores = own("scores", SUMS)
        self._high = own("high", PAIR), own("highest", PAIR)
        self._factor = own("factor", PAIR)
        self._buffers += [self._pieces, self._weights, self._scores, *self._high, self._factor]

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run through both rows of a thread."""

        def one(slot: ir.Expr) -> tirx.Stmt:
            row = self._number(t, slot)
            inside = tirx.all(row >= rows.start, row < rows.stop)
            return when(inside, body(row, slot))

        return self._each(PAIR, one, "slot")

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first line speak."""
        return t < SHARERS

    def held(self, slot: ir.Expr, number: ir.Expr) -> ir.Expr:
        """Say where a result is: those of the rows of a column are beside each other."""
        return number * PAIR + slot

    def column(self, held: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Give a line the columns of the vectors that its threads took."""
        chunk, number = coordinates(held, [index(-1), index(VECTOR)])
        return chunk * TENSOR_COLUMNS + tirx.floordiv(t, index(SHARERS)) * VECTOR + number

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in sixteen keys a warp, and ask for those of a later step in their place."""
        cut, later = self._cut, number + self._cut.stages

        def first(g: ir.Expr) -> ir.Expr:
            return self._start(number) + g * TENSOR_KEYS

        maxima, highest = self._over_lines(self._high, tirx.max)
        return sequence(
            [
                cut.every(lambda g, t: self._take_keys(number, g, t)),
                cut.every(self._multiply_keys),
                self._ask(self._staged_keys, later),
                cut.every(lambda g, t: self._score(first(g), g, t)),
                *maxima,
                cut.every(lambda g, t: self._weigh(highest, first(g), g, t)),
                cut.every(lambda g, t: self._take_values(number, g, t)),
                cut.every(self._turn_weights),
                cut.every(self._turn_values),
                cut.every(self._multiply_values),
                self._ask(self._staged_values, later),
            ]
        )

    def _multiply_keys(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._scores, float_(0), [g, t, i])

        def one(number: ir.Expr) -> tirx.Stmt:
            start = number * CHUNK
            pair = [load(self._keys, [g, t, start + i * self._deep]) for i in range(2)]
            query = load(self._query, [g, t, start])
            return multiply(self._half, load(self._scores, [g, t, index(0)]), pair, query)

        products = self._each(self._deep // CHUNK, one, "fragment")
        return sequence([self._each(SUMS, zero), products])

    def _own_key(self, first: ir.Expr, t: ir.Expr, b: ir.Expr) -> ir.Expr:
        """Key of a thread's ``b``-th scores."""
        return first + b * LINES + tirx.floordiv(t, index(SHARERS))

    def _over_lines(
        self, buffers: tuple[ir.Var, ir.Var], combine: Combine
    ) -> tuple[list[tirx.Stmt], ir.Var]:
        """Bring together what the lines of a warp have of the same rows."""
        cut = self._cut
        return warp_all_reduce(buffers, PAIR, cut.lanes, cut.warp, cut.every, combine, SHARERS)

    def _score(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the largest of a thread's scores of either row."""
        pattern, high = self._cut.pattern, self._high[0]

        def start(slot: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(high, load(self._top, [g, t, slot]), [g, t, slot])

        def one(i: ir.Expr) -> tirx.Stmt:
            b, slot = coordinates(i, [2, index(PAIR)])
            where, mine, key = [g, t, i], [g, t, slot], self._own_key(first, t, b)
            at = {**self._row(self._number(t, slot)), pattern.key.var: self._inside(key)}
            raw = load(self._scores, where)
            if self._queries.factor is not None:
                raw = raw * substitute(self._queries.factor, at)
            value = substitute(pattern.score, {**at, pattern.raw: raw})
            if not self._cut.is_even:
                value = tirx.Select(key < self._count, value, float_(-float("inf")))
            larger = tirx.max(load(high, mine), load(self._scores, where))
            return sequence(
                [
                    tirx.BufferStore(self._scores, value, where),
                    tirx.BufferStore(high, larger, mine),
                ]
            )

        return sequence([self._each(PAIR, start, "slot"), self._each(SUMS, one)])

    def _weigh(self, highest: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring what is there to the new maxima, and make weights of scores."""
        pattern = self._cut.pattern

        def level(slot: ir.Expr) -> tirx.Stmt:
            mine = [g, t, slot]
            top, now = load(self._top, mine), load(highest, mine)
            total = load(self._total, mine) * load(self._factor, mine)
            return sequence(
                [
                    tirx.BufferStore(self._factor, tirx.exp(top - now), mine),
                    tirx.BufferStore(self._top, now, mine),
                    tirx.BufferStore(self._total, total, mine),
                ]
            )

        def one(i: ir.Expr) -> tirx.Stmt:
            b, slot = coordinates(i, [2, index(PAIR)])
            where, mine, key = [g, t, i], [g, t, slot], self._own_key(first, t, b)
            power = load(self._scores, where)
            at = {**self._row(self._number(t, slot)), pattern.key.var: self._inside(key)}
            weight = substitute(pattern.weight, {**at, pattern.exponential: power})
            return sequence(
                [
                    tirx.BufferStore(self._scores, tirx.exp(power - load(highest, mine)), where),
                    tirx.BufferStore(self._total, load(self._total, mine) + power, mine),
                    tirx.BufferStore(self._weights, tirx.Cast(self._half, weight), where),
                ]
            )

        def scaled(i: ir.Expr) -> tirx.Stmt:
            slot = tirx.floormod(i, index(PAIR))
            value = load(self._out, [g, t, i]) * load(self._factor, [g, t, slot])
            return tirx.BufferStore(self._out, value, [g, t, i])

        return sequence(
            [
                self._each(PAIR, level, "slot"),
                self._each(SUMS, one),
                self._each(PAIR * self._wide, scaled),
            ]
        )

    def _turn_weights(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Give each line the weights of a row, and its threads those of their keys."""

        def one(b: ir.Expr) -> tirx.Stmt:
            where = [g, t, b * PAIR]
            return movmatrix(load(self._turned, where), load(self._weights, where))

        return self._each(2, one)

    def _turn_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Make fragments of elements of several values."""

        def piece(i: ir.Expr) -> tirx.Stmt:
            chunk, number, key = coordinates(i, [index(-1), VECTOR, CHUNK])
            value = load(self._values, [g, t, (chunk * CHUNK + key) * VECTOR + number])
            return tirx.BufferStore(self._pieces, value, [g, t, i])

        return self._each(CHUNK * self._wide, piece)

    def _multiply_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(number: ir.Expr) -> tirx.Stmt:
            pair = [load(self._pieces, [g, t, (number * 2 + i) * CHUNK]) for i in range(2)]
            weights = load(self._turned, [g, t, index(0)])
            return multiply(self._half, load(self._out, [g, t, number * SUMS]), pair, weights)

        return self._each(self._wide // 2, one, "fragment")

    def last(self) -> list[tirx.Stmt]:
        """Sum the exponentials of each row over the lines."""
        stmts, self._total = self._over_lines((self._total, self._factor), operator.add)
        return stmts
