"""The two products of attention on a CPU, of some queries and a tile of keys: by vectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    index,
    local,
    loop,
    sequence,
    substitute,
    vectorized,
)
from ...cpu.register_tile import accumulate, clear, each
from ...math.vector_math import vector_math
from ..problem.online_softmax import float_
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig
from .pack_kv import pack_panels, pack_rows
from .softmax import resolved
from .visible_keys import Where


class Products(ABC):
    """Both products, and the operands that are packed for them.

    Parameters
    ----------
    rows
        Queries that are computed at once.
    """

    scores: ir.Var  # products with keys, which softmax replaces by weights, by row and key
    # Memory of a task, and of some queries against a tile of keys.
    buffers: list[ir.Var]
    row_buffers: list[ir.Var]

    def __init__(self, pattern: Pattern, config: CpuConfig, rows: int) -> None:
        self.pattern, self.config, self.rows = pattern, config, rows

    def begin(self, acc: ir.Var) -> list[tirx.Stmt]:
        """Begin a task, whose sums of values are in a buffer."""
        return []

    def end(self) -> list[tirx.Stmt]:
        """End a task."""
        return []

    @abstractmethod
    def pack(self, where: Where, start: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Pack a tile of keys and values."""

    @abstractmethod
    def load_queries(self, where: Where, first: ir.Expr) -> list[tirx.Stmt]:
        """Compute some queries once for all keys."""

    @abstractmethod
    def multiply_keys(self, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Compute ``scores = q @ k``."""

    @abstractmethod
    def multiply_values(self, acc: ir.Var, slot: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Compute ``acc += scores @ v``; of all keys at once, ``acc`` is not read."""

    def q(self, where: Where, query: ir.Expr, depth: ir.Expr) -> ir.Expr:
        """Return an element of a query."""
        at = {**where, self.pattern.depth.var: depth}
        if self.pattern.query is not None:
            at[self.pattern.query.var] = query
        return substitute(self.pattern.q, at)

    def k(self, where: Where, key: ir.Expr, depth: ir.Expr) -> ir.Expr:
        """Return an element of a key."""
        at = {**where, self.pattern.key.var: key, self.pattern.depth.var: depth}
        return substitute(self.pattern.k, at)

    def v(self, where: Where, key: ir.Expr, column: ir.Expr) -> ir.Expr:
        """Return an element of a value."""
        at = {**where, self.pattern.key.var: key, self.pattern.column.var: column}
        return substitute(self.pattern.v, at)

    @property
    def elements(self) -> int:
        """Elements of a value."""
        return constant(self.pattern.column.extent) or self.config.columns


class VectorProducts(Products):
    """Products in float32: keys in transposed panels, register tiles of rows by vectors."""

    def __init__(self, pattern: Pattern, config: CpuConfig, rows: int) -> None:
        super().__init__(pattern, config, rows)
        panels = [index(config.keys // config.width), index(config.depth), index(config.width)]
        self._keys = scratch(panels, FLOAT, "keys")
        self._values = scratch([index(config.keys), index(config.columns)], FLOAT, "values")
        self._queries = scratch([index(rows), index(config.depth)], FLOAT, "queries")
        # Rows a power of two apart would fall into the same cache sets.
        self.scores = scratch([index(rows), index(config.keys + config.lanes)], FLOAT, "scores")
        self.buffers = [self._keys, self._values]
        self.row_buffers = [self._queries, self.scores]

    def pack(self, where: Where, start: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Transpose keys into panels, and copy values."""

        def k(key: ir.Expr, depth: ir.Expr) -> ir.Expr:
            return self.k(where, start + key, depth)

        def v(key: ir.Expr, column: ir.Expr) -> ir.Expr:
            return self.v(where, start + key, column)

        return [
            pack_panels(self.config, self._keys, k, count),
            pack_rows(self._values, v, self.elements, self.config.width, count),
        ]

    def load_queries(self, where: Where, first: ir.Expr) -> list[tirx.Stmt]:
        """Write ``queries[row, depth] = q``."""
        lanes = self.config.lanes

        def row(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for d in range(0, self.config.depth, lanes):
                width = min(lanes, self.config.depth - d)

                def store(lane: ir.Expr, d: int = d, width: int = width) -> tirx.Stmt:
                    value = resolved(self.q(where, first + i, lane + d), lane, width)
                    return tirx.BufferStore(self._queries, vector_math(value, lane), [i, lane + d])

                stmts.append(vectorized(width, store))
            return sequence(stmts)

        return [loop("i", self.rows, row)]

    def multiply_keys(self, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Multiply, a register tile at a time."""
        config = self.config

        def product_of(panel: ir.Expr, offset: ir.Expr, columns: int) -> tirx.Stmt:
            first = panel * config.width + offset
            sums = local("sums", [self.rows, columns], FLOAT)
            parts = [
                clear(sums, float_(0)),
                accumulate(
                    sums,
                    config.depth,
                    lambda i, k: load(self._queries, [i, k]),
                    lambda k, lane: load(self._keys, [panel, k, offset + lane]),
                ),
                each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        self.scores, load(sums, [i, lane]), [i, first + lane]
                    ),
                ),
            ]
            return block("scores", sequence(parts), [sums])

        return over_panels(count, config, product_of)

    def multiply_values(self, acc: ir.Var, slot: ir.Expr, count: ir.Expr | int) -> list[tirx.Stmt]:
        """Multiply, a register tile at a time."""
        config = self.config

        def accumulate_values(first: int, columns: int) -> tirx.Stmt:
            sums = local("sums", [self.rows, columns], FLOAT)
            fresh = clear(sums, float_(0))
            if not config.single:
                fresh = each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        sums, load(acc, [slot + i, first + lane]), [i, lane]
                    ),
                )
            parts = [
                fresh,
                accumulate(
                    sums,
                    count,
                    lambda i, k: load(self.scores, [i, k]),
                    lambda k, lane: load(self._values, [k, first + lane]),
                ),
                each(
                    sums,
                    lambda i, lane: tirx.BufferStore(
                        acc, load(sums, [i, lane]), [slot + i, first + lane]
                    ),
                ),
            ]
            return block("results", sequence(parts), [sums])

        return [
            accumulate_values(done, min(config.width, config.columns - done))
            for done in range(0, config.columns, config.width)
        ]


def over_panels(
    count: ir.Expr | int,
    config: CpuConfig,
    make: Callable[[ir.Expr, ir.Expr, int], tirx.Stmt],
) -> list[tirx.Stmt]:
    """Cover keys by panels of full width, then the remainder by whole vectors.

    Parameters
    ----------
    make
        Computes some columns of a panel, by its number, the first column and how many.
    """
    width, lanes = config.width, config.lanes
    size = constant(count)
    zero = index(0)
    if size is not None:
        stmts = [loop("part", size // width, lambda n: make(n, zero, width))]
        if size % width:
            rest = -(-(size % width) // lanes) * lanes
            stmts.append(make(index(size // width), zero, rest))
        return stmts
    whole = tirx.floordiv(count, index(width))
    vectors = ceildiv(tirx.floormod(count, index(width)), lanes)
    return [
        loop("part", whole, lambda n: make(n, zero, width)),
        loop("part", vectors, lambda n: make(whole, n * lanes, lanes)),
    ]
