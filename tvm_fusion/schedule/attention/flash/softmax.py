"""The online softmax of FlashAttention on tensor cores, on accumulators of a tile's scores.

s = score(s), masked;  m_new = max(m_i, row maxima of s)     over the threads of a row
m_new = m_i where it is not far larger                       as in FlashAttention-4
alpha = exp(m_i - m_new);  m_i = m_new;  l_i *= alpha;  acc *= alpha where a row's is not 1
p = exp(s - m_i);  l_i += p;  p_frag = p, in pairs           A fragment of the product with v
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, sequence, substitute, unrolled
from ...gpu.registers.moves import store_pair
from ..problem.online_softmax import assign, float_
from .block import FlashBlock, FlashMmaBlock

# The exponential of softmax, and votes of a warp that spare work.
#
# CUDA's ``exp2f`` scales the arguments whose results are denormal, and these again: three
# instructions more than ``ex2``, which gives 0 for them. Weights of a softmax whose largest is 1
# lose nothing by that.


_EXP2 = "tvm_fusion_exp2_ftz"
_EXP2_SOURCE = f"""
__device__ __forceinline__ float {_EXP2}(float x) {{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
"""
_EXP2_FMA = "tvm_fusion_exp2_fma_ftz"
_EXP2_FMA_SOURCE = f"""
__device__ __forceinline__ float {_EXP2_FMA}(float x, float factor, float summand) {{
  float y;
  asm("{{ .reg .f32 t; fma.rn.f32 t, %1, %2, %3; ex2.approx.ftz.f32 %0, t; }}"
      : "=f"(y) : "f"(x), "f"(factor), "f"(summand));
  return y;
}}
"""
_ANY = "tvm_fusion_any_of_warp"
_ANY_SOURCE = f"""
__device__ __forceinline__ bool {_ANY}(bool x) {{
  return __any_sync(0xffffffffu, x);
}}
"""


def exp2_ftz(x: ir.Expr) -> ir.Expr:
    """Compute ``2 ** x`` in float32; results below ``2 ** -126`` are 0."""
    return cuda_func_call(_EXP2, x, source_code=_EXP2_SOURCE, return_type="float32")


def exp2_fma_ftz(x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
    """Compute ``2 ** (x * factor + summand)``, the exponent in one instruction."""
    arguments = (x, factor, summand)
    source = _EXP2_FMA_SOURCE
    return cuda_func_call(_EXP2_FMA, *arguments, source_code=source, return_type="float32")


def any_of_warp(condition: ir.Expr) -> ir.Expr:
    """Tell all threads of a warp whether a condition holds for any of them."""
    return cuda_func_call(_ANY, condition, source_code=_ANY_SOURCE, return_type="bool")


LOG2_E = math.log2(math.e)
# Exponentials are of scores over a maximum that is at most so much, in powers of two, below the
# largest: sums and results are seldom rescaled, and half types hold 256 as they hold 1. On an H100,
# rescaled for every new maximum and seldom: 4x32x4096x128, causal, 1,017 and 975 us; 2x16x2048x128
# 126.1 and 122.6; of 256, causal, 135.8 and 128.3.
FAR = 8.0
LEAST_MAXIMUM = -1e30  # that is multiplied before it is subtracted
PAIR = 2  # neighbouring weights that one instruction of CUDA's rounds


class FlashSoftmax(FlashBlock, ABC):
    """One thread, and the rows and columns that it has of scores."""

    _edges: ir.Var | None = None  # of each row of the thread, columns of a tile: from, and up to

    def _softmax(self, n: ir.Expr) -> tirx.Stmt:
        """Compute scores, their maxima, and weights; rescale what was accumulated."""
        return sequence(
            [
                self._maxima(n),
                self._rescale_results(),
                self._exponentials(),
                self._pack_weights(n),
            ]
        )

    def _maxima(self, n: ir.Expr) -> tirx.Stmt:
        """Compute scores and their maxima; rescale the sums of rows."""
        form, tiles = self._problem.score, self._tiles
        inside = self._scores(n, form.inside)
        if tiles.are_whole:
            scores = inside
        else:
            scores = tirx.IfThenElse(tiles.is_whole(n), inside, self._masked_scores(n))

        def start(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._m_new, [slot]), load(self._m_i, [slot]))

        def larger(i: ir.Expr) -> tirx.Stmt:
            m_new = load(self._m_new, [self._slot_of(i)])
            return assign(m_new, self._larger(m_new, load(self._s, [i])))

        return sequence(
            [
                scores,
                unrolled("slot", self._slots, start),
                unrolled("i", int(self._s.ty.shape[0]), larger),
                *self._move_maxima(),
            ]
        )

    def _move_maxima(self) -> list[tirx.Stmt]:
        """Take the maxima of whole rows where they are far larger; rescale the sums of rows."""

        def exp(x: ir.Expr) -> ir.Expr:
            return self._exp2(x * float_(self._scale))

        def rescale(slot: ir.Expr) -> tirx.Stmt:
            m_new, m_i = load(self._m_new, [slot]), load(self._m_i, [slot])
            kept = assign(m_new, tirx.Select(self._is_far(slot), m_new, m_i))
            return sequence([kept, *self._state(slot).rescale(m_new, exp)])

        reduced = self._all_reduce(self._m_new, self._larger)
        return [*reduced, unrolled("slot", self._slots, rescale)]

    def _is_far(self, slot: ir.Expr) -> ir.Expr:
        """Whether a row's new maximum is far larger than that which its weights are relative to."""
        m_new, m_i = load(self._m_new, [slot]), load(self._m_i, [slot])
        return (m_new - m_i) * float_(self._scale) > float_(FAR)

    @abstractmethod
    def _larger(self, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        """Return the larger of two numbers; NaN need not be passed on."""

    @abstractmethod
    def _exp2(self, x: ir.Expr) -> ir.Expr:
        """Compute ``2 ** x``; denormal results are 0."""

    @abstractmethod
    def _exp2_fma(self, x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
        """Compute ``2 ** (x * factor + summand)``."""

    @abstractmethod
    def _pack_weights(self, n: ir.Expr) -> tirx.Stmt:
        """Make of exponentials an operand of the second product."""

    @property
    def _scale(self) -> float:
        """What a score is multiplied with in the exponent of two."""
        return self._problem.score.factor * LOG2_E

    @abstractmethod
    def _rescale_results(self) -> tirx.Stmt:
        """Move what was accumulated to the new maxima."""

    def _is_rescaled(self) -> ir.Expr:
        """Whether a row of the thread has a new maximum."""
        factors = [load(self._alpha, [index(slot)]) for slot in range(self._slots)]
        return tirx.any(*(tirx.NE(alpha, float_(1)) for alpha in factors))

    def _rescaled(self) -> tirx.Stmt:
        def scaled(i: ir.Expr) -> tirx.Stmt:
            slot, *_ = self._place_of(i, self._column_cells)
            return self._state(slot).scale(load(self._acc, [i]))

        return unrolled("i", int(self._acc.ty.shape[0]), scaled)

    def _slot_of(self, i: ir.Expr) -> ir.Expr:
        """Return the row of a score among those of the thread."""
        slot, *_ = self._place_of(i, self._key_cells)
        return slot

    def _scores(
        self,
        n: ir.Expr,
        score: ir.Expr,
        is_seen: Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr] | None = None,
    ) -> tirx.Stmt:
        """Compute scores; those of keys that a row does not see, by ``is_seen``, are hidden.

        It is given the row among those of the thread, the column of the tile without what follows
        from the thread, and the key.
        """
        pattern, tiles = self._problem.pattern, self._tiles

        def one(i: ir.Expr) -> tirx.Stmt:
            slot, cell, lane = self._place_of(i, self._key_cells)
            key = tiles.start(n) + self._own_column(cell, lane)
            at = {**self._row(slot), pattern.key.var: tiles.clamped(key) if is_seen else key}
            raw: ir.Expr = load(self._s, [i])
            if self._problem.factor is not None:
                raw = raw * substitute(self._problem.factor, at)
            value = substitute(score, {**at, pattern.raw: raw})
            if is_seen is not None:
                column = cell * self._cell.shape[1] + lane
                value = tirx.Select(is_seen(slot, column, key), value, float_(-math.inf))
            return assign(load(self._s, [i]), value)

        return unrolled("i", int(self._s.ty.shape[0]), one)

    def _masked_scores(self, n: ir.Expr) -> tirx.Stmt:
        """Compute scores of a tile that not all rows see whole."""
        form, tiles = self._problem.score, self._tiles
        if form.bounds and not form.hides_wholly:

            def is_key(_slot: ir.Expr, _column: ir.Expr, key: ir.Expr) -> ir.Expr:
                return tirx.const(True) if tiles.is_even else key < tiles.keys

            return self._scores(n, form.full, is_key)
        if self._edges is None:
            self._edges = self._declare("edges", 2 * self._slots, "int32")
        first = tiles.start(n) + self._own_column(index(0), index(0))

        def edge(slot: ir.Expr, is_upper: bool) -> ir.TensorLoad:
            return load(self._edges, [slot * 2 + int(is_upper)])

        def found(slot: ir.Expr) -> tirx.Stmt:
            """Find the first and the last column that a row sees, in 32 bits."""
            stmts = []
            for is_upper in sides:
                limit = self._limit(slot, is_upper) - first
                limit = tirx.max(tirx.min(limit, index(self._config.block_n)), index(-1))
                stmts.append(assign(edge(slot, is_upper), tirx.Cast("int32", limit)))
            return sequence(stmts)

        def is_seen(slot: ir.Expr, column: ir.Expr, _key: ir.Expr) -> ir.Expr:
            own = tirx.Cast("int32", column)
            return tirx.all(
                *(own <= edge(slot, True) if upper else own >= edge(slot, False) for upper in sides)
            )

        sides = [False] if any(not b.is_upper for b in form.bounds) else []
        sides += [True] if not tiles.is_even or any(b.is_upper for b in form.bounds) else []
        scores = self._scores(n, form.inside, is_seen)
        return sequence([unrolled("slot", self._slots, found), scores])

    def _limit(self, slot: ir.Expr, is_upper: bool) -> ir.Expr:
        """Return the last key that a row sees, or the first one."""
        at, count = self._row(slot), 0
        limit = self._tiles.keys - 1 if is_upper else index(0)
        for bound in self._problem.score.bounds:
            own = substitute(bound.limit, at)
            if bound.is_loaded:
                place = index(count * self._slots) + slot
                own, count = tirx.Cast("int64", load(self._own_limits, [place])), count + 1
            if bound.is_upper == is_upper:
                limit = tirx.min(limit, own) if is_upper else tirx.max(limit, own)
        return limit

    def _exponentials(self) -> tirx.Stmt:
        """Make exponentials of scores, and add them up."""
        bounded, scale = self._problem.score.is_bounded, self._scale

        def base(slot: ir.Expr) -> tirx.Stmt:
            m_i = tirx.max(load(self._m_i, [slot]), float_(LEAST_MAXIMUM))
            return assign(load(self._m_new, [slot]), m_i * float_(-scale))

        def exponential(i: ir.Expr) -> tirx.Stmt:
            slot, p = self._slot_of(i), load(self._s, [i])
            if bounded:
                value = self._exp2_fma(p, float_(scale), load(self._m_new, [slot]))
            else:
                value = self._exp2((p - load(self._m_i, [slot])) * float_(scale))
            l_i = load(self._l_i, [slot])
            return sequence([assign(p, value), assign(l_i, l_i + p)])

        size = int(self._s.ty.shape[0])
        bases = [unrolled("slot", self._slots, base)] if bounded else []
        return sequence([*bases, unrolled("i", size, exponential)])

    def _weight(self, n: ir.Expr, i: ir.Expr) -> ir.Expr:
        """Return the weight of an exponential."""
        pattern, tiles = self._problem.pattern, self._tiles
        p = load(self._s, [i])
        if pattern.weight.same_as(pattern.exponential):
            return p
        slot, cell, lane = self._place_of(i, self._key_cells)
        key = tiles.clamped(tiles.start(n) + self._own_column(cell, lane))
        at = {**self._row(slot), pattern.key.var: key}
        return substitute(pattern.weight, {**at, pattern.exponential: p})


class FlashMmaSoftmax(FlashSoftmax, FlashMmaBlock):
    """The same of a warp of CUDA."""

    def _larger(self, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        return tirx.max(a, b)

    def _exp2(self, x: ir.Expr) -> ir.Expr:
        return exp2_ftz(x)

    def _exp2_fma(self, x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
        return exp2_fma_ftz(x, factor, summand)

    def _rescale_results(self) -> tirx.Stmt:
        is_rescaled = any_of_warp(self._is_rescaled())
        return tirx.IfThenElse(is_rescaled, self._rescaled(), None)

    def _pack_weights(self, n: ir.Expr) -> tirx.Stmt:
        pairs = self._key_cells // 2

        def pack(i: ir.Expr) -> tirx.Stmt:
            m, k16, j, half = coordinates(i, [self._config.m16, pairs, 2, self._cell_rows])
            place = (((m * pairs + k16) * self._cell_rows + half) * 2 + j) * PAIR
            low, high = (self._weight(n, i * PAIR + lane) for lane in range(PAIR))
            return store_pair(load(self._p_frag, [place]), low, high, self._half)

        return unrolled("i", int(self._s.ty.shape[0]) // PAIR, pack)
