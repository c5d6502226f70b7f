"""Attention on a GPU: one launch, a thread block for some queries of one head.

Keys, then values, come through shared memory a tile at a time; each row's threads share its scores
there, and each keeps some columns of the result, with the row's maximum and sum, in registers.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Program
from ..contraction.fuse_epilogue import store_results
from ..loops import (
    block,
    ceildiv,
    coordinates,
    index,
    kernel,
    loop,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    when,
)
from .pattern import FLOAT, Pattern
from .rows_cpu import LOWEST, float_
from .tiles_gpu import Tiles


def attention_gpu(program: Program, pattern: Pattern) -> tirx.PrimFunc:
    """Make the kernel."""
    tiles = Tiles.of(pattern)
    queries = index(1) if pattern.query is None else index(pattern.query.extent)
    extents = [a.extent for a in pattern.batch]
    blocks = ceildiv(queries, tiles.rows)

    def body(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, [*extents, blocks])
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return _Block(pattern, tiles, where, part * tiles.rows, queries).stmt()

    return kernel(program, threads("blockIdx.x", product([*extents, blocks]), body))


class _Block:
    """What one thread block does."""

    def __init__(
        self,
        pattern: Pattern,
        tiles: Tiles,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        queries: ir.Expr,
    ) -> None:
        self._pattern, self._tiles, self._where = pattern, tiles, where
        self._first, self._queries = first, queries
        self._count = index(pattern.key.extent)

        def own(name: str, *shape: int) -> ir.Var:
            dims = [index(d) for d in (tiles.rows, tiles.lanes, *shape)]
            return scratch(dims, FLOAT, name, "local")

        def shared(name: str, *shape: int) -> ir.Var:
            return scratch([index(d) for d in shape], FLOAT, name, "shared")

        self._items = -(-tiles.columns // tiles.lanes)
        self._out = own("out", self._items)
        self._top, self._scale, self._total = own("top"), own("scale"), own("total")
        self._sum = own("sum")
        self._q = shared("queries", tiles.rows, tiles.depth)
        self._tile = shared("tile", tiles.keys, tiles.width)
        self._weights = shared("weights", tiles.rows, tiles.keys)

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        number = ceildiv(self._count, self._tiles.keys)
        stmts = [
            self._tiles.every(self._start),
            self._read_queries(),
            loop("tile", number, lambda n: self._keys(n * self._tiles.keys)),
            self._tiles.every(self._finish),
        ]
        buffers = [self._out, self._top, self._scale, self._total, self._sum]
        return block("queries", sequence(stmts), [*buffers, self._q, self._tile, self._weights])

    def _at(self, r: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Place of a row; those behind the last query compute it once more, and are not stored."""
        if self._pattern.query is None:
            return dict(self._where)
        query = tirx.min(self._first + r, self._queries - 1)
        return {**self._where, self._pattern.query.var: query}

    def _start(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(self._top, float_(LOWEST), [r, t]),
                tirx.BufferStore(self._total, float_(0), [r, t]),
                self._columns(lambda j: tirx.BufferStore(self._out, float_(0), [r, t, j])),
            ]
        )

    def _columns(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return unrolled("j", self._items, body)

    def _read_queries(self) -> tirx.Stmt:
        depth = self._tiles.depth

        def store(flat: ir.Expr) -> tirx.Stmt:
            r, d = coordinates(flat, [self._tiles.rows, depth])
            at = {**self._at(r), self._pattern.depth.var: d}
            return tirx.BufferStore(self._q, substitute(self._pattern.q, at), [r, d])

        return self._tiles.fill(self._tiles.rows * depth, store)

    def _read(self, start: ir.Expr, element: ir.Expr, inner: ir.Var, width: int) -> tirx.Stmt:
        """Bring keys or values into the tile, zeros behind the last."""

        def store(flat: ir.Expr) -> tirx.Stmt:
            key, d = coordinates(flat, [self._tiles.keys, width])
            at = {**self._where, self._pattern.key.var: start + key, inner: d}
            value = tirx.if_then_else(start + key < self._count, substitute(element, at), float_(0))
            return tirx.BufferStore(self._tile, value, [key, d])

        return self._tiles.fill(self._tiles.keys * width, store)

    def _keys(self, start: ir.Expr) -> tirx.Stmt:
        """Take a tile of keys and values into account."""
        pattern, tiles = self._pattern, self._tiles
        return sequence(
            [
                self._read(start, pattern.k, pattern.depth.var, tiles.depth),
                tiles.every(lambda r, t: self._scores(start, r, t)),
                tiles.every(self._rescale),
                tiles.every(self._exponentials),
                self._read(start, pattern.v, pattern.column.var, tiles.columns),
                tiles.every(lambda r, t: self._weigh(start, r, t)),
            ]
        )

    def _own_keys(self, t: ir.Expr, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run over the keys of a tile that are one thread's."""
        keys, lanes = self._tiles.keys, self._tiles.lanes

        def one(number: ir.Expr) -> tirx.Stmt:
            key = number * lanes + t
            return body(key) if keys % lanes == 0 else when(key < keys, body(key))

        return loop("n", -(-keys // lanes), one)

    def _scores(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(key: ir.Expr) -> tirx.Stmt:
            def add(d: ir.Expr) -> tirx.Stmt:
                term = load(self._q, [r, d]) * load(self._tile, [key, d])
                return tirx.BufferStore(self._sum, load(self._sum, [r, t]) + term, [r, t])

            pattern = self._pattern
            at = {**self._at(r), pattern.key.var: start + key}
            value = substitute(pattern.score, {**at, pattern.raw: load(self._sum, [r, t])})
            value = tirx.if_then_else(start + key < self._count, value, float_(-float("inf")))
            return sequence(
                [
                    tirx.BufferStore(self._sum, float_(0), [r, t]),
                    loop("d", self._tiles.depth, add),
                    tirx.BufferStore(self._weights, value, [r, key]),
                ]
            )

        return self._own_keys(t, one)

    def _rescale(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the new maximum, and bring what is there to it."""
        top, scale = load(self._top, [r, t]), load(self._scale, [r, t])

        def larger(key: ir.Expr) -> tirx.Stmt:
            pair = tirx.max(scale, load(self._weights, [r, key]))
            return tirx.BufferStore(self._scale, pair, [r, t])

        def column(j: ir.Expr) -> tirx.Stmt:
            value = load(self._out, [r, t, j]) * load(self._sum, [r, t])
            return tirx.BufferStore(self._out, value, [r, t, j])

        return sequence(
            [
                tirx.BufferStore(self._scale, top, [r, t]),
                loop("key", self._tiles.keys, larger),
                tirx.BufferStore(self._sum, tirx.exp(top - scale), [r, t]),
                tirx.BufferStore(self._top, scale, [r, t]),
                tirx.BufferStore(
                    self._total, load(self._total, [r, t]) * load(self._sum, [r, t]), [r, t]
                ),
                self._columns(column),
            ]
        )

    def _exponentials(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(key: ir.Expr) -> tirx.Stmt:
            value = tirx.exp(load(self._weights, [r, key]) - load(self._top, [r, t]))
            return tirx.BufferStore(self._weights, value, [r, key])

        return self._own_keys(t, one)

    def _weigh(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        pattern = self._pattern

        def one(key: ir.Expr) -> tirx.Stmt:
            exponential = load(self._weights, [r, key])
            weight = exponential
            if not pattern.weight.same_as(pattern.exponential):
                at = {**self._at(r), pattern.key.var: start + key}
                weight = substitute(pattern.weight, {**at, pattern.exponential: exponential})
                weight = tirx.if_then_else(start + key < self._count, weight, float_(0))

            def column(j: ir.Expr) -> tirx.Stmt:
                number = j * self._tiles.lanes + t
                term = load(self._sum, [r, t]) * load(self._tile, [key, number])
                new = tirx.BufferStore(self._out, load(self._out, [r, t, j]) + term, [r, t, j])
                return self._if_column(number, new)

            total = load(self._total, [r, t]) + exponential
            return sequence(
                [
                    tirx.BufferStore(self._total, total, [r, t]),
                    tirx.BufferStore(self._sum, weight, [r, t]),
                    self._columns(column),
                ]
            )

        return loop("key", self._tiles.keys, one)

    def _if_column(self, number: ir.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        if self._tiles.columns % self._tiles.lanes == 0:
            return stmt
        return when(number < self._tiles.columns, stmt)

    def _finish(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Store the thread's columns of its row."""
        pattern = self._pattern
        total = load(self._total, [r, t])

        def column(j: ir.Expr) -> tirx.Stmt:
            number = j * self._tiles.lanes + t
            at = {**self._at(r), pattern.column.var: number}
            stmt = self._store(at, load(self._out, [r, t, j]) / total)
            if pattern.instead is not None:
                # Not so for NaN either.
                instead = self._instead(at, r, t)
                stmt = tirx.IfThenElse(total > float_(0), stmt, instead)
            return self._if_column(number, stmt)

        stmt = self._columns(column)
        if pattern.query is None:
            return stmt if self._tiles.rows == 1 else when(r < 1, stmt)
        return when(self._first + r < self._queries, stmt)

    def _instead(self, at: dict[ir.Var, ir.Expr], r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Weigh values by what a guard puts in the place of softmax."""
        pattern = self._pattern

        def add(key: ir.Expr) -> tirx.Stmt:
            known = {**at, pattern.key.var: key}
            term = substitute(pattern.instead, known) * substitute(pattern.v, known)
            return tirx.BufferStore(self._sum, load(self._sum, [r, t]) + term, [r, t])

        return sequence(
            [
                tirx.BufferStore(self._sum, float_(0), [r, t]),
                loop("key", pattern.key.extent, add),
                self._store(at, load(self._sum, [r, t])),
            ]
        )

    def _store(self, at: dict[ir.Var, ir.Expr], value: ir.Expr) -> tirx.Stmt:
        product = self._pattern.product
        if str(product.total.ty.dtype) != FLOAT:
            value = tirx.Cast(str(product.total.ty.dtype), value)
        return store_results(product, self._pattern.place(at), value)
