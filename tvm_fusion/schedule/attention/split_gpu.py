"""Attention of few rows on a GPU, at the speed at which memory gives keys and values.

The keys of each head are split between blocks (Dao et al., "Flash-Decoding for long-context
inference", 2023). Some neighbouring threads share a key: each has its vectors of the queries, of
the key, of the value and of the results in registers, and the products are summed over the threads
by exchanges. Each such group of threads has its own running maximum and sum; those of a block are
brought together in shared memory, those of all blocks by a second launch: in a fixed order, so that
results are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Axis, Program
from ..address import same
from ..loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    loop,
    sequence,
    simplified,
    substitute,
    threads,
    when,
)
from .decode import Decode
from .lanes_gpu import summed_over_lanes
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_

UNROLLED = tirx.ForKind.UNROLLED


def split_gpu(program: Program, cut: Decode, sums: ir.Var, rest: ir.Var) -> tirx.PrimFunc:
    """Make the first kernel: what each block finds of its keys.

    Parameters
    ----------
    program : Program
        The group's.
    cut : Decode
        Its cut.
    sums : Var
        Gets weighed values, ``[pairs, rows, splits, columns]``, each against its own maximum.
    rest : Var
        Gets those maxima and sums of exponentials, ``[pairs, rows, 2, splits]``.
    """

    def body(number: ir.Expr) -> tirx.Stmt:
        return _Block(cut, number, sums, rest).stmt()

    whole = Program(program.inputs, (sums, rest), program.scalars, (), 0)
    return kernel(whole, threads("blockIdx.x", cut.blocks, body))


class _Block:
    """What one block does."""

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        self._cut, self._sums, self._rest = cut, sums, rest
        self._pair, part, self._split = coordinates(number, [cut.pairs, cut.parts, cut.splits])
        self._first = part * cut.rows  # row
        self._start = self._split * (cut.steps * cut.step)  # key
        self._count = index(cut.pattern.key.extent)
        self._deep = cut.depth // cut.lanes  # elements of a thread
        self._wide = cut.columns // cut.lanes

        def own(name: str, count: int, dtype: str = FLOAT) -> ir.Var:
            """Declare registers; lowering drops the thread's numbers."""
            return scratch([index(d) for d in (cut.groups, cut.lanes, count)], dtype, name, "local")

        self._query = own("query", cut.rows * self._deep)
        self._keys = [
            own(f"{x.source.name}_keys", cut.ahead * self._deep, str(x.ty.dtype)) for x in cut.keys
        ]
        self._values = [
            own(f"{x.source.name}_values", cut.ahead * self._wide, str(x.ty.dtype))
            for x in cut.values
        ]
        self._scores = own("scores", cut.rows * cut.ahead), own("sums", cut.rows * cut.ahead)
        self._out = own("out", cut.rows * self._wide)
        self._top, self._total = own("top", cut.rows), own("total", cut.rows)
        self._tops = self._shared("tops", cut.groups, cut.rows)
        self._totals = self._shared("totals", cut.groups, cut.rows)
        self._parts = self._shared("parts", cut.groups, cut.together * cut.columns)

    def _shared(self, name: str, *shape: int) -> ir.Var:
        return scratch([index(d) for d in shape], FLOAT, name, "shared")

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        cut = self._cut
        stmts = [cut.every(self._begin), loop("step", self._steps(), self._step)]
        stmts.append(cut.every(self._publish))
        for first in range(0, cut.rows, cut.together):
            rows = range(first, min(first + cut.together, cut.rows))
            stmts.append(cut.every(partial(self._level, rows)))
            stmts.append(cut.every(partial(self._add_up, rows)))
        buffers = [self._query, *self._keys, *self._values, *self._scores, self._out, self._top]
        buffers += [self._total, self._tops, self._totals, self._parts]
        return block("split", sequence(stmts), buffers)

    def _steps(self) -> ir.Expr:
        """Count the steps of this block; blocks behind the last key have none."""
        cut = self._cut
        if cut.is_even:
            return cut.steps
        left = tirx.max(self._count - self._start, index(0))
        return tirx.min(cut.steps, tirx.floordiv(left + (cut.step - 1), index(cut.step)))

    def _each(self, count: int, body: Callable[[ir.Expr], tirx.Stmt], name: str = "i"):
        return loop(name, count, body, UNROLLED)

    def _at(self, row: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Place of a row; those behind the last compute it once more, and are not stored."""
        number = self._first + row
        if self._cut.sharing.count % self._cut.rows:
            number = tirx.min(number, index(self._cut.sharing.count - 1))
        return self._cut.sharing.place(self._pair, simplified(number))

    def _along(self, held: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Position in a row of the ``held``-th element of a thread."""
        number, lane = coordinates(held, [index(self._deep), index(self._cut.width)])
        return (number * self._cut.lanes + t) * self._cut.width + lane

    def _begin(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        cut, pattern = self._cut, self._cut.pattern

        def row(r: ir.Expr) -> tirx.Stmt:
            def element(i: ir.Expr) -> tirx.Stmt:
                at = {**self._at(r), pattern.depth.var: self._along(i, t)}
                value = substitute(pattern.q, at)
                return tirx.BufferStore(self._query, value, [g, t, r * self._deep + i])

            def zero(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._out, float_(0), [g, t, r * self._wide + i])

            return sequence(
                [
                    self._each(self._deep, element),
                    self._each(self._wide, zero),
                    tirx.BufferStore(self._top, float_(LOWEST), [g, t, r]),
                    tirx.BufferStore(self._total, float_(0), [g, t, r]),
                ]
            )

        return self._each(cut.rows, row, "row")

    def _step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in the next keys."""
        cut = self._cut
        first = self._start + number * cut.step
        exchanges, found = summed_over_lanes(
            self._scores, cut.rows * cut.ahead, cut.lanes, cut.warp, cut.every
        )
        return sequence(
            [
                cut.every(lambda g, t: self._read(first, g, t)),
                *exchanges,
                cut.every(lambda g, t: self._weigh(found, first, g, t)),
            ]
        )

    def _key(self, first: ir.Expr, g: ir.Expr, slot: ir.Expr) -> ir.Expr:
        return first + slot * self._cut.groups + g

    def _inside(self, key: ir.Expr) -> ir.Expr:
        """Give the key itself, or the last one instead of those behind it."""
        return key if self._cut.is_even else tirx.min(key, self._count - 1)

    def _read(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Ask for keys and values, and multiply the keys."""
        cut, pattern = self._cut, self._cut.pattern

        def vectors(
            found: Sequence[ir.TensorLoad], own: Sequence[ir.Var], axis: Axis, size: int
        ) -> tirx.Stmt:
            def slot(s: ir.Expr) -> tirx.Stmt:
                at = {**self._at(0), pattern.key.var: self._inside(self._key(first, g, s))}

                def vector(n: ir.Expr) -> tirx.Stmt:
                    def one(x: ir.TensorLoad, register: ir.Var) -> tirx.Stmt:
                        def element(lane: ir.Expr) -> tirx.Stmt:
                            place = (n * cut.lanes + t) * cut.width + lane
                            held = s * size + n * cut.width + lane
                            value = substitute(x, {**at, axis.var: place})
                            return tirx.BufferStore(register, value, [g, t, held])

                        return loop("lane", cut.width, element, tirx.ForKind.VECTORIZED)

                    return sequence([one(*pair) for pair in zip(found, own, strict=True)])

                return self._each(size // cut.width, vector, "vector")

            return self._each(cut.ahead, slot, "slot")

        def products(s: ir.Expr) -> tirx.Stmt:
            key = self._inside(self._key(first, g, s))

            def row(r: ir.Expr) -> tirx.Stmt:
                where = [g, t, s * cut.rows + r]

                def term(i: ir.Expr) -> tirx.Stmt:
                    held = [g, t, s * self._deep + i]
                    known = {pattern.key.var: key, pattern.depth.var: self._along(i, t)}
                    value = self._operand(pattern.k, cut.keys, self._keys, held, known)
                    value = load(self._query, [g, t, r * self._deep + i]) * value
                    return tirx.BufferStore(
                        self._scores[0], load(self._scores[0], where) + value, where
                    )

                start = tirx.BufferStore(self._scores[0], float_(0), where)
                return sequence([start, self._each(self._deep, term)])

            return self._each(cut.rows, row, "row")

        return sequence(
            [
                vectors(cut.keys, self._keys, pattern.depth, self._deep),
                vectors(cut.values, self._values, pattern.column, self._wide),
                self._each(cut.ahead, products, "slot"),
            ]
        )

    def _operand(
        self,
        operand: ir.Expr,
        found: Sequence[ir.TensorLoad],
        own: Sequence[ir.Var],
        held: Sequence[ir.Expr],
        known: dict[ir.Var, ir.Expr],
    ) -> ir.Expr:
        """Compute an element of a key or a value from vectors in registers."""

        def swap(x: ir.TensorLoad) -> ir.Expr:
            pairs = zip(found, own, strict=True)
            return next((load(register, held) for y, register in pairs if same(x, y)), x)

        return substitute(substitute(operand, {}, swap), {**self._at(0), **known})

    def _weigh(self, scores: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring what is there to the new maximum, then add the values."""
        cut, pattern = self._cut, self._cut.pattern

        def row(r: ir.Expr) -> tirx.Stmt:
            mine, count = [g, t, r], cut.ahead
            highest = local("highest", [1], FLOAT)
            weight = local("weight", [1], FLOAT)
            top, total = load(self._top, mine), load(self._total, mine)
            now, factor = load(highest, [index(0)]), load(weight, [index(0)])

            def score(s: ir.Expr) -> tirx.Stmt:
                where, key = [g, t, s * cut.rows + r], self._key(first, g, s)
                at = {**self._at(r), pattern.key.var: self._inside(key)}
                value = substitute(pattern.score, {**at, pattern.raw: load(scores, where)})
                if not cut.is_even:
                    value = tirx.Select(key < self._count, value, float_(-float("inf")))
                return sequence(
                    [
                        tirx.BufferStore(scores, value, where),
                        tirx.BufferStore(highest, tirx.max(now, load(scores, where)), [0]),
                    ]
                )

            def scaled(i: ir.Expr) -> tirx.Stmt:
                where = [g, t, r * self._wide + i]
                return tirx.BufferStore(self._out, load(self._out, where) * factor, where)

            def value(s: ir.Expr) -> tirx.Stmt:
                key = self._inside(self._key(first, g, s))
                exponential = load(weight, [index(0)])
                at = {**self._at(r), pattern.key.var: key, pattern.exponential: exponential}
                power = tirx.exp(load(scores, [g, t, s * cut.rows + r]) - now)

                def column(i: ir.Expr) -> tirx.Stmt:
                    where, held = [g, t, r * self._wide + i], [g, t, s * self._wide + i]
                    known = {pattern.key.var: key, pattern.column.var: self._along(i, t)}
                    element = self._operand(pattern.v, cut.values, self._values, held, known)
                    return tirx.BufferStore(
                        self._out, load(self._out, where) + factor * element, where
                    )

                return sequence(
                    [
                        tirx.BufferStore(weight, power, [0]),
                        tirx.BufferStore(self._total, total + factor, mine),
                        tirx.BufferStore(weight, substitute(pattern.weight, at), [0]),
                        self._each(self._wide, column),
                    ]
                )

            stmts = [
                tirx.BufferStore(highest, top, [0]),
                self._each(count, score, "slot"),
                tirx.BufferStore(weight, tirx.exp(top - now), [0]),
                tirx.BufferStore(self._top, now, mine),
                tirx.BufferStore(self._total, total * factor, mine),
                self._each(self._wide, scaled),
                self._each(count, value, "slot"),
            ]
            return block("weigh", sequence(stmts), [highest, weight])

        return self._each(cut.rows, row, "row")

    def _publish(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Let all threads know every group's maxima and sums."""

        def row(r: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    tirx.BufferStore(self._tops, load(self._top, [g, t, r]), [g, r]),
                    tirx.BufferStore(self._totals, load(self._total, [g, t, r]), [g, r]),
                ]
            )

        return when(tirx.EQ(t, index(0)), self._each(self._cut.rows, row, "row"))

    def _level(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring results of some rows to the block's maximum, and share them."""
        cut = self._cut

        def row(number: ir.Expr) -> tirx.Stmt:
            r = number + rows.start
            highest, total = local("highest", [1], FLOAT), local("total_of_block", [1], FLOAT)
            now, all_ = load(highest, [index(0)]), load(total, [index(0)])

            def larger(other: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(highest, tirx.max(now, load(self._tops, [other, r])), [0])

            def term(other: ir.Expr) -> tirx.Stmt:
                power = tirx.exp(load(self._tops, [other, r]) - now)
                return tirx.BufferStore(total, all_ + load(self._totals, [other, r]) * power, [0])

            def column(i: ir.Expr) -> tirx.Stmt:
                value = load(self._out, [g, t, r * self._wide + i])
                value = value * tirx.exp(load(self._top, [g, t, r]) - now)
                place = number * cut.columns + self._along(i, t)
                return tirx.BufferStore(self._parts, value, [g, place])

            def store(which: int, value: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(
                    self._rest, value, [self._pair, self._first + r, which, self._split]
                )

            known = [
                tirx.BufferStore(total, float_(0), [0]),
                loop("group", cut.groups, term),
                store(0, now),
                store(1, all_),
            ]
            first = tirx.all(tirx.EQ(g, index(0)), tirx.EQ(t, index(0)), self._is_row(r))
            stmts = [
                tirx.BufferStore(highest, float_(LOWEST), [0]),
                loop("group", cut.groups, larger),
                self._each(self._wide, column),
                when(first, sequence(known)),
            ]
            return block("level", sequence(stmts), [highest, total])

        return self._each(len(rows), row, "row")

    def _is_row(self, row: ir.Expr) -> ir.Expr:
        return self._first + row < self._cut.sharing.count

    def _add_up(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Add what the groups found, neighbouring threads side by side."""
        cut = self._cut
        total = local("sum_of_groups", [1], FLOAT)
        count = len(rows) * cut.columns

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * cut.threads + g * cut.lanes + t
            row, column = coordinates(flat, [index(len(rows)), index(cut.columns)])
            row = row + rows.start

            def term(other: ir.Expr) -> tirx.Stmt:
                found = load(self._parts, [other, flat])
                return tirx.BufferStore(total, load(total, [index(0)]) + found, [0])

            where = [self._pair, self._first + row, self._split, column]
            stmts = [
                tirx.BufferStore(total, float_(0), [0]),
                loop("group", cut.groups, term),
                when(
                    self._is_row(row),
                    tirx.BufferStore(self._sums, load(total, [index(0)]), where),
                ),
            ]
            stmt = block("sum", sequence(stmts), [total])
            return stmt if count % cut.threads == 0 else when(flat < count, stmt)

        return loop("item", -(-count // cut.threads), item)
