"""Attention on a CPU with queries as lanes: no reduction runs within a vector.

For heads of few elements, whose values would fill half a vector, and scores that depend on nothing
but the product:

parallel for batch, head, block of `block` queries:
    pack k and v row by row
    for tile of `width` queries:
        pack q (a transposed panel); m_i = -max
        for `rows` keys:
            s = k @ q, in register tiles of rows x width; m_i = max(m_i, score(s))
        l_i = sum over keys of p = exp(s - m_i)
        acc = v^T @ p, in register tiles of columns x width
        out = epilogue(transpose(acc) / l_i)

The last tiles of keys and of queries move back to fit, and compute some of them twice.
"""

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import (
    Body,
    block,
    ceildiv,
    index,
    local,
    loop,
    sequence,
    substitute,
    vectorized,
)
from ....program.program import Program
from ...cpu.register_tile import accumulate, clear, each
from ...cpu.transpose import adjacent, squares, transposed
from ...math.vector_functions import unit_decay
from ...math.vector_math import plain_maximum, vector_math
from ..problem.online_softmax import LOWEST, float_
from ..problem.pattern import FLOAT, Pattern
from .epilogue import Epilogue
from .pack_kv import pack_panels, pack_rows
from .query_lanes_config import QueryLanesConfig
from .visible_keys import Where, query_blocks


def query_lanes_cpu(program: Program, pattern: Pattern, config: QueryLanesConfig) -> tirx.PrimFunc:
    """Make the kernel of a configuration."""
    return _Kernel(pattern, config).func(program)


class _Kernel:
    def __init__(self, pattern: Pattern, config: QueryLanesConfig) -> None:
        assert pattern.query is not None
        self._pattern, self._config, self._query = pattern, config, pattern.query
        self._queries = index(pattern.query.extent)
        self._keys = scratch([index(config.keys), index(config.depth)], FLOAT, "keys")
        self._values = scratch([index(config.keys), index(config.columns)], FLOAT, "values")
        self._panel = scratch([index(1), index(config.depth), index(config.width)], FLOAT, "panel")
        self._scores = scratch([index(config.keys), index(config.width)], FLOAT, "scores")
        self._acc = scratch([index(config.width), index(config.columns)], FLOAT, "acc")
        self._sums = scratch([index(self._config.columns), index(config.width)], FLOAT, "sums")
        self._m_i, self._l_i = (scratch([index(config.width)], FLOAT, n) for n in ("m_i", "l_i"))
        self._epilogue = Epilogue(pattern, config, self._acc, self._m_i, self._l_i)

    def func(self, program: Program) -> tirx.PrimFunc:
        return query_blocks(program, self._pattern, self._queries, self._config.block, self._task)

    def _task(self, where: Where, first: ir.Expr) -> tirx.Stmt:
        """Compute a block of queries."""
        pattern, config = self._pattern, self._config

        def k(key: ir.Expr, depth: ir.Expr) -> ir.Expr:
            at = {**where, pattern.key.var: key, pattern.depth.var: depth}
            return substitute(pattern.k, at)

        def v(key: ir.Expr, column: ir.Expr) -> ir.Expr:
            at = {**where, pattern.key.var: key, pattern.column.var: column}
            return substitute(pattern.v, at)

        left = tirx.min(self._queries - first, index(config.block))
        stmts = [
            pack_rows(self._keys, k, config.depth, config.width, config.keys),
            pack_rows(self._values, v, config.columns, config.width, config.keys),
            loop(
                "tile",
                ceildiv(left, config.width),
                lambda n: self._tile(
                    where, tirx.min(first + n * config.width, self._queries - config.width)
                ),
            ),
        ]
        return block("queries", sequence(stmts), [self._keys, self._values])

    def _tile(self, where: Where, query: ir.Expr) -> tirx.Stmt:
        """Compute a vector of queries, or a few."""
        config = self._config

        def q(i: ir.Expr, depth: ir.Expr) -> ir.Expr:
            at = {**where, self._query.var: query + i, self._pattern.depth.var: depth}
            return substitute(self._pattern.q, at)

        tiles = ceildiv(config.keys, config.rows)
        stmts = [
            pack_panels(config, self._panel, q, config.width),
            self._lanes(lambda lane: tirx.BufferStore(self._m_i, float_(LOWEST), [lane])),
            loop("part", tiles, lambda n: self._products(self._begin(n))),
            self._exponentials(),
            *self._results(),
            self._turned(),
            self._epilogue.rows(where, query, index(0), config.width),
        ]
        buffers = [self._panel, self._scores, self._sums, self._acc, self._m_i, self._l_i]
        return block("tile", sequence(stmts), buffers)

    def _begin(self, tile: ir.Expr) -> ir.Expr:
        return tirx.min(tile * self._config.rows, index(self._config.keys - self._config.rows))

    def _lanes(self, body: Body) -> tirx.Stmt:
        """Write ``body(lane)`` for all queries of a tile."""
        lanes = self._config.lanes

        def vector(number: int) -> tirx.Stmt:
            return vectorized(lanes, lambda lane: body(lane + number * lanes))

        return sequence([vector(n) for n in range(self._config.vectors)])

    def _products(self, key: ir.Expr) -> tirx.Stmt:
        """Compute the scores of some keys, and add them to the maxima."""
        config, pattern = self._config, self._pattern
        sums = local("sums", [config.rows, config.width], FLOAT)

        def store(i: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
            value = substitute(pattern.score, {pattern.raw: load(sums, [i, lane])})
            return tirx.BufferStore(self._scores, vector_math(value, lane), [key + i, lane])

        def larger(i: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
            score = load(self._scores, [key + i, lane])
            return tirx.BufferStore(
                self._m_i, plain_maximum(load(self._m_i, [lane]), score), [lane]
            )

        parts = [
            clear(sums, float_(0)),
            accumulate(
                sums,
                config.depth,
                lambda i, d: load(self._keys, [key + i, d]),
                lambda d, lane: load(self._panel, [index(0), d, lane]),
            ),
            each(sums, lambda i, lane: sequence([store(i, lane), larger(i, lane)])),
        ]
        return block("scores", sequence(parts), [sums])

    def _exponentials(self) -> tirx.Stmt:
        """Replace scores by exponentials, and sum these."""

        def add(key: ir.Expr) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                value = unit_decay(load(self._scores, [key, lane]) - load(self._m_i, [lane]))
                return tirx.BufferStore(self._scores, value, [key, lane])

            def total(lane: ir.Expr) -> tirx.Stmt:
                value = load(self._l_i, [lane]) + load(self._scores, [key, lane])
                return tirx.BufferStore(self._l_i, value, [lane])

            return sequence([self._lanes(one), self._lanes(total)])

        start = self._lanes(lambda lane: tirx.BufferStore(self._l_i, float_(0), [lane]))
        return sequence([start, loop("key", self._config.keys, add)])

    def _results(self) -> list[tirx.Stmt]:
        """Add up values, some columns at a time, and store them by query."""
        columns, height = self._config.columns, self._config.height
        return [
            self._columns(first, min(height, columns - first))
            for first in range(0, columns, height)
        ]

    def _columns(self, first: int, columns: int) -> tirx.Stmt:
        sums = local("sums", [columns, self._config.width], FLOAT)
        parts = [
            clear(sums, float_(0)),
            accumulate(
                sums,
                self._config.keys,
                lambda i, key: load(self._values, [key, i + first]),
                lambda key, lane: load(self._scores, [key, lane]),
            ),
            each(
                sums,
                lambda i, lane: tirx.BufferStore(
                    self._sums, load(sums, [i, lane]), [i + first, lane]
                ),
            ),
        ]
        return block("results", sequence(parts), [sums])

    def _turned(self) -> tirx.Stmt:
        """Transpose the sums into rows of queries."""

        def square(first: int, side: int, query: ir.Expr) -> tirx.Stmt:
            return transposed(
                [load(self._sums, [index(first + i), adjacent(query, side)]) for i in range(side)],
                lambda i, row: tirx.BufferStore(self._acc, row, [query + i, adjacent(first, side)]),
            )

        def column(first: int, side: int) -> tirx.Stmt:
            count = self._config.width // side
            return loop("square", count, lambda n: square(first, side, n * side))

        return sequence([column(*one) for one in squares(self._config.columns, self._config.lanes)])
