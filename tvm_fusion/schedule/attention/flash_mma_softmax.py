"""The online softmax of FlashAttention on tensor cores, on accumulators of a tile's scores.

s = score(s), masked;  m_new = max(m_i, row maxima of s)     over the four threads of a row
alpha = exp(m_i - m_new);  m_i = m_new;  l_i *= alpha;  acc *= alpha where a row's is not 1
p = exp(s - m_i);  l_i += p;  p_frag = p, in pairs           A fragment of the product with v
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import coordinates, index, sequence, substitute, unrolled
from ..gpu.exponential import any_of_warp, exp2_fma_ftz, exp2_ftz
from ..gpu.register_moves import store_pair
from .flash_mma_block import PAIR, FlashMmaBlock
from .online_softmax import assign, float_

LOG2_E = math.log2(math.e)
LEAST_MAXIMUM = -1e30  # that is multiplied before it is subtracted


class FlashMmaSoftmax(FlashMmaBlock):
    """One thread, and the rows and columns that it has of scores."""

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
        inside = self._scores(n, form.inside, False)
        if tiles.are_whole:
            scores = inside
        else:
            score = form.full if self._own_limits is None else form.inside
            scores = tirx.IfThenElse(tiles.is_whole(n), inside, self._scores(n, score, True))

        def start(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._m_new, [slot]), load(self._m_i, [slot]))

        def larger(i: ir.Expr) -> tirx.Stmt:
            m_new = load(self._m_new, [self._slot_of(i)])
            return assign(m_new, tirx.max(m_new, load(self._s, [i])))

        def exp(x: ir.Expr) -> ir.Expr:
            return exp2_ftz(x * float_(self._scale))

        def rescale(slot: ir.Expr) -> tirx.Stmt:
            return sequence(self._state(slot).rescale(load(self._m_new, [slot]), exp))

        return sequence(
            [
                scores,
                unrolled("slot", self._slots, start),
                unrolled("i", int(self._s.ty.shape[0]), larger),
                *self._all_reduce(self._m_new, tirx.max),
                unrolled("slot", self._slots, rescale),
            ]
        )

    @property
    def _scale(self) -> float:
        """What a score is multiplied with in the exponent of two."""
        return self._problem.score.factor * LOG2_E

    def _rescale_results(self) -> tirx.Stmt:
        """Move what was accumulated to the new maxima."""
        factors = [load(self._alpha, [index(slot)]) for slot in range(self._slots)]
        is_rescaled = [tirx.NE(alpha, float_(1)) for alpha in factors]

        def scaled(i: ir.Expr) -> tirx.Stmt:
            return self._state(self._slot_of(i, self._columns8)).scale(load(self._acc, [i]))

        # Behind the first tiles, new maxima are rare.
        return tirx.IfThenElse(
            any_of_warp(tirx.any(*is_rescaled)),
            unrolled("i", int(self._acc.ty.shape[0]), scaled),
            None,
        )

    def _slot_of(self, i: ir.Expr, n8: int | None = None) -> ir.Expr:
        """Give the row of an accumulator among those of the thread."""
        m, _, half, _ = coordinates(i, [self._config.m16, n8 or self._n8, 2, PAIR])
        return m * 2 + half

    def _scores(self, n: ir.Expr, score: ir.Expr, tests_keys: bool) -> tirx.Stmt:
        pattern, tiles = self._problem.pattern, self._tiles

        def one(i: ir.Expr) -> tirx.Stmt:
            m, n8, half, lane = coordinates(i, [self._config.m16, self._n8, 2, PAIR])
            key = tiles.start(n) + self._own_column(n8, lane)
            inside = tiles.clamped(key) if tests_keys else key
            at = {**self._row(m * 2 + half), pattern.key.var: inside}
            raw: ir.Expr = load(self._s, [i])
            if self._problem.factor is not None:
                raw = raw * substitute(self._problem.factor, at)
            value = substitute(score, {**at, pattern.raw: raw})
            if tests_keys and self._own_limits is not None:
                value = tirx.Select(self._sees(m * 2 + half, at), value, float_(-math.inf))
            if tests_keys and not tiles.is_even:
                value = tirx.Select(key < tiles.keys, value, float_(-math.inf))
            return assign(load(self._s, [i]), value)

        return unrolled("i", int(self._s.ty.shape[0]), one)

    def _sees(self, slot: ir.Expr, at: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
        """Whether a row sees a key, by limits that are held in registers where they were loaded."""
        key, found, conditions = at[self._problem.pattern.key.var], 0, []
        for bound in self._problem.score.bounds:
            if bound.is_loaded:
                place = index(found * self._slots) + slot
                limit, own = load(self._own_limits, [place]), tirx.Cast("int32", key)
                found += 1
            else:
                limit, own = substitute(bound.limit, at), key
            conditions.append(own <= limit if bound.is_upper else own >= limit)
        return tirx.all(*conditions)

    def _exponentials(self) -> tirx.Stmt:
        """Make exponentials of scores, and add them up."""
        bounded, scale = self._problem.score.is_bounded, self._scale

        def base(slot: ir.Expr) -> tirx.Stmt:
            m_i = tirx.max(load(self._m_i, [slot]), float_(LEAST_MAXIMUM))
            return assign(load(self._m_new, [slot]), m_i * float_(-scale))

        def exponential(i: ir.Expr) -> tirx.Stmt:
            slot, p = self._slot_of(i), load(self._s, [i])
            if bounded:
                value = exp2_fma_ftz(p, float_(scale), load(self._m_new, [slot]))
            else:
                value = exp2_ftz((p - load(self._m_i, [slot])) * float_(scale))
            l_i = load(self._l_i, [slot])
            return sequence([assign(p, value), assign(l_i, l_i + p)])

        size = int(self._s.ty.shape[0])
        bases = [unrolled("slot", self._slots, base)] if bounded else []
        return sequence([*bases, unrolled("i", size, exponential)])

    def _pack_weights(self, n: ir.Expr) -> tirx.Stmt:
        """Make of exponentials the A fragment of the second product."""
        pattern, tiles = self._problem.pattern, self._tiles

        def weight(i: ir.Expr, lane: int) -> ir.Expr:
            m, n8, half = coordinates(i, [self._config.m16, self._n8, 2])
            p = load(self._s, [i * PAIR + lane])
            if pattern.weight.same_as(pattern.exponential):
                return p
            key = tiles.clamped(tiles.start(n) + self._own_column(n8, index(lane)))
            at = {**self._row(m * 2 + half), pattern.key.var: key}
            return substitute(pattern.weight, {**at, pattern.exponential: p})

        def pack(i: ir.Expr) -> tirx.Stmt:
            m, k16, j, half = coordinates(i, [self._config.m16, self._n8 // 2, 2, 2])
            place = (((m * (self._n8 // 2) + k16) * 2 + half) * 2 + j) * PAIR
            return store_pair(load(self._p_frag, [place]), weight(i, 0), weight(i, 1), self._half)

        return unrolled("i", int(self._s.ty.shape[0]) // PAIR, pack)
