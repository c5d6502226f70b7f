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

from tvm import ir, tirx

from ...fusion.expressions import load
from ...fusion.program import Axis, Program
from ..address import conditions_of
from ..gpu.launch import min_blocks_per_sm
from ..gpu.warp import warp_all_reduce
from ..loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    loop,
    sequence,
    substitute,
    threads,
    when,
)
from .decode import Decode
from .pattern import FLOAT
from .rows_cpu import LOWEST, float_
from .split_block import SplitBlock
from .tensor_gpu import TensorBlock


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
        made = TensorBlock if cut.is_tensor else Block
        return min_blocks_per_sm(made(cut, number, sums, rest).stmt(), cut.resident)

    whole = Program(program.inputs, (sums, rest), program.scalars, (), 0)
    return kernel(whole, threads("blockIdx.x", cut.blocks, body))


class Block(SplitBlock):
    """A block whose threads multiply and add: some neighbours share a key."""

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        super().__init__(cut, number, sums, rest, cut.lanes, cut.rows)
        self._deep = cut.depth // cut.lanes
        self._query = self._own("query", cut.rows * self._deep)
        self._keys = [
            self._own(f"{x.source.name}_keys", cut.ahead * self._deep, str(x.ty.dtype))
            for x in cut.keys
        ]
        self._values = [
            self._own(f"{x.source.name}_values", cut.ahead * self._wide, str(x.ty.dtype))
            for x in cut.values
        ]
        count = cut.rows * cut.ahead
        self._scores = self._own("scores", count), self._own("sums_of_lanes", count)
        self._buffers += [self._query, *self._keys, *self._values, *self._scores]

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run through all of them: each thread holds its columns of every row."""
        return self._each(len(rows), lambda n: body(n + rows.start, n + rows.start), "row")

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first of the threads that share a key speak."""
        return tirx.EQ(t, index(0))

    def column(self, held: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Let vectors of a row take turns among the threads."""
        number, lane = coordinates(held, [index(-1), index(self._cut.width)])
        return (number * self._cut.lanes + t) * self._cut.width + lane

    def begin(self) -> list[tirx.Stmt]:
        """Read queries of all rows."""
        return [self._cut.every(self._read_queries)]

    def _read_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        cut, pattern = self._cut, self._cut.pattern

        def row(r: ir.Expr) -> tirx.Stmt:
            def element(i: ir.Expr) -> tirx.Stmt:
                at = {**self._at(r), pattern.depth.var: self.column(i, t)}
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

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in the next keys."""
        cut = self._cut
        first = self._start(number)
        exchanges, found = warp_all_reduce(
            self._scores, cut.rows * cut.ahead, cut.lanes, cut.warp, cut.every
        )
        return sequence(
            [
                cut.every(lambda g, t: self._read(first, g, t)),
                *exchanges,
                cut.every(lambda g, t: self._weigh(found, first, g, t)),
            ]
        )

    def _read(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Ask for keys and values, and multiply the keys."""
        cut, pattern = self._cut, self._cut.pattern

        def vectors(
            operand: ir.Expr,
            found: Sequence[ir.TensorLoad],
            own: Sequence[ir.Var],
            axis: Axis,
            size: int,
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

                        stmt = loop("lane", cut.width, element, tirx.ForKind.VECTORIZED)
                        # What was appended lies elsewhere than what was there.
                        for condition in conditions_of(x, operand):
                            stmt = when(substitute(condition, at), stmt)
                        return stmt

                    return sequence([one(*pair) for pair in zip(found, own, strict=True)])

                return self._each(size // cut.width, vector, "vector")

            return self._each(cut.ahead, slot, "slot")

        def products(s: ir.Expr) -> tirx.Stmt:
            key = self._inside(self._key(first, g, s))

            def row(r: ir.Expr) -> tirx.Stmt:
                where = [g, t, s * cut.rows + r]

                def term(i: ir.Expr) -> tirx.Stmt:
                    held = [g, t, s * self._deep + i]
                    known = {pattern.key.var: key, pattern.depth.var: self.column(i, t)}
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
                vectors(pattern.k, cut.keys, self._keys, pattern.depth, self._deep),
                vectors(pattern.v, cut.values, self._values, pattern.column, self._wide),
                self._each(cut.ahead, products, "slot"),
            ]
        )

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
                    known = {pattern.key.var: key, pattern.column.var: self.column(i, t)}
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
