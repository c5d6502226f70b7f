"""What a block does with what its groups of threads found, however they found it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ..address import same
from ..loops import block, coordinates, index, local, loop, sequence, simplified, substitute, when
from .decode import Decode
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_

UNROLLED = tirx.ForKind.UNROLLED


class SplitBlock(ABC):
    """One block of the first launch: some rows, and a part of the keys.

    Every group of its threads goes through keys of its own, with its own running maxima and sums.
    At last these are brought to the maxima of the block, and added up in shared memory.

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
        stmts.append(cut.every(self._publish))
        for first in range(0, cut.rows, cut.together):
            rows = range(first, min(first + cut.together, cut.rows))
            stmts.append(cut.every(partial(self._level, rows)))
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

    def _publish(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Let all threads know every group's maxima and sums."""

        def row(r: ir.Expr, slot: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    tirx.BufferStore(self._tops, load(self._top, [g, t, slot]), [g, r]),
                    tirx.BufferStore(self._totals, load(self._total, [g, t, slot]), [g, r]),
                ]
            )

        return when(self.leads(t), self.own_rows(range(self._cut.rows), t, row))

    def _level(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring results of some rows to the block's maximum, and share them."""
        cut = self._cut

        def row(r: ir.Expr, slot: ir.Expr) -> tirx.Stmt:
            highest, total = local("highest", [1], FLOAT), local("total_of_block", [1], FLOAT)
            now, all_ = load(highest, [index(0)]), load(total, [index(0)])

            def larger(other: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(highest, tirx.max(now, load(self._tops, [other, r])), [0])

            def term(other: ir.Expr) -> tirx.Stmt:
                power = tirx.exp(load(self._tops, [other, r]) - now)
                return tirx.BufferStore(total, all_ + load(self._totals, [other, r]) * power, [0])

            def column(i: ir.Expr) -> tirx.Stmt:
                value = load(self._out, [g, t, self.held(slot, i)])
                value = value * tirx.exp(load(self._top, [g, t, slot]) - now)
                place = cut.place(r - rows.start, self.column(i, t))
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
            first = tirx.all(tirx.EQ(g, index(0)), self.leads(t), self._is_row(r))
            stmts = [
                tirx.BufferStore(highest, float_(LOWEST), [0]),
                loop("group", cut.groups, larger),
                self._each(self._wide, column),
                when(first, sequence(known)),
            ]
            return block("level", sequence(stmts), [highest, total])

        return self.own_rows(rows, t, row)

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
            place = cut.place(row, column)
            row = row + rows.start

            def term(other: ir.Expr) -> tirx.Stmt:
                found = load(self._parts, [other, place])
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
