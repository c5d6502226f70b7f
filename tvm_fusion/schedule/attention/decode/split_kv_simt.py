"""The split-KV kernel of flash-decoding, on CUDA cores.

grid: kv_batch * row_blocks * splits blocks
block: (groups, lanes) threads; the lanes of a group share a key, and interleave its vectors
registers of a thread: q[block_m, head_dim / lanes], acc[block_m, head_dim_v / lanes],
    m_i[block_m], l_i[block_m]
for step in range(steps of this split):                 # block_n = groups * keys_in_flight keys
    k, v = load(keys_in_flight keys of the group)                    # global -> registers, vectors
    s[key, row] = sum over the thread's elements of q[row] * k[key]
    s = warp_all_reduce(s) over the lanes of a group
    for row in range(block_m):
        m_new = max(m_i, score(s[:, row])); rescale m_i, l_i, acc to m_new
        for key: p = exp(s[key, row] - m_new); l_i += p; acc[row] += weight(p) * v[key]
merge over the groups, in shared memory: see split_kv
"""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    sequence,
    substitute,
    threads,
    unrolled,
    vectorized,
    when,
)
from ....program.program import Program
from ....program.stage import Axis
from ...gpu.launch import min_blocks_per_sm
from ...gpu.threads.warp import warp_all_reduce
from ...index.address import conditions_of
from ..problem.online_softmax import SoftmaxState, assign, float_, initialize
from ..problem.pattern import FLOAT
from .config import FlashDecodeConfig
from .split_kv import SplitKV
from .split_kv_mma import MmaSplitKV


def split_kv_kernel(
    program: Program, config: FlashDecodeConfig, partials: tuple[ir.Var, ...]
) -> tirx.PrimFunc:
    """Make the split-KV kernel.

    Parameters
    ----------
    partials
        Get accumulators, ``[kv_batch, rows, splits, head_dim_v]``, each relative to its own max;
        and those maxima and sums of exponentials, ``[kv_batch, rows, 2, splits]``. Without, blocks
        merge them and store the program's outputs.
    """

    def body(number: ir.Expr) -> tirx.Stmt:
        made = MmaSplitKV if config.uses_mma else SimtSplitKV
        stmt = min_blocks_per_sm(made(config, number, partials).stmt(), config.min_blocks)
        if partials or config.splits == 1:
            return stmt
        # A block's rank is its number modulo the cluster's size: that of its split.
        return threads("clusterCtaIdx.x", config.splits, lambda _: stmt)

    outputs = partials or program.outputs
    whole = Program(program.inputs, outputs, program.scalars, (), 0)
    return kernel(whole, threads("blockIdx.x", config.blocks, body))


class SimtSplitKV(SplitKV):
    """A block on CUDA cores: some neighbouring threads share a key."""

    def __init__(
        self, config: FlashDecodeConfig, number: ir.Expr, partials: tuple[ir.Var, ...]
    ) -> None:
        super().__init__(config, number, partials, config.lanes, config.block_m)
        self._depth, keys = config.head_dim // config.lanes, config.keys_in_flight
        self._q = self._registers("q", config.block_m * self._depth)
        self._k = [
            self._registers(f"{x.source.name}_keys", keys * self._depth, str(x.ty.dtype))
            for x in config.keys
        ]
        self._v = [
            self._registers(f"{x.source.name}_values", keys * self._columns, str(x.ty.dtype))
            for x in config.values
        ]
        count = config.block_m * keys
        self._scores = self._registers("s", count), self._registers("s_exchanged", count)
        self._buffers += [self._q, *self._k, *self._v, *self._scores]

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run over all of them: each thread holds its columns of every row."""
        return unrolled("row", len(rows), lambda n: body(n + rows.start, n + rows.start))

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first of the threads that share a key store statistics."""
        return tirx.EQ(t, index(0))

    def column(self, number: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Interleave the vectors of a row among the threads."""
        vector, lane = coordinates(number, [index(-1), index(self._config.width)])
        return (vector * self._config.lanes + t) * self._config.width + lane

    def prologue(self) -> list[tirx.Stmt]:
        """Load the queries of all rows."""
        return [self._config.each_thread(self._load_queries)]

    def _load_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        config, pattern = self._config, self._config.pattern

        def row(r: ir.Expr) -> tirx.Stmt:
            def element(i: ir.Expr) -> tirx.Stmt:
                at = {**self._position(r), pattern.depth.var: self.column(i, t)}
                value = substitute(pattern.q, at)
                return tirx.BufferStore(self._q, value, [g, t, r * self._depth + i])

            def zero(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._acc, float_(0), [g, t, r * self._columns + i])

            return sequence(
                [
                    unrolled("i", self._depth, element),
                    unrolled("i", self._columns, zero),
                    *initialize(load(self._m_i, [g, t, r]), load(self._l_i, [g, t, r])),
                ]
            )

        return unrolled("row", config.block_m, row)

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Compute the scores of the next keys, and accumulate their values."""
        config = self._config
        first = self._start(number)
        count = config.block_m * config.keys_in_flight
        exchanges, scores = warp_all_reduce(
            self._scores, count, config.lanes, config.warp_size, config.each_thread
        )
        return sequence(
            [
                config.each_thread(lambda g, t: self._multiply_keys(first, g, t)),
                *exchanges,
                config.each_thread(lambda g, t: self._accumulate(scores, first, g, t)),
            ]
        )

    def _key(self, first: ir.Expr, g: ir.Expr, slot: ir.Expr) -> ir.Expr:
        return first + slot * self._config.groups + g

    def _multiply_keys(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Load keys and values, and multiply the thread's elements of the keys."""
        config, pattern = self._config, self._config.pattern

        def vectors(
            operand: ir.Expr,
            found: Sequence[ir.TensorLoad],
            registers: Sequence[ir.Var],
            axis: Axis,
            size: int,
        ) -> tirx.Stmt:
            def slot(s: ir.Expr) -> tirx.Stmt:
                at = {**self._position(0), pattern.key.var: self._inside(self._key(first, g, s))}

                def vector(n: ir.Expr) -> tirx.Stmt:
                    def one(x: ir.TensorLoad, register: ir.Var) -> tirx.Stmt:
                        def element(lane: ir.Expr) -> tirx.Stmt:
                            place = (n * config.lanes + t) * config.width + lane
                            own = s * size + n * config.width + lane
                            value = substitute(x, {**at, axis.var: place})
                            return tirx.BufferStore(register, value, [g, t, own])

                        stmt = vectorized(config.width, element)
                        # Appended keys lie in another buffer than those of the cache.
                        there = {**at, axis.var: (n * config.lanes + t) * config.width}
                        for condition in conditions_of(x, operand):
                            stmt = when(substitute(condition, there), stmt)
                        return stmt

                    return sequence([one(*pair) for pair in zip(found, registers, strict=True)])

                return unrolled("vector", size // config.width, vector)

            return unrolled("slot", config.keys_in_flight, slot)

        def products(s: ir.Expr) -> tirx.Stmt:
            key = self._inside(self._key(first, g, s))

            def row(r: ir.Expr) -> tirx.Stmt:
                score = load(self._scores[0], [g, t, s * config.block_m + r])

                def term(i: ir.Expr) -> tirx.Stmt:
                    own = [g, t, s * self._depth + i]
                    known = {pattern.key.var: key, pattern.depth.var: self.column(i, t)}
                    value = self._operand(pattern.k, config.keys, self._k, own, known)
                    value = load(self._q, [g, t, r * self._depth + i]) * value
                    return assign(score, score + value)

                return sequence([assign(score, float_(0)), unrolled("i", self._depth, term)])

            return unrolled("row", config.block_m, row)

        return sequence(
            [
                vectors(pattern.k, config.keys, self._k, pattern.depth, self._depth),
                vectors(pattern.v, config.values, self._v, pattern.column, self._columns),
                unrolled("slot", config.keys_in_flight, products),
            ]
        )

    def _accumulate(self, scores: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Rescale to the new maximum, then add the weighted values."""
        config, pattern = self._config, self._config.pattern

        def row(r: ir.Expr) -> tirx.Stmt:
            buffers = [local(name, [1], FLOAT) for name in ("m_new", "factor")]
            m_new, factor = (load(x, [index(0)]) for x in buffers)
            m_i, l_i = load(self._m_i, [g, t, r]), load(self._l_i, [g, t, r])
            state = SoftmaxState(m_i, l_i, factor)

            def score(s: ir.Expr) -> tirx.Stmt:
                own, key = load(scores, [g, t, s * config.block_m + r]), self._key(first, g, s)
                at = {**self._position(r), pattern.key.var: self._inside(key)}
                value = substitute(pattern.score, {**at, pattern.raw: own})
                if not config.is_even:
                    value = tirx.Select(key < self._count, value, float_(-float("inf")))
                return sequence([assign(own, value), assign(m_new, tirx.max(m_new, own))])

            def scaled(i: ir.Expr) -> tirx.Stmt:
                return state.scale(load(self._acc, [g, t, r * self._columns + i]))

            def value(s: ir.Expr) -> tirx.Stmt:
                key = self._inside(self._key(first, g, s))
                at = {**self._position(r), pattern.key.var: key, pattern.exponential: factor}
                exponential = tirx.exp(load(scores, [g, t, s * config.block_m + r]) - m_new)

                def column(i: ir.Expr) -> tirx.Stmt:
                    acc = load(self._acc, [g, t, r * self._columns + i])
                    own = [g, t, s * self._columns + i]
                    known = {pattern.key.var: key, pattern.column.var: self.column(i, t)}
                    element = self._operand(pattern.v, config.values, self._v, own, known)
                    return assign(acc, acc + factor * element)

                return sequence(
                    [
                        assign(factor, exponential),
                        assign(l_i, l_i + factor),
                        assign(factor, substitute(pattern.weight, at)),
                        unrolled("i", self._columns, column),
                    ]
                )

            stmts = [
                assign(m_new, m_i),
                unrolled("slot", config.keys_in_flight, score),
                *state.rescale(m_new),
                unrolled("i", self._columns, scaled),
                unrolled("slot", config.keys_in_flight, value),
            ]
            return block("accumulate", sequence(stmts), buffers)

        return unrolled("row", config.block_m, row)
