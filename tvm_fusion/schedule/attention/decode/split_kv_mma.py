"""The split-KV kernel of flash-decoding, on tensor cores.

grid: kv_batch * row_blocks * splits blocks; block: `groups` warps, each with 16 keys of a step
shared memory: for each warp a ring of `stages` steps of k and v; no barrier in the loop
fragments of mma.m16n8k16: A = 16 keys, or 16 columns of the values; B = 8 rows of q, or of p
issue k and v of the first `stages` steps; load q_frag (B)
for step in range(steps of this split):
    consume k_frag (A); s[16 keys, 8 rows] = mma(k_frag, q_frag)
    issue k of step + stages
    m_new = warp_all_reduce(max(m_i, score(s))) over the threads of a row
    rescale m_i, l_i, acc to m_new; p = exp(s - m_new); l_i += p          # each thread its own keys
    consume v; p_frag (B) = movmatrix(p); v_frag (A) = v, transposed in registers
    acc[16 columns, 8 rows] += mma(v_frag, p_frag)
    issue v of step + stages
l_i = warp_all_reduce(l_i); merge over the warps, in shared memory: see split_kv
"""

import operator
from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, sequence, substitute, unrolled, when
from ...gpu.matrix.ldmatrix import movmatrix
from ...gpu.matrix.mma_sync import mma_m16n8k16
from ...gpu.threads.warp import Combine, warp_all_reduce
from ..problem.online_softmax import SoftmaxState, assign, float_
from .config import FlashDecodeConfig
from .kv_pipeline import VECTOR
from .mma_config import MMA_COLUMNS, MMA_KEYS
from .split_kv_mma_loads import PAIR, MmaOperands


class MmaSplitKV(MmaOperands):
    """A block of warps: a group of four threads has two of sixteen keys, each thread two rows."""

    def __init__(
        self, config: FlashDecodeConfig, number: ir.Expr, partials: tuple[ir.Var, ...]
    ) -> None:
        super().__init__(config, number, partials)
        registers = self._registers
        self._v_frag = registers("v_frag", self._mma.k_per_lane * self._columns, self._half)
        self._p = registers("p", self._mma.k_per_lane, self._half)
        self._scores = registers("s", self._mma.c.per_lane)
        self._m_new = registers("m_thread", PAIR), registers("m_new", PAIR)
        self._alpha = registers("alpha", PAIR)
        self._buffers += [self._v_frag, self._p, self._scores, *self._m_new, self._alpha]

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run over both rows of a thread."""

        def one(slot: ir.Expr) -> tirx.Stmt:
            row = self._own_row(t, slot)
            inside = tirx.all(row >= rows.start, row < rows.stop)
            return when(inside, body(row, slot))

        return unrolled("slot", PAIR, one)

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first group of four threads store statistics."""
        return t < self._quad

    def accumulator(self, slot: ir.Expr, number: ir.Expr) -> ir.Expr:
        """Return the place of an accumulator: those of both rows of a column are neighbours."""
        return number * PAIR + slot

    def column(self, number: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Return an accumulator's column: four threads have those of the vectors they loaded."""
        vector, lane = coordinates(number, [index(-1), index(VECTOR)])
        return vector * MMA_COLUMNS + tirx.floordiv(t, index(self._quad)) * VECTOR + lane

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Compute sixteen keys of each warp, and issue those of a later step in their place."""
        config, later = self._config, number + self._config.stages

        def first(g: ir.Expr) -> ir.Expr:
            return self._start(number) + g * MMA_KEYS

        maxima, m_new = self._reduce_over_keys(self._m_new, tirx.max)
        each = config.each_thread
        return sequence(
            [
                each(lambda g, t: self._consume_keys(number, g, t)),
                each(self._multiply_keys),
                self._issue(self._key_pipeline, later),
                each(lambda g, t: self._score(first(g), g, t)),
                *maxima,
                each(lambda g, t: self._weigh(m_new, first(g), g, t)),
                each(lambda g, t: self._consume_values(number, g, t)),
                each(self._transpose_weights),
                each(self._transpose_values),
                each(self._multiply_values),
                self._issue(self._value_pipeline, later),
            ]
        )

    def _multiply_keys(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._scores, float_(0), [g, t, i])

        def one(number: ir.Expr) -> tirx.Stmt:
            start = number * self._mma.k_per_lane
            a_frag = [load(self._k_frag, [g, t, start + i * self._depth]) for i in range(2)]
            b_frag = load(self._q_frag, [g, t, start])
            return mma_m16n8k16(self._half, load(self._scores, [g, t, index(0)]), a_frag, b_frag)

        products = unrolled("fragment", self._depth // self._mma.k_per_lane, one)
        return sequence([unrolled("i", self._mma.c.per_lane, zero), products])

    def _own_key(self, first: ir.Expr, t: ir.Expr, b: ir.Expr) -> ir.Expr:
        """Return the key of a thread's ``b``-th pair of scores."""
        return first + b * self._mma.c.lanes_per_column + tirx.floordiv(t, index(self._quad))

    def _reduce_over_keys(
        self, buffers: tuple[ir.Var, ir.Var], combine: Combine
    ) -> tuple[list[tirx.Stmt], ir.Var]:
        """Reduce what the threads of a warp have of the same rows."""
        config = self._config
        return warp_all_reduce(
            buffers,
            PAIR,
            config.lanes,
            config.warp_size,
            config.each_thread,
            combine,
            self._quad,
        )

    def _score(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Compute the scores, and the maximum of a thread's scores of either row."""
        pattern = self._config.pattern

        def start(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._m_new[0], [g, t, slot]), load(self._m_i, [g, t, slot]))

        def one(i: ir.Expr) -> tirx.Stmt:
            b, slot = coordinates(i, [2, index(PAIR)])
            own, key = load(self._scores, [g, t, i]), self._own_key(first, t, b)
            m_thread = load(self._m_new[0], [g, t, slot])
            at = {**self._row(self._own_row(t, slot)), pattern.key.var: self._inside(key)}
            raw: ir.Expr = own
            if self._query.factor is not None:
                raw = raw * substitute(self._query.factor, at)
            value = substitute(pattern.score, {**at, pattern.raw: raw})
            if not self._config.is_even:
                value = tirx.Select(key < self._count, value, float_(-float("inf")))
            return sequence([assign(own, value), assign(m_thread, tirx.max(m_thread, own))])

        return sequence([unrolled("slot", PAIR, start), unrolled("i", self._mma.c.per_lane, one)])

    def _weigh(self, m_new: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Rescale to the new maxima, and make weights of scores."""
        pattern = self._config.pattern

        def state(slot: ir.Expr) -> SoftmaxState:
            return SoftmaxState(
                *(load(x, [g, t, slot]) for x in (self._m_i, self._l_i, self._alpha))
            )

        def rescale(slot: ir.Expr) -> tirx.Stmt:
            return sequence(state(slot).rescale(load(m_new, [g, t, slot])))

        def one(i: ir.Expr) -> tirx.Stmt:
            b, slot = coordinates(i, [2, index(PAIR)])
            p, key = load(self._scores, [g, t, i]), self._own_key(first, t, b)
            at = {**self._row(self._own_row(t, slot)), pattern.key.var: self._inside(key)}
            weight = substitute(pattern.weight, {**at, pattern.exponential: p})
            l_i = load(self._l_i, [g, t, slot])
            return sequence(
                [
                    assign(p, tirx.exp(p - load(m_new, [g, t, slot]))),
                    assign(l_i, l_i + p),
                    tirx.BufferStore(self._p, tirx.Cast(self._half, weight), [g, t, i]),
                ]
            )

        def scaled(i: ir.Expr) -> tirx.Stmt:
            slot = tirx.floormod(i, index(PAIR))
            return state(slot).scale(load(self._acc, [g, t, i]))

        return sequence(
            [
                unrolled("slot", PAIR, rescale),
                unrolled("i", self._mma.c.per_lane, one),
                unrolled("i", PAIR * self._columns, scaled),
            ]
        )

    def _transpose_weights(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Make a B fragment of the weights, which are accumulators."""

        def one(b: ir.Expr) -> tirx.Stmt:
            where = [g, t, b * PAIR]
            return movmatrix(load(self._p_frag, where), load(self._p, where))

        return unrolled("i", 2, one)

    def _transpose_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Make A fragments of elements of several values."""
        count = self._mma.k_per_lane

        def element(i: ir.Expr) -> tirx.Stmt:
            vector, lane, key = coordinates(i, [index(-1), VECTOR, count])
            value = load(self._v, [g, t, (vector * count + key) * VECTOR + lane])
            return tirx.BufferStore(self._v_frag, value, [g, t, i])

        return unrolled("i", count * self._columns, element)

    def _multiply_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(number: ir.Expr) -> tirx.Stmt:
            starts = [(number * 2 + i) * self._mma.k_per_lane for i in range(2)]
            a_frag = [load(self._v_frag, [g, t, start]) for start in starts]
            b_frag = load(self._p_frag, [g, t, index(0)])
            acc = load(self._acc, [g, t, number * self._mma.c.per_lane])
            return mma_m16n8k16(self._half, acc, a_frag, b_frag)

        return unrolled("fragment", self._columns // 2, one)

    def epilogue(self) -> list[tirx.Stmt]:
        """Sum the exponentials of each row over the threads that share it."""
        stmts, self._l_i = self._reduce_over_keys((self._l_i, self._alpha), operator.add)
        return stmts
