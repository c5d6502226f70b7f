"""Attention of few rows on tensor cores: each warp multiplies keys and values of its own."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ...fusion.expressions import load
from ..loops import coordinates, index, loop, sequence, substitute, when
from .decode import Decode
from .fragments_gpu import FRAGMENT, multiply
from .lanes_gpu import over_lanes
from .queries import Queries
from .rows_cpu import LOWEST, float_
from .split_block import SplitBlock
from .staged_gpu import VECTOR, Staged
from .tensor_cut import TENSOR_COLUMNS, TENSOR_DEPTH, TENSOR_KEYS

SHARERS = 4  # threads that share a row of a fragment


class TensorBlock(SplitBlock):
    """A block of warps: four threads share a row, and a vector of each of eight keys."""

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        super().__init__(cut, number, sums, rest, SHARERS, 1)
        self._half = str(cut.keys[0].ty.dtype)
        own = self._own
        self._deep = cut.depth // SHARERS  # elements of a key that a thread reads
        self._queries = Queries.of(cut)
        self._query = own("query", self._deep, self._half)
        self._keys = own("keys", TENSOR_KEYS // 8 * self._deep, self._half)
        self._values = own("values", TENSOR_KEYS // 8 * self._wide, self._half)
        pattern = cut.pattern
        # A quarter of a warp takes vectors of two keys, or of the values of four, two keys apart.
        memory, begin = Staged.memory(cut, self._half), cut.depth // VECTOR
        self._staged_keys = Staged(
            *(cut, memory, 0, pattern.k, cut.keys, pattern.depth),
            lambda key: key % 2 * SHARERS,
        )
        self._staged_values = Staged(
            *(cut, memory, begin, pattern.v, cut.values, pattern.column),
            lambda key: key // 2 % SHARERS * 2,
        )
        self._pieces = own("pieces", TENSOR_KEYS // 8 * self._wide, self._half)
        self._weights = own("weights", FRAGMENT, self._half)
        self._scores = own("scores", FRAGMENT)
        self._high = own("high", 1), own("highest", 1)
        self._whole = own("sum_of_lanes", 1)
        self._buffers += [self._query, self._keys, self._values, self._pieces, self._weights]
        self._buffers += [self._scores, *self._high, self._whole, memory]

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Four threads have a row."""
        row = tirx.floordiv(t, index(SHARERS))
        inside = tirx.all(row >= rows.start, row < rows.stop)
        return when(inside, body(row, index(0)))

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first of the four threads of a row speak."""
        return tirx.EQ(tirx.floormod(t, index(SHARERS)), index(0))

    def column(self, held: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Turn round how values were read: columns of a fragment are as far apart as vectors."""
        chunk, number, one = coordinates(held, [index(-1), index(VECTOR), index(2)])
        other = 2 * tirx.floormod(t, index(SHARERS)) + one
        return chunk * TENSOR_COLUMNS + other * VECTOR + number

    def _row(self, t: ir.Expr) -> dict[ir.Var, ir.Expr]:
        last = index(self._cut.rows - 1)
        return self._at(tirx.min(tirx.floordiv(t, index(SHARERS)), last))

    def _depth(self, chunk: ir.Expr, t: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return chunk * TENSOR_DEPTH + tirx.floormod(t, index(SHARERS)) * VECTOR + lane

    def begin(self) -> list[tirx.Stmt]:
        """Read the queries of a row as keys are read, and ask for the first steps.

        What is asked for first is there first, and all of these steps take a while.
        """
        stages = map(index, range(self._cut.stages))
        asks = [self._ask(x, n) for n in stages for x in (self._staged_keys, self._staged_values)]
        return [self._cut.every(self._read_queries), *asks]

    def _read_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        depth = self._cut.pattern.depth.var

        def chunk(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                at = {**self._row(t), depth: self._depth(number, t, lane)}
                value = substitute(self._queries.element, at)
                return tirx.BufferStore(self._query, value, [g, t, number * VECTOR + lane])

            kind = tirx.ForKind.VECTORIZED if self._queries.is_vector else tirx.ForKind.UNROLLED
            return loop("lane", VECTOR, element, kind)

        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._out, float_(0), [g, t, i])

        return sequence(
            [
                self._each(self._deep // VECTOR, chunk, "vector"),
                self._each(self._wide, zero),
                tirx.BufferStore(self._top, float_(LOWEST), [g, t, 0]),
                tirx.BufferStore(self._total, float_(0), [g, t, 0]),
            ]
        )

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in sixteen keys a warp, and ask for those of a later step in their place."""
        cut, later = self._cut, number + self._cut.stages

        def first(g: ir.Expr) -> ir.Expr:
            return self._start(number) + g * TENSOR_KEYS

        maxima, highest = over_lanes(self._high, 1, SHARERS, cut.warp, cut.every, tirx.max)
        return sequence(
            [
                cut.every(lambda g, t: self._take_keys(number, g, t)),
                cut.every(self._multiply_keys),
                self._ask(self._staged_keys, later),
                cut.every(lambda g, t: self._score(first(g), g, t)),
                *maxima,
                cut.every(lambda g, t: self._weigh(highest, first(g), g, t)),
                cut.every(lambda g, t: self._take_values(number, g, t)),
                cut.every(self._turn_values),
                cut.every(self._multiply_values),
                self._ask(self._staged_values, later),
            ]
        )

    def _ask(self, staged: Staged, number: ir.Expr) -> tirx.Stmt:
        """Ask for keys or for values of a step."""

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            def place(key: ir.Expr) -> dict[ir.Var, ir.Expr]:
                key = self._inside(self._start(number) + g * TENSOR_KEYS + key)
                return {**self._at(0), self._cut.pattern.key.var: key}

            return staged.ask(number, number < self._steps(), place, g, t)

        return self._cut.every(thread)

    def _take_keys(self, number: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take a thread's vectors of every eighth key."""
        row, lane = coordinates(t, [8, index(SHARERS)])
        count = 2 * self._deep // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            b, chunk = coordinates(own, [2, index(count // 2)])
            return b * 8 + row, chunk * SHARERS + lane

        return self._staged_keys.take(number, self._keys, count, which, g, t)

    def _take_values(self, number: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take vectors of the values of a thread's own keys."""
        row, lane = coordinates(t, [8, index(SHARERS)])
        count = 2 * self._wide // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            chunk, b, one = coordinates(own, [index(-1), 2, 2])
            return b * 8 + lane * 2 + one, chunk * 8 + row

        return self._staged_values.take(number, self._values, count, which, g, t)

    def _multiply_keys(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._scores, float_(0), [g, t, i])

        def one(number: ir.Expr) -> tirx.Stmt:
            piece, b = coordinates(number, [index(-1), 2])
            start = piece * FRAGMENT
            return multiply(
                load(self._scores, [g, t, b * 2]),
                load(self._query, [g, t, start]),
                load(self._keys, [g, t, start + b * self._deep]),
            )

        products = self._each(2 * self._deep // FRAGMENT, one, "fragment")
        return sequence([self._each(FRAGMENT, zero), products])

    def _own_key(self, first: ir.Expr, t: ir.Expr, i: ir.Expr) -> ir.Expr:
        """Key of a thread's ``i``-th score."""
        b, one = coordinates(i, [2, 2])
        return first + b * 8 + tirx.floormod(t, index(SHARERS)) * 2 + one

    def _score(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the largest of a thread's scores."""
        pattern, high = self._cut.pattern, self._high[0]

        def one(i: ir.Expr) -> tirx.Stmt:
            where, key = [g, t, i], self._own_key(first, t, i)
            at = {**self._row(t), pattern.key.var: self._inside(key)}
            raw = load(self._scores, where)
            if self._queries.factor is not None:
                raw = raw * substitute(self._queries.factor, at)
            value = substitute(pattern.score, {**at, pattern.raw: raw})
            if not self._cut.is_even:
                value = tirx.Select(key < self._count, value, float_(-float("inf")))
            larger = tirx.max(load(high, [g, t, index(0)]), load(self._scores, where))
            return sequence(
                [
                    tirx.BufferStore(self._scores, value, where),
                    tirx.BufferStore(high, larger, [g, t, 0]),
                ]
            )

        start = tirx.BufferStore(high, load(self._top, [g, t, index(0)]), [g, t, 0])
        return sequence([start, self._each(FRAGMENT, one)])

    def _weigh(self, highest: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring what is there to the new maximum, and make fragments of weights and values."""
        pattern, mine = self._cut.pattern, [g, t, index(0)]
        top, total, now = (load(b, mine) for b in (self._top, self._total, highest))

        def one(i: ir.Expr) -> tirx.Stmt:
            where = [g, t, i]
            power = load(self._scores, where)
            at = {**self._row(t), pattern.key.var: self._inside(self._own_key(first, t, i))}
            weight = substitute(pattern.weight, {**at, pattern.exponential: power})
            return sequence(
                [
                    tirx.BufferStore(self._scores, tirx.exp(power - now), where),
                    tirx.BufferStore(self._total, total + power, mine),
                    tirx.BufferStore(self._weights, tirx.Cast(self._half, weight), where),
                ]
            )

        def scaled(i: ir.Expr) -> tirx.Stmt:
            value = load(self._out, [g, t, i]) * load(self._whole, mine)
            return tirx.BufferStore(self._out, value, [g, t, i])

        return sequence(
            [
                tirx.BufferStore(self._whole, tirx.exp(top - now), mine),
                tirx.BufferStore(self._top, now, mine),
                tirx.BufferStore(self._total, total * load(self._whole, mine), mine),
                self._each(FRAGMENT, one),
                self._each(self._wide, scaled),
            ]
        )

    def _turn_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Make fragments of elements of several values."""

        def piece(i: ir.Expr) -> tirx.Stmt:
            chunk, number, key = coordinates(i, [index(-1), VECTOR, FRAGMENT])
            value = load(self._values, [g, t, (chunk * FRAGMENT + key) * VECTOR + number])
            return tirx.BufferStore(self._pieces, value, [g, t, i])

        return self._each(2 * self._wide, piece)

    def _multiply_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(number: ir.Expr) -> tirx.Stmt:
            return multiply(
                load(self._out, [g, t, number * 2]),
                load(self._weights, [g, t, index(0)]),
                load(self._pieces, [g, t, number * FRAGMENT]),
            )

        return self._each(self._wide // 2, one, "fragment")

    def last(self) -> list[tirx.Stmt]:
        """Sum the exponentials of a row over its threads."""
        pair = self._total, self._whole
        stmts, found = over_lanes(pair, 1, SHARERS, self._cut.warp, self._cut.every)
        self._total = found
        return stmts
