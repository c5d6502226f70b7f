"""The second launch of attention of few rows: what the splits found, combined in their order."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Program
from ..contraction.graft import epilogue
from ..loops import (
    block,
    coordinates,
    index,
    kernel,
    loop,
    product,
    sequence,
    substitute,
    threads,
    when,
)
from .decode import Decode
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_


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
        return _Row(cut, pair, row, sums, rest).stmt()

    whole = Program((*program.inputs, sums, rest), program.outputs, program.scalars, (), 0)
    return kernel(whole, threads("blockIdx.x", blocks, body))


class _Row:
    """What one block does."""

    def __init__(
        self, cut: Decode, pair: ir.Expr, row: ir.Expr, sums: ir.Var, rest: ir.Var
    ) -> None:
        self._cut, self._sums, self._rest = cut, sums, rest
        self._pair, self._row = pair, row
        self._each = -(-cut.splits // cut.combining)  # splits of a thread
        most = [index(cut.combining), index(cut.columns)]
        self._held = scratch([*most, index(self._each)], FLOAT, "held", "local")
        self._out = scratch([*most, index(2)], FLOAT, "out", "local")  # with the sum's part
        self._top = scratch([*most, index(1)], FLOAT, "top", "local")
        self._known = scratch([index(2), index(cut.splits)], FLOAT, "known", "shared")
        self._parts = scratch([index(2), *most], FLOAT, "parts", "shared")

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        phases = [self._read, self._weigh, self._finish]
        buffers = [self._held, self._out, self._top, self._known, self._parts]
        return block("combine", sequence([self._every(p) for p in phases]), buffers)

    def _every(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(part, column)`` in every thread."""

        def part(p: ir.Expr) -> tirx.Stmt:
            return threads("threadIdx.x", self._cut.columns, lambda c: body(p, c))

        return threads("threadIdx.y", self._cut.combining, part)

    def _own(
        self, p: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt], safe: bool = False
    ) -> tirx.Stmt:
        """Run ``body(number, split)`` over the splits of a thread."""
        cut = self._cut

        def one(number: ir.Expr) -> tirx.Stmt:
            split = number * cut.combining + p
            stmt = body(number, split)
            return stmt if cut.splits % cut.combining == 0 else when(split < cut.splits, stmt)

        return loop("n", self._each, one, tirx.ForKind.UNROLLED)

    def _read(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Ask for what the splits found, their maxima and sums for all threads."""
        cut = self._cut

        def one(number: ir.Expr, split: ir.Expr) -> tirx.Stmt:
            value = load(self._sums, [self._pair, self._row, split, c])
            return tirx.BufferStore(self._held, value, [p, c, number])

        size = cut.combining * cut.columns

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * size + p * cut.columns + c
            which, split = coordinates(flat, [index(2), index(cut.splits)])
            value = load(self._rest, [self._pair, self._row, which, split])
            return when(flat < 2 * cut.splits, tirx.BufferStore(self._known, value, [which, split]))

        return sequence([self._own(p, one), loop("item", -(-2 * cut.splits // size), item)])

    def _weigh(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Add up the thread's splits against the maximum of all."""
        where = [p, c, index(0)]
        top = load(self._top, where)

        def larger(split: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(
                self._top, tirx.max(top, load(self._known, [index(0), split])), where
            )

        def one(number: ir.Expr, split: ir.Expr) -> tirx.Stmt:
            factor = tirx.exp(load(self._known, [index(0), split]) - top)
            terms = (load(self._held, [p, c, number]), load(self._known, [index(1), split]))
            return sequence(
                [
                    tirx.BufferStore(
                        self._out, load(self._out, [p, c, index(i)]) + term * factor, [p, c, i]
                    )
                    for i, term in enumerate(terms)
                ]
            )

        return sequence(
            [
                tirx.BufferStore(self._top, float_(LOWEST), where),
                *(tirx.BufferStore(self._out, float_(0), [p, c, i]) for i in range(2)),
                loop("split", self._cut.splits, larger),
                self._own(p, one),
                *(
                    tirx.BufferStore(self._parts, load(self._out, [p, c, index(i)]), [i, p, c])
                    for i in range(2)
                ),
            ]
        )

    def _finish(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Store the results of a column."""
        cut, pattern = self._cut, self._cut.pattern
        first = [p, c, index(0)]

        def gathered(which: int) -> ir.Expr:
            value = load(self._parts, [index(which), index(0), c])
            for other in range(1, cut.combining):
                value = value + load(self._parts, [index(which), index(other), c])
            return value

        total = load(self._out, [p, c, index(1)])
        at = {**cut.sharing.place(self._pair, self._row), pattern.column.var: c}
        mean: tirx.Stmt = tirx.BufferStore(self._out, gathered(0) / total, first)
        if pattern.instead is not None:
            # Not the other way round: what is no number is not larger.
            mean = tirx.IfThenElse(total > float_(0), mean, self._instead(at, first))
        stmts = [
            tirx.BufferStore(self._out, gathered(1), [p, c, 1]),
            mean,
            self._store(at, load(self._out, first)),
        ]
        return when(tirx.EQ(p, index(0)), sequence(stmts))

    def _instead(self, at: dict[ir.Var, ir.Expr], where: list[ir.Expr]) -> tirx.Stmt:
        """Weigh values by what a guard puts in the place of softmax."""
        pattern = self._cut.pattern

        def add(key: ir.Expr) -> tirx.Stmt:
            known = {**at, pattern.key.var: key}
            term = substitute(pattern.instead, known) * substitute(pattern.v, known)
            return tirx.BufferStore(self._out, load(self._out, where) + term, where)

        start = tirx.BufferStore(self._out, float_(0), where)
        return sequence([start, loop("key", pattern.key.extent, add)])

    def _store(self, at: dict[ir.Var, ir.Expr], value: ir.Expr) -> tirx.Stmt:
        product = self._cut.pattern.product
        if str(product.total.ty.dtype) != FLOAT:
            value = tirx.Cast(str(product.total.ty.dtype), value)
        return epilogue(product, self._cut.pattern.place(at), value)
