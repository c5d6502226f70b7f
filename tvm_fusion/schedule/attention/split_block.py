"""What a block does with what its groups of threads found, however they found it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
    block,
    coordinates,
    index,
    local,
    loop,
    sequence,
    simplified,
    substitute,
    when,
)
from ..address import same
from .decode import Decode
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_

UNROLLED = tirx.ForKind.UNROLLED


class SplitBlock(ABC):
    """One block of the first launch: some rows, and a part of the keys.

    Every group of its threads goes through keys of its own, with its own running maxima and sums.
    At last these are shared, and added up against the maxima of the block.

    Parameters
    ----------
    cut : Decode
        How keys are given to blocks and threads.
    number : PrimExpr
        Of the block.
    sums, rest : Var
        As of :func:`~tvm_fusion.schedule.attention.split_gpu.split_gpu`.
    sharers, slots : int
        Threads of a group that share the columns of a row, and rows of a thread.
    """

    def __init__(
        self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var, sharers: int, slots: int
    ) -> None:
        self._cut, self._sums, self._rest = cut, sums, rest
        self._pair, part, self._split = coordinates(number, [cut.pairs, cut.parts, cut.splits])
        self._first = part * cut.rows  # row
        self._count = index(cut.pattern.key.extent)
        self._wide = cut.columns // sharers  # columns of a thread
        self._out = self._own("out", slots * self._wide)
        self._top, self._total = self._own("top", slots), self._own("total", slots)
        self._tops = self._shared("tops", cut.groups, cut.rows)
        self._totals = self._shared("totals", cut.groups, cut.rows)
        self._parts = self._shared("parts", cut.groups, cut.together * cut.pitch)
        self._buffers = [self._out, self._top, self._total]
        self._buffers += [self._tops, self._totals, self._parts]

    def _own(self, name: str, count: int, dtype: str = FLOAT) -> ir.Var:
        """Declare registers; lowering drops the thread's numbers."""
        shape = (self._cut.groups, self._cut.lanes, count)
        return scratch([index(d) for d in shape], dtype, name, "local")

    def _shared(self, name: str, *shape: int) -> ir.Var:
        return scratch([index(d) for d in shape], FLOAT, name, "shared")

    @abstractmethod
    def begin(self) -> list[tirx.Stmt]:
        """Read the queries; nothing is found yet."""

    @abstractmethod
    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in the next keys."""

    @abstractmethod
    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run ``body(row, slot)`` for those of some rows that a thread holds in its slots."""

    @abstractmethod
    def column(self, number: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Say which column the ``number``-th result of a slot is."""

    @abstractmethod
    def leads(self, t: ir.Expr) -> ir.Expr:
        """Whether a thread is the one of those that share a row that speaks for them."""

    def held(self, slot: ir.Expr, number: ir.Expr) -> ir.Expr:
        """Say where the ``number``-th result of a slot is in registers."""
        return slot * self._wide + number

    def last(self) -> list[tirx.Stmt]:
        """Say what a group does behind its last step."""
        return []

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        cut = self._cut
        stmts = [*self.begin(), loop("step", self._steps(), self.step), *self.last()]
        for first in range(0, cut.rows, cut.together):
            rows = range(first, min(first + cut.together, cut.rows))
            stmts.append(cut.every(partial(self._share, rows)))
            stmts.append(cut.every(partial(self._add_up, rows)))
        return block("split", sequence(stmts), self._buffers)

    def _start(self, number: ir.Expr) -> ir.Expr:
        """Say which key a step begins with: blocks that share them read side by side."""
        return (number * self._cut.splits + self._split) * self._cut.step

    def _steps(self) -> ir.Expr:
        """Count the steps of this block."""
        cut = self._cut
        whole = tirx.floordiv(self._count, index(cut.round))
        if cut.is_even:
            return whole
        # No quotient of what is left for this block: TVM 0.27 divides negative multiples wrongly.
        left = tirx.floormod(self._count, index(cut.round))
        return whole + tirx.Select(self._split * cut.step < left, index(1), index(0))

    def _each(self, count: int, body: Callable[[ir.Expr], tirx.Stmt], name: str = "i"):
        return loop(name, count, body, UNROLLED)

    def _at(self, row: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Place of a row; those behind the last compute it once more, and are not stored."""
        number = self._first + row
        if self._cut.sharing.count % self._cut.rows:
            number = tirx.min(number, index(self._cut.sharing.count - 1))
        return self._cut.sharing.place(self._pair, simplified(number))

    def _key(self, first: ir.Expr, g: ir.Expr, slot: ir.Expr) -> ir.Expr:
        return first + slot * self._cut.groups + g

    def _inside(self, key: ir.Expr) -> ir.Expr:
        """Give the key itself, or the last one instead of those behind it."""
        return key if self._cut.is_even else tirx.min(key, self._count - 1)

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

    def _share(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Let all threads know what a group found of some rows."""

        def row(r: ir.Expr, slot: ir.Expr) -> tirx.Stmt:
            def column(i: ir.Expr) -> tirx.Stmt:
                place = self._cut.place(r - rows.start, self.column(i, t))
                value = load(self._out, [g, t, self.held(slot, i)])
                return tirx.BufferStore(self._parts, value, [g, place])

            known = [
                tirx.BufferStore(self._tops, load(self._top, [g, t, slot]), [g, r]),
                tirx.BufferStore(self._totals, load(self._total, [g, t, slot]), [g, r]),
            ]
            return sequence([self._each(self._wide, column), when(self.leads(t), sequence(known))])

        return self.own_rows(rows, t, row)

    def _is_row(self, row: ir.Expr) -> ir.Expr:
        return self._first + row < self._cut.sharing.count

    def _add_up(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Add what the groups found, neighbouring threads side by side."""
        cut = self._cut
        highest, total, weight = (local(n, [1], FLOAT) for n in ("highest", "sum", "weight"))
        now, sum_, factor = (load(x, [index(0)]) for x in (highest, total, weight))
        count = len(rows) * cut.columns

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * cut.threads + g * cut.lanes + t
            row, column = coordinates(flat, [index(len(rows)), index(cut.columns)])
            place = cut.place(row, column)
            row = row + rows.start

            def larger(other: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(highest, tirx.max(now, load(self._tops, [other, row])), [0])

            def added(found: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
                def term(other: ir.Expr) -> tirx.Stmt:
                    power = tirx.exp(load(self._tops, [other, row]) - now)
                    return sequence(
                        [
                            tirx.BufferStore(weight, power, [0]),
                            tirx.BufferStore(total, sum_ + found(other) * factor, [0]),
                        ]
                    )

                start = tirx.BufferStore(total, float_(0), [0])
                return sequence([start, self._each(cut.groups, term, "group")])

            def known(which: int, value: ir.Expr) -> tirx.Stmt:
                where = [self._pair, self._first + row, index(which), self._split]
                return tirx.BufferStore(self._rest, value, where)

            where = [self._pair, self._first + row, self._split, column]
            of_row = [
                known(0, now),
                added(lambda other: load(self._totals, [other, row])),
                known(1, sum_),
            ]
            results = [
                tirx.BufferStore(highest, float_(LOWEST), [0]),
                self._each(cut.groups, larger, "group"),
                added(lambda other: load(self._parts, [other, place])),
                tirx.BufferStore(self._sums, sum_, where),
                when(tirx.EQ(column, index(0)), sequence(of_row)),
            ]
            inside = self._is_row(row)
            if count % cut.threads:
                inside = tirx.all(flat < count, inside)
            return when(inside, sequence(results))

        stmt = self._each(-(-count // cut.threads), item, "item")
        return block("add_up", stmt, [highest, total, weight])
