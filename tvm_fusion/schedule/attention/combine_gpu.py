"""The second launch of attention of few rows: what the splits found, combined in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Program
from ..contraction.fuse_epilogue import epilogue
from ..gpu.launch import min_blocks_per_sm
from ..loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    when,
)
from .decode import Decode
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_

AT_ONCE = 16  # splits that a thread asks for
NOTHING = (0, 0, LOWEST)  # what no split finds: a sum, its part of the total, their maximum


def combine_gpu(program: Program, cut: Decode, sums: ir.Var, rest: ir.Var) -> tirx.PrimFunc:
    """Make the second kernel: a block for each row.

    Parameters
    ----------
    program, cut, sums, rest
        As of :func:`~tvm_fusion.schedule.attention.split_gpu.split_gpu`.
    """
    blocks = product([cut.pairs, cut.sharing.count])

    def body(number: ir.Expr) -> tirx.Stmt:
        pair, row = coordinates(number, [cut.pairs, cut.sharing.count])
        return min_blocks_per_sm(_Row(cut, pair, row, sums, rest).stmt(), 1)

    whole = Program((*program.inputs, sums, rest), program.outputs, program.scalars, (), 0)
    return kernel(whole, threads("blockIdx.x", blocks, body))


class _Row:
    """What one block does.

    Some threads share a column: each adds up splits of its own, against their maximum.
    """

    def __init__(
        self, cut: Decode, pair: ir.Expr, row: ir.Expr, sums: ir.Var, rest: ir.Var
    ) -> None:
        self._cut, self._sums, self._rest = cut, sums, rest
        self._pair, self._row = pair, row
        each = -(-cut.splits // cut.combining)  # splits of a thread
        self._turns = -(-each // AT_ONCE)
        self._each = -(-each // self._turns)
        most = [index(cut.combining), index(cut.columns)]
        self._held = scratch([*most, index(self._each), index(3)], FLOAT, "held", "local")
        self._found = scratch([*most, index(3)], FLOAT, "found", "local")
        self._parts = scratch([index(3), *most], FLOAT, "parts", "shared")
        self._power = local("power", [1], FLOAT)

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        phases = [self._weigh, self._finish]
        buffers = [self._held, self._found, self._parts, self._power]
        return block("combine", sequence([self._every(p) for p in phases]), buffers)

    def _every(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(part, column)`` in every thread."""

        def part(p: ir.Expr) -> tirx.Stmt:
            return threads("threadIdx.x", self._cut.columns, lambda c: body(p, c))

        return threads("threadIdx.y", self._cut.combining, part)

    def _weigh(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Ask for all that some of the thread's splits found, then add it up."""
        cut, own = self._cut, [p, c]

        def read(movmatrix: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            split = (movmatrix * self._each + number) * cut.combining + p
            rest = [load(self._rest, [self._pair, self._row, index(i), split]) for i in range(2)]
            values = [load(self._sums, [self._pair, self._row, split, c]), rest[1], rest[0]]
            if self._turns * self._each * cut.combining > cut.splits:
                values = [
                    tirx.if_then_else(split < cut.splits, value, float_(nothing))
                    for value, nothing in zip(values, NOTHING, strict=True)
                ]
            return sequence(
                [
                    tirx.BufferStore(self._held, value, [*own, number, index(i)])
                    for i, value in enumerate(values)
                ]
            )

        def held(number: ir.Expr) -> list[ir.Expr]:
            return [load(self._held, [*own, number, index(i)]) for i in range(3)]

        def shared(i: int) -> tirx.Stmt:
            value = load(self._found, [*own, index(i)])
            return tirx.BufferStore(self._parts, value, [index(i), p, c])

        def some(movmatrix: ir.Expr) -> tirx.Stmt:
            asked = unrolled("n", self._each, partial(read, movmatrix))
            return sequence([asked, self._added(own, self._each, held)])

        turns = loop("movmatrix", self._turns, some)
        return sequence([self._nothing(own), turns, *map(shared, range(3))])

    def _nothing(self, own: list[ir.Expr]) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(self._found, float_(nothing), [*own, index(i)])
                for i, nothing in enumerate(NOTHING)
            ]
        )

    def _added(
        self, own: list[ir.Expr], count: int, terms: Callable[[ir.Expr], list[ir.Expr]]
    ) -> tirx.Stmt:
        """Add pairs of sums, each against its maximum, to what was found before."""
        *sums, top = ([*own, index(i)] for i in range(3))
        now, power = load(self._found, top), load(self._power, [index(0)])

        def larger(number: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._found, tirx.max(now, terms(number)[2]), top)

        def term(number: ir.Expr) -> tirx.Stmt:
            *values, its = terms(number)
            factor = tirx.exp(its - load(self._found, top))
            return sequence(
                [
                    tirx.BufferStore(self._power, factor, [0]),
                    *(
                        tirx.BufferStore(self._found, load(self._found, x) + value * power, x)
                        for x, value in zip(sums, values, strict=True)
                    ),
                ]
            )

        return sequence(
            [
                tirx.BufferStore(self._power, now, [0]),
                unrolled("n", count, larger),
                tirx.BufferStore(self._power, tirx.exp(power - now), [0]),
                *(tirx.BufferStore(self._found, load(self._found, x) * power, x) for x in sums),
                unrolled("n", count, term),
            ]
        )

    def _finish(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Store the results of a column."""
        cut, pattern = self._cut, self._cut.pattern
        own, first = [p, c], [p, c, index(0)]

        def parts(number: ir.Expr) -> list[ir.Expr]:
            return [load(self._parts, [index(i), number, c]) for i in range(3)]

        sum_, total = (load(self._found, [*own, index(i)]) for i in range(2))
        at = {**cut.sharing.place(self._pair, self._row), pattern.column.var: c}
        mean: tirx.Stmt = tirx.BufferStore(self._found, sum_ / total, first)
        if pattern.instead is not None:
            # Not the other way round: what is no number is not larger.
            mean = tirx.IfThenElse(total > float_(0), mean, self._instead(at, first))
        added = [self._nothing(own), self._added(own, cut.combining, parts)]
        stmts = [*added, mean, self._store(at, sum_)]
        return when(tirx.EQ(p, index(0)), sequence(stmts))

    def _instead(self, at: dict[ir.Var, ir.Expr], where: list[ir.Expr]) -> tirx.Stmt:
        """Weigh values by what a guard puts in the place of softmax."""
        pattern = self._cut.pattern

        def add(key: ir.Expr) -> tirx.Stmt:
            known = {**at, pattern.key.var: key}
            term = substitute(pattern.instead, known) * substitute(pattern.v, known)
            return tirx.BufferStore(self._found, load(self._found, where) + term, where)

        start = tirx.BufferStore(self._found, float_(0), where)
        return sequence([start, loop("key", pattern.key.extent, add)])

    def _store(self, at: dict[ir.Var, ir.Expr], value: ir.Expr) -> tirx.Stmt:
        product = self._cut.pattern.product
        if str(product.total.ty.dtype) != FLOAT:
            value = tirx.Cast(str(product.total.ty.dtype), value)
        return epilogue(product, self._cut.pattern.place(at), value)
