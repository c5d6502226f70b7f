"""Softmax over the scores of some rows, one row after the other, each along its keys in vectors."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import block, constant, index, local, loop, sequence, substitute
from ..expressions import plain_maximum
from ..vector_functions import decay
from ..vector_math import vector_math
from .lanes import along, folded, resolved, vector
from .pattern import FLOAT, Pattern
from .sizes import Sizes

LOWEST = -3.4028234663852886e38  # what a maximum starts from
Where = Mapping[ir.Var, ir.Expr]


def float_(value: float) -> ir.Expr:
    """Write a float32 constant."""
    return tirx.const(value, FLOAT)


class Rows:
    """Rows of a tile with their running maxima and sums.

    Attributes
    ----------
    rows : int
        How many are worked on at once.
    total : Var
        Sums of the rows so far, by slot.
    own, kept : list of Var
        Buffers of a tile of rows, and those that outlive it.
    """

    def __init__(self, pattern: Pattern, sizes: Sizes, rows: int, slots: int) -> None:
        self._pattern, self._sizes = pattern, sizes
        self.rows = rows
        self.total = scratch([index(slots)], FLOAT, "total")
        self._top = scratch([index(slots)], FLOAT, "top")
        self._slots = slots
        stats = [self.total, self._top]
        self.own: list[ir.Var] = stats if sizes.single else []
        self.kept: list[ir.Var] = [] if sizes.single else stats

    def start(self, out: ir.Var) -> tirx.Stmt:
        """Nothing has been seen of any row."""

        def row(slot: ir.Expr) -> tirx.Stmt:
            def clear(first: ir.Expr, width: int) -> tirx.Stmt:
                return vector(
                    width, lambda lane: tirx.BufferStore(out, float_(0), [slot, first + lane])
                )

            return sequence(
                [
                    tirx.BufferStore(self._top, float_(LOWEST), [slot]),
                    tirx.BufferStore(self.total, float_(0), [slot]),
                    along(self._sizes.columns, self._sizes.width, clear),
                ]
            )

        return loop("slot", self._slots, row)

    def pack(self, queries: ir.Var, where: Where, first: ir.Expr) -> tirx.Stmt:
        """Write ``queries[row, depth] = q``, each computed once for all keys."""
        pattern, lanes = self._pattern, self._sizes.lanes

        def row(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for d in range(0, self._sizes.depth, lanes):
                width = min(lanes, self._sizes.depth - d)

                def store(lane: ir.Expr, d: int = d, width: int = width) -> tirx.Stmt:
                    at = {**self._at(where, first + i), pattern.depth.var: lane + d}
                    value = resolved(substitute(pattern.q, at), lane, width)
                    return tirx.BufferStore(queries, vector_math(value, lane), [i, lane + d])

                stmts.append(vector(width, store))
            return sequence(stmts)

        return loop("i", self.rows, row)

    def softmax(
        self,
        scores: ir.Var,
        out: ir.Var,
        where: Where,
        query: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        """Replace scores by weights, and take their maxima and sums into account."""

        def row(i: ir.Expr) -> tirx.Stmt:
            at = self._at(where, query + i)
            return self._row(scores, out, at, i, slot + i, start, count)

        return loop("i", self.rows, row)

    def _row(
        self,
        scores: ir.Var,
        out: ir.Var,
        at: dict[ir.Var, ir.Expr],
        i: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        pattern, sizes = self._pattern, self._sizes
        lanes, zero = sizes.lanes, index(0)
        most, sums = local("most", [lanes], FLOAT), local("part", [lanes], FLOAT)
        now = local("now", [2], FLOAT)

        def fill(buffer: ir.Var, value: float) -> tirx.Stmt:
            return vector(lanes, lambda lane: tirx.BufferStore(buffer, float_(value), [lane]))

        def score(first: ir.Expr, width: int) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                raw = load(scores, [i, first + lane])
                keys = {**at, pattern.key.var: start + first + lane, pattern.raw: raw}
                value = vector_math(substitute(pattern.score, keys), lane)
                return tirx.BufferStore(scores, value, [i, first + lane])

            def larger(lane: ir.Expr) -> tirx.Stmt:
                pair = plain_maximum(load(most, [lane]), load(scores, [i, first + lane]))
                return tirx.BufferStore(most, pair, [lane])

            is_plain = pattern.score.same_as(pattern.raw)
            return sequence([*([] if is_plain else [vector(width, one)]), vector(width, larger)])

        def pad(position: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(scores, float_(-float("inf")), [i, position])

        def exponential(first: ir.Expr) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                value = decay(load(scores, [i, first + lane]) - load(now, [zero]))
                return tirx.BufferStore(scores, value, [i, first + lane])

            def add(lane: ir.Expr) -> tirx.Stmt:
                pair = load(sums, [lane]) + load(scores, [i, first + lane])
                return tirx.BufferStore(sums, pair, [lane])

            return sequence([vector(lanes, one), vector(lanes, add)])

        size = constant(count)
        vectors: ir.Expr | int
        if size is not None:
            vectors = -(-size // lanes)
            behind = loop("pad", vectors * lanes - size, lambda n: pad(n + size))
        else:
            vectors = tirx.floordiv(index(count) + (lanes - 1), index(lanes))
            behind = loop("pad", vectors * lanes - count, lambda n: pad(count + n))
        stmts = [
            fill(most, LOWEST),
            along(count, lanes, score),
            behind,
            folded(most, lanes, plain_maximum),
        ]
        if sizes.single:
            stmts.append(tirx.BufferStore(now, load(most, [zero]), [zero]))
        else:
            stmts.extend(self._rescale(out, most, now, slot))
        stmts.extend(
            [
                fill(sums, 0),
                loop("vector", vectors, lambda n: exponential(n * lanes)),
                folded(sums, lanes, lambda a, b: a + b),
            ]
        )
        total = load(sums, [zero])
        if not sizes.single:
            total = total + load(self.total, [slot])
        stmts.append(tirx.BufferStore(self.total, total, [slot]))
        stmts.append(self._weigh(scores, at, i, start, count))
        return block("row", sequence(stmts), [most, sums, now])

    def _rescale(self, out: ir.Var, most: ir.Var, now: ir.Var, slot: ir.Expr) -> list[tirx.Stmt]:
        """Bring what is there to the new maximum."""
        zero, one = index(0), index(1)

        def scale(first: ir.Expr, width: int) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                value = load(out, [slot, first + lane]) * load(now, [one])
                return tirx.BufferStore(out, value, [slot, first + lane])

            return vector(width, store)

        old = load(self._top, [slot])
        return [
            tirx.BufferStore(now, plain_maximum(old, load(most, [zero])), [zero]),
            tirx.BufferStore(now, decay(old - load(now, [zero])), [one]),
            tirx.BufferStore(self._top, load(now, [zero]), [slot]),
            tirx.BufferStore(self.total, load(self.total, [slot]) * load(now, [one]), [slot]),
            along(self._sizes.columns, self._sizes.width, scale),
        ]

    def _weigh(
        self,
        scores: ir.Var,
        at: dict[ir.Var, ir.Expr],
        i: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        """Apply what is done with softmax besides."""
        pattern = self._pattern
        if pattern.weight.same_as(pattern.exponential):
            return sequence([])

        def piece(first: ir.Expr, width: int) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                known = {pattern.exponential: load(scores, [i, first + lane])}
                keys = {**at, **known, pattern.key.var: start + first + lane}
                value = vector_math(substitute(pattern.weight, keys), lane)
                return tirx.BufferStore(scores, value, [i, first + lane])

            return vector(width, one)

        return along(count, self._sizes.lanes, piece)

    def _at(self, where: Where, query: ir.Expr) -> dict[ir.Var, ir.Expr]:
        if self._pattern.query is None:
            return dict(where)
        return {**where, self._pattern.query.var: query}
