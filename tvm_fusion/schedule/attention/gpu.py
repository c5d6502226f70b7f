"""FlashAttention on CUDA cores: one launch, softmax computed online over tiles of keys.

grid: batch * heads * ceil(queries / block_m) blocks; block: (block_m, lanes) threads
shared memory: q[block_m, d]; one tile of block_n keys, then of their values; p[block_m, block_n]
registers of a thread: acc[columns / lanes], m_i, l_i
for tile of block_n keys:
    k -> shared memory; __syncthreads
    s[row, key] = score(q[row] . k[key]), each thread every lanes-th key; __syncthreads
    m_new = max(m_i, s[row]); rescale m_i, l_i, acc to m_new
    p[row, key] = exp(s - m_new)
    v -> shared memory; __syncthreads
    l_i += p; acc += weight(p) * v, each thread every lanes-th column; __syncthreads
out = epilogue(acc / l_i)
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
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
from ...program.program import Program
from .config_gpu import GpuConfig
from .online_softmax import SoftmaxState, assign, float_, initialize
from .pattern import FLOAT, Pattern
from .result import masked_row, store_result


def attention_gpu(program: Program, pattern: Pattern, config: GpuConfig) -> tirx.PrimFunc:
    """Make the kernel."""
    queries = index(1) if pattern.query is None else index(pattern.query.extent)
    extents = [a.extent for a in pattern.batch]
    blocks = ceildiv(queries, config.rows)

    def body(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, [*extents, blocks])
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return _QueryBlock(pattern, config, where, part * config.rows, queries).stmt()

    return kernel(program, threads("blockIdx.x", product([*extents, blocks]), body))


class _QueryBlock:
    """One thread block: some queries of one head."""

    def __init__(
        self,
        pattern: Pattern,
        config: GpuConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        queries: ir.Expr,
    ) -> None:
        self._pattern, self._config, self._where = pattern, config, where
        self._first, self._queries = first, queries
        self._count = index(pattern.key.extent)

        def registers(name: str, *shape: int) -> ir.Var:
            dims = [index(d) for d in (config.rows, config.lanes, *shape)]
            return scratch(dims, FLOAT, name, "local")

        def shared(name: str, *shape: int) -> ir.Var:
            return scratch([index(d) for d in shape], FLOAT, name, "shared")

        self._items = -(-config.columns // config.lanes)
        self._acc = registers("acc", self._items)
        self._m_i, self._m_new = registers("m_i"), registers("m_new")
        self._l_i, self._sum = registers("l_i"), registers("sum")
        self._q = shared("q", config.rows, config.depth)
        self._tile = shared("kv_tile", config.keys, config.width)
        self._p = shared("p", config.rows, config.keys)

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        number = ceildiv(self._count, self._config.keys)
        stmts = [
            self._config.each_thread(self._start),
            self._load_queries(),
            loop("tile", number, lambda n: self._tile_of_keys(n * self._config.keys)),
            self._config.each_thread(self._finish),
        ]
        buffers = [self._acc, self._m_i, self._m_new, self._l_i, self._sum]
        return block("queries", sequence(stmts), [*buffers, self._q, self._tile, self._p])

    def _position(self, r: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Give the position of a row; rows behind the last one compute it again, unstored."""
        if self._pattern.query is None:
            return dict(self._where)
        query = tirx.min(self._first + r, self._queries - 1)
        return {**self._where, self._pattern.query.var: query}

    def _start(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        zero = self._columns(lambda j: tirx.BufferStore(self._acc, float_(0), [r, t, j]))
        return sequence([*initialize(load(self._m_i, [r, t]), load(self._l_i, [r, t])), zero])

    def _columns(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return unrolled("j", self._items, body)

    def _load_queries(self) -> tirx.Stmt:
        depth = self._config.depth

        def store(flat: ir.Expr) -> tirx.Stmt:
            r, d = coordinates(flat, [self._config.rows, depth])
            at = {**self._position(r), self._pattern.depth.var: d}
            return tirx.BufferStore(self._q, substitute(self._pattern.q, at), [r, d])

        return self._config.fill(self._config.rows * depth, store)

    def _load_tile(self, start: ir.Expr, element: ir.Expr, inner: ir.Var, width: int) -> tirx.Stmt:
        """Load keys or values into shared memory, zeros behind the last."""

        def store(flat: ir.Expr) -> tirx.Stmt:
            key, d = coordinates(flat, [self._config.keys, width])
            at = {**self._where, self._pattern.key.var: start + key, inner: d}
            value = tirx.if_then_else(start + key < self._count, substitute(element, at), float_(0))
            return tirx.BufferStore(self._tile, value, [key, d])

        return self._config.fill(self._config.keys * width, store)

    def _tile_of_keys(self, start: ir.Expr) -> tirx.Stmt:
        """Compute the scores of a tile of keys, and accumulate their values."""
        pattern, config = self._pattern, self._config
        return sequence(
            [
                self._load_tile(start, pattern.k, pattern.depth.var, config.depth),
                config.each_thread(lambda r, t: self._scores(start, r, t)),
                config.each_thread(self._rescale),
                config.each_thread(self._exponentials),
                self._load_tile(start, pattern.v, pattern.column.var, config.columns),
                config.each_thread(lambda r, t: self._accumulate(start, r, t)),
            ]
        )

    def _own_keys(self, t: ir.Expr, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run over every ``lanes``-th key of a tile."""
        keys, lanes = self._config.keys, self._config.lanes

        def one(number: ir.Expr) -> tirx.Stmt:
            key = number * lanes + t
            return body(key) if keys % lanes == 0 else when(key < keys, body(key))

        return loop("n", -(-keys // lanes), one)

    def _scores(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        total = load(self._sum, [r, t])

        def one(key: ir.Expr) -> tirx.Stmt:
            def add(d: ir.Expr) -> tirx.Stmt:
                return assign(total, total + load(self._q, [r, d]) * load(self._tile, [key, d]))

            pattern = self._pattern
            at = {**self._position(r), pattern.key.var: start + key}
            value = substitute(pattern.score, {**at, pattern.raw: total})
            value = tirx.if_then_else(start + key < self._count, value, float_(-float("inf")))
            return sequence(
                [
                    assign(total, float_(0)),
                    loop("d", self._config.depth, add),
                    tirx.BufferStore(self._p, value, [r, key]),
                ]
            )

        return self._own_keys(t, one)

    def _rescale(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the new maximum, and rescale the statistics and accumulators to it."""
        m_i, l_i, alpha = (load(x, [r, t]) for x in (self._m_i, self._l_i, self._sum))
        m_new, state = load(self._m_new, [r, t]), SoftmaxState(m_i, l_i, alpha)

        def larger(key: ir.Expr) -> tirx.Stmt:
            return assign(m_new, tirx.max(m_new, load(self._p, [r, key])))

        return sequence(
            [
                assign(m_new, m_i),
                loop("key", self._config.keys, larger),
                *state.rescale(m_new),
                self._columns(lambda j: state.scale(load(self._acc, [r, t, j]))),
            ]
        )

    def _exponentials(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(key: ir.Expr) -> tirx.Stmt:
            p = load(self._p, [r, key])
            return assign(p, tirx.exp(p - load(self._m_i, [r, t])))

        return self._own_keys(t, one)

    def _accumulate(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        pattern = self._pattern
        l_i, factor = load(self._l_i, [r, t]), load(self._sum, [r, t])

        def one(key: ir.Expr) -> tirx.Stmt:
            exponential = load(self._p, [r, key])
            weight: ir.Expr = exponential
            if not pattern.weight.same_as(pattern.exponential):
                at = {**self._position(r), pattern.key.var: start + key}
                weight = substitute(pattern.weight, {**at, pattern.exponential: exponential})
                weight = tirx.if_then_else(start + key < self._count, weight, float_(0))

            def column(j: ir.Expr) -> tirx.Stmt:
                number, acc = j * self._config.lanes + t, load(self._acc, [r, t, j])
                new = assign(acc, acc + factor * load(self._tile, [key, number]))
                return self._if_column(number, new)

            return sequence(
                [
                    assign(l_i, l_i + exponential),
                    assign(factor, weight),
                    self._columns(column),
                ]
            )

        return loop("key", self._config.keys, one)

    def _if_column(self, number: ir.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        if self._config.columns % self._config.lanes == 0:
            return stmt
        return when(number < self._config.columns, stmt)

    def _finish(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Store the thread's columns of its row."""
        pattern = self._pattern
        l_i, total = load(self._l_i, [r, t]), load(self._sum, [r, t])

        def column(j: ir.Expr) -> tirx.Stmt:
            number = j * self._config.lanes + t
            at = {**self._position(r), pattern.column.var: number}
            stmt = store_result(pattern, at, load(self._acc, [r, t, j]) / l_i)
            if pattern.masked_weight is not None:
                # NaN compares false, too.
                otherwise = [*masked_row(pattern, at, total), store_result(pattern, at, total)]
                stmt = tirx.IfThenElse(l_i > float_(0), stmt, sequence(otherwise))
            return self._if_column(number, stmt)

        stmt = self._columns(column)
        if pattern.query is None:
            return stmt if self._config.rows == 1 else when(r < 1, stmt)
        return when(self._first + r < self._queries, stmt)
