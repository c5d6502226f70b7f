"""FlashAttention on CUDA cores: one launch, softmax computed online over tiles of keys.

grid: batch * heads * ceil(queries / block_m) blocks; block: (block_m / own rows, lanes) threads
shared memory: q[block_m, d]; one tile of block_n keys, then of their values; p[block_m, block_n];
               rows padded to an odd number of vectors
registers of a thread: of each of its own rows, neighbours: acc[columns / lanes],
               s[block_n / lanes], m_i, l_i
for tile of block_n keys:
    k -> shared memory; __syncthreads
    s[row, key] = score(q[row] . k[key]), each thread every lanes-th key, all of them and of its
    rows by four elements at a time; __syncthreads
    m_new = max(m_i, s[row]); rescale m_i, l_i, acc to m_new
    p[row, key] = exp(s - m_new)
    v -> shared memory; __syncthreads
    l_i += p; acc += weight(p) * v, each thread every lanes-th column or vector of columns, of
    four keys at a time; __syncthreads
out = epilogue(acc / l_i)
"""

from collections.abc import Callable

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load, loads
from ....core.tir.loops import (
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
    vectorized,
    when,
)
from ....program.program import Program
from ....program.stage import Axis
from ...index.address import known_step
from ..problem.kv_vectors import contiguous_loads, has_uniform_conditions, vector_width
from ..problem.online_softmax import (
    SoftmaxState,
    assign,
    divisor,
    float_,
    initialize,
    masked_row,
    store_result,
)
from ..problem.pattern import FLOAT, Pattern
from .config import GpuConfig

VECTOR = 4  # elements of 16 bytes


def attention_gpu(program: Program, pattern: Pattern, config: GpuConfig) -> tirx.PrimFunc:
    """Make the kernel."""
    queries = index(1) if pattern.query is None else index(pattern.query.extent)
    extents = [a.extent for a in pattern.batch]
    blocks = ceildiv(queries, config.block_m)

    def body(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, [*extents, blocks])
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return _QueryBlock(pattern, config, where, part * config.block_m, queries).stmt()

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

        own = config.rows_of_thread

        def registers(name: str, *shape: int) -> ir.Var:
            dims = [index(d) for d in (config.rows, config.lanes, own, *shape)]
            return scratch(dims, FLOAT, name, "local")

        def shared(name: str, size: int) -> ir.Var:
            # Of one dimension: TVM 0.27 takes away what pads the rows of others.
            return scratch([index(size)], FLOAT, name, "shared")

        self._items = -(-config.columns // config.lanes)
        self._acc = registers("acc", self._items)
        self._scored = registers("scored", -(-config.keys // config.lanes))
        self._m_i, self._m_new = registers("m_i"), registers("m_new")
        self._l_i, self._sum = registers("l_i"), registers("sum")
        self._q = shared("q", config.block_m * config.q_pitch)
        self._tile = shared("kv_tile", config.keys * config.tile_pitch)
        self._p = shared("p", config.block_m * config.p_pitch)

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        number = ceildiv(self._count, self._config.keys)
        stmts = [
            self._config.each_thread(self._start),
            self._load_queries(),
            loop("tile", number, lambda n: self._tile_of_keys(n * self._config.keys)),
            self._config.each_thread(self._finish),
        ]
        buffers = [self._acc, self._scored, self._m_i, self._m_new, self._l_i, self._sum]
        return block("queries", sequence(stmts), [*buffers, self._q, self._tile, self._p])

    def _position(self, r: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of a row; rows behind the last one compute it again, unstored."""
        if self._pattern.query is None:
            return dict(self._where)
        query = tirx.min(self._first + r, self._queries - 1)
        return {**self._where, self._pattern.query.var: query}

    def _q_at(self, row: ir.Expr, d: ir.Expr) -> ir.TensorLoad:
        return load(self._q, [row * self._config.q_pitch + d])

    def _tile_at(self, key: ir.Expr, d: ir.Expr) -> ir.TensorLoad:
        return load(self._tile, [key * self._config.tile_pitch + d])

    def _p_at(self, row: ir.Expr, key: ir.Expr) -> ir.TensorLoad:
        return load(self._p, [row * self._config.p_pitch + key])

    def _own_rows(self, r: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Write ``body(i, row of the block)`` for the neighbouring rows of a thread."""
        own = self._config.rows_of_thread
        return unrolled("i", own, lambda i: body(i, r * own + i))

    def _start(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(i: ir.Expr, _row: ir.Expr) -> tirx.Stmt:
            zero = self._columns(lambda j: assign(load(self._acc, [r, t, i, j]), float_(0)))
            state = initialize(load(self._m_i, [r, t, i]), load(self._l_i, [r, t, i]))
            return sequence([*state, zero])

        return self._own_rows(r, one)

    def _columns(self, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return unrolled("j", self._items, body)

    def _load_queries(self) -> tirx.Stmt:
        depth, axis = self._config.depth, self._pattern.depth
        lanes = self._lanes(self._pattern.q, axis)

        def store(flat: ir.Expr) -> tirx.Stmt:
            r, vector = coordinates(flat, [self._config.block_m, depth // lanes])

            def element(lane: ir.Expr) -> tirx.Stmt:
                d = vector * lanes + lane
                at = {**self._position(r), axis.var: d}
                return assign(self._q_at(r, d), substitute(self._pattern.q, at))

            return vectorized(lanes, element)

        return self._config.fill(self._config.block_m * depth // lanes, store)

    def _lanes(self, operand: ir.Expr, axis: Axis) -> int:
        """Choose the elements that a thread loads at once: a vector where all lie side by side."""
        found, width = contiguous_loads(self._pattern, operand, axis), int(axis.extent)
        if not found or not all(has_uniform_conditions(x, operand, axis, width) for x in found):
            return 1
        lanes = vector_width([(x, axis) for x in found])
        return VECTOR if lanes is not None and lanes >= VECTOR else 1

    def _load_tile(self, start: ir.Expr, operand: ir.Expr, axis: Axis, width: int) -> tirx.Stmt:
        """Load keys or values into shared memory, zeros behind the last."""
        keys = self._config.keys
        along_keys = self._is_contiguous_along_keys(operand, axis.var)
        lanes = 1 if along_keys else self._lanes(operand, axis)

        def store(flat: ir.Expr) -> tirx.Stmt:
            if along_keys:
                vector, key = coordinates(flat, [width, keys])
            else:
                key, vector = coordinates(flat, [keys, width // lanes])
            exists = start + key < self._count

            def element(lane: ir.Expr) -> tirx.Stmt:
                d = vector * lanes + lane
                at = {**self._where, self._pattern.key.var: start + key, axis.var: d}
                value = tirx.if_then_else(exists, substitute(operand, at), float_(0))
                return assign(self._tile_at(key, d), value)

            return vectorized(lanes, element)

        return self._config.fill(keys * width // lanes, store)

    def _is_contiguous_along_keys(self, element: ir.Expr, inner: ir.Var) -> bool:
        """Whether neighbouring threads had better load neighbouring keys."""
        key, axes = self._pattern.key.var, [a.var for a in self._pattern.batch]
        return any(
            known_step(x.source, x.indices, key, [*axes, inner]) == 1
            and known_step(x.source, x.indices, inner, [*axes, key]) != 1
            for x in loads(element)
        )

    def _tile_of_keys(self, start: ir.Expr) -> tirx.Stmt:
        """Compute the scores of a tile of keys, and accumulate their values."""
        pattern, config = self._pattern, self._config
        return sequence(
            [
                self._load_tile(start, pattern.k, pattern.depth, config.depth),
                config.each_thread(lambda r, t: self._scores(start, r, t)),
                config.each_thread(self._rescale),
                config.each_thread(self._exponentials),
                self._load_tile(start, pattern.v, pattern.column, config.columns),
                config.each_thread(lambda r, t: self._accumulate(start, r, t)),
            ]
        )

    def _own_keys(self, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Write ``body(n, key)`` for every ``lanes``-th key of a tile."""
        keys, lanes = self._config.keys, self._config.lanes

        def one(n: ir.Expr) -> tirx.Stmt:
            key = n * lanes + t
            return body(n, key) if keys % lanes == 0 else when(key < keys, body(n, key))

        return unrolled("n", -(-keys // lanes), one)

    def _scores(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Multiply own rows by own keys: what is read of either is multiplied by all of the other.

        Of each key by itself, the rows would be read from shared memory as often as a thread has
        keys, and shared memory is what bounds these products.
        """
        pattern = self._pattern

        def score(i: ir.Expr, n: ir.Expr) -> ir.TensorLoad:
            return load(self._scored, [r, t, i, n])

        def zero(n: ir.Expr, _key: ir.Expr) -> tirx.Stmt:
            return self._own_rows(r, lambda i, _row: assign(score(i, n), float_(0)))

        def add(n: ir.Expr, key: ir.Expr, d: ir.Expr) -> tirx.Stmt:
            def of_row(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
                product = self._q_at(row, d) * self._tile_at(key, d)
                return assign(score(i, n), score(i, n) + product)

            return self._own_rows(r, of_row)

        def store(n: ir.Expr, key: ir.Expr) -> tirx.Stmt:
            def of_row(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
                at = {**self._position(row), pattern.key.var: start + key}
                value = substitute(pattern.score, {**at, pattern.raw: score(i, n)})
                value = tirx.if_then_else(start + key < self._count, value, float_(-float("inf")))
                own = score(i, n)
                return sequence([assign(own, value), assign(self._p_at(row, key), own)])

            return self._own_rows(r, of_row)

        def whole(n: ir.Expr, key: ir.Expr) -> tirx.Stmt:
            terms = loop("d", self._config.depth, lambda d: add(n, key, d))
            return sequence([zero(n, key), terms, store(n, key)])

        if self._config.keys % self._config.lanes:
            return self._own_keys(t, whole)
        terms = _in_fours(
            "d", self._config.depth, lambda d: self._own_keys(t, lambda n, key: add(n, key, d))
        )
        return sequence([self._own_keys(t, zero), terms, self._own_keys(t, store)])

    def _rescale(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the new maximum, and rescale the statistics and accumulators to it."""

        def one(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
            m_i, l_i, alpha = (load(x, [r, t, i]) for x in (self._m_i, self._l_i, self._sum))
            m_new, state = load(self._m_new, [r, t, i]), SoftmaxState(m_i, l_i, alpha)

            def larger(key: ir.Expr) -> tirx.Stmt:
                return assign(m_new, tirx.max(m_new, self._p_at(row, key)))

            return sequence(
                [
                    assign(m_new, m_i),
                    loop("key", self._config.keys, larger),
                    *state.rescale(m_new),
                    self._columns(lambda j: state.scale(load(self._acc, [r, t, i, j]))),
                ]
            )

        return self._own_rows(r, one)

    def _exponentials(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Store those of the thread's own scores, which it holds."""

        def one(n: ir.Expr, key: ir.Expr) -> tirx.Stmt:
            def of_row(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
                score, m_i = load(self._scored, [r, t, i, n]), load(self._m_i, [r, t, i])
                return assign(self._p_at(row, key), tirx.exp(score - m_i))

            return self._own_rows(r, of_row)

        return self._own_keys(t, one)

    def _accumulate(self, start: ir.Expr, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        pattern = self._pattern

        def factor(i: ir.Expr) -> ir.TensorLoad:
            return load(self._sum, [r, t, i])

        def one(key: ir.Expr) -> tirx.Stmt:
            def of_row(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
                l_i, exponential = load(self._l_i, [r, t, i]), self._p_at(row, key)
                weight: ir.Expr = exponential
                if not pattern.weight.same_as(pattern.exponential):
                    at = {**self._position(row), pattern.key.var: start + key}
                    weight = substitute(pattern.weight, {**at, pattern.exponential: exponential})
                    weight = tirx.if_then_else(start + key < self._count, weight, float_(0))
                return sequence([assign(l_i, l_i + exponential), assign(factor(i), weight)])

            def column(j: ir.Expr) -> tirx.Stmt:
                number = self._column(j, t)

                def add(i: ir.Expr, _row: ir.Expr) -> tirx.Stmt:
                    acc = load(self._acc, [r, t, i, j])
                    return assign(acc, acc + factor(i) * self._tile_at(key, number))

                return self._if_column(number, self._own_rows(r, add))

            return sequence([self._own_rows(r, of_row), self._columns(column)])

        return _in_fours("key", self._config.keys, one)

    def _column(self, j: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Return a thread's columns: vectors of four, if there are whole ones for all threads."""
        lanes = self._config.lanes
        if self._config.columns % (VECTOR * lanes):
            return j * lanes + t
        vector, lane = coordinates(j, [index(1), VECTOR])
        return (vector * lanes + t) * VECTOR + lane

    def _if_column(self, number: ir.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        if self._config.columns % self._config.lanes == 0:
            return stmt
        return when(number < self._config.columns, stmt)

    def _finish(self, r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Store the thread's columns of its rows."""
        pattern = self._pattern

        def one(i: ir.Expr, row: ir.Expr) -> tirx.Stmt:
            l_i, total = load(self._l_i, [r, t, i]), load(self._sum, [r, t, i])

            def column(j: ir.Expr) -> tirx.Stmt:
                number = self._column(j, t)
                at = {**self._position(row), pattern.column.var: number}
                total_of_row = divisor(pattern, at, load(self._m_i, [r, t, i]), l_i)
                value = load(self._acc, [r, t, i, j]) / total_of_row
                stmt = store_result(pattern, at, value)
                if pattern.masked_weight is not None:
                    # NaN compares false, too.
                    otherwise = [*masked_row(pattern, at, total), store_result(pattern, at, total)]
                    stmt = tirx.IfThenElse(l_i > float_(0), stmt, sequence(otherwise))
                return self._if_column(number, stmt)

            return when(self._first + row < self._queries, self._columns(column))

        return self._own_rows(r, one)


def _in_fours(name: str, extent: int, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Write a loop over neighbours in shared memory, which are loaded as vectors."""
    if extent % VECTOR:
        return loop(name, extent, body)
    return loop(
        name,
        extent // VECTOR,
        lambda v: unrolled("lane", VECTOR, lambda i: body(v * VECTOR + i)),
    )
