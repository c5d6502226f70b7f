"""Consumers of FlashAttention on Hopper: in which order they multiply and compute softmax.

at their own pace:   for n:  s = q * k(n); softmax; acc += p * v(n)
in turns:            s = q * k(0); softmax
                     for n > 0:  in its turn:  issue s = q * k(n); acc += p * v(n - 1)
                                 maxima and exponentials of s, while acc and the other's turn go on
                                 wait(acc); rescale acc; p
                     in its turn:  acc += p * v(last)

At their own pace, two consumers come to multiply, and to compute softmax, at the same time: 1,174
us instead of 1,084 in turns (4x32x4096x128, causal, 128 keys, on an H200). Scores of the next tile
issued before softmax, with 112 keys as registers allow, took 1,175 where turns took 1,089. Turns
that end with the wait for both products took 1,081 where those that end as the products are issued
take 1,008; one of 256 elements, 2x16x2048, causal, 153 and 144.
"""

from __future__ import annotations

import operator

from tvm import ir, tirx

from ...core.loops import index, loop, sequence, simplified, when
from ..gpu import mbarrier, wgmma
from ..gpu.cp_async import warp_sync
from ..gpu.shared_tiles import touch
from .flash_tma_config import REGISTERS
from .flash_tma_roles import K_EMPTY, K_FULL, V_EMPTY, V_FULL, Roles


class Consumers(Roles):
    """A thread of a block; parameters as of :class:`.flash_tma_roles.Roles`."""

    def consume(self, group: ir.Expr) -> tirx.Stmt:
        """Compute the rows of a consumer."""
        config = self._config
        tiles = self._ping_pong if config.is_ping_pong else self._at_own_pace
        return sequence(
            [
                wgmma.take_registers(REGISTERS[config.consumers][2]),
                *self._ring.start(),
                *self._keep_limits(),
                self._initialize(),
                touch(self._s, int(self._s.ty.shape[0]) - 1),
                mbarrier.wait(self._q_full(), index(0)),
                tiles(group),
                *self._all_reduce(self._l_i, operator.add),
                *([wgmma.warpgroup_barrier(group)] if config.is_staged_in_queries else []),
                self._stage_results(),
                warp_sync(),
                self._store_results(),
            ]
        )

    def _at_own_pace(self, group: ir.Expr) -> tirx.Stmt:
        ring = self._ring

        def step(n: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    self._full(K_FULL, ring.stage, ring.parity),
                    self._multiply_queries(group),
                    self._wait_for_scores(),
                    self._release(K_EMPTY, ring.stage),
                    self._softmax(n),
                    self._full(V_FULL, ring.stage, ring.parity),
                    self._multiply_values(index(ring.stage)),
                    warp_sync(),
                    self._release(V_EMPTY, ring.stage),
                    *ring.advance(1),
                ]
            )

        return loop("n", self._tiles.count, step)

    def _ping_pong(self, group: ir.Expr) -> tirx.Stmt:
        ring, count = self._ring, self._tiles.count
        # The first one's first turn needs no other's.
        waits = tirx.Cast("int64", group.equal(0))
        following = tirx.floormod(group + 1, tirx.const(self._config.consumers, "int32"))

        def wait_order(n: ir.Expr) -> tirx.Stmt:
            return mbarrier.wait(self._order_barrier(group), tirx.floormod(n + waits, index(2)))

        passed = when(self._t.equal(0), mbarrier.arrive(self._order_barrier(following)))

        def scores(n: ir.Expr) -> list[tirx.Stmt]:
            full = self._full(K_FULL, ring.stage, ring.parity)
            return [full, wait_order(n), self._multiply_queries(group)]

        def step(m: ir.Expr) -> tirx.Stmt:
            return sequence(self._step(m + 1, scores(m + 1), passed))

        zero = index(0)
        first = [*scores(zero), passed, self._wait_for_scores(), self._release(K_EMPTY, ring.stage)]
        first += [self._softmax(zero), *ring.advance(1)]
        last = [wait_order(count), *self._issue_values_before(), passed, self._wait_for_results()]
        steps = loop("m", simplified(count - 1), step)
        return when(count > 0, sequence([*first, steps, *last]))

    def _step(self, n: ir.Expr, scores: list[tirx.Stmt], passed: tirx.Stmt) -> list[tirx.Stmt]:
        """Write what is done for a tile but the first one."""
        ring, wait = self._ring, self._wait_for_scores(1)
        return [
            *scores,
            *self._issue_values_before(),
            *([passed, wait] if self._config.passes_early else [wait, passed]),
            self._release(K_EMPTY, ring.stage),
            self._maxima(n),
            self._exponentials(),
            self._wait_and_rescale(),
            self._release(V_EMPTY, ring.before),
            self._pack_weights(n),
            *ring.advance(1),
        ]

    def _wait_and_rescale(self) -> tirx.Stmt:
        """Wait for the product with values behind the exponentials.

        All warps of a warpgroup wait at one place, as PTX wants it: the branch is of tiles. A wait
        before any branch is moved by ptxas to where the scores are waited for.
        """
        first = [self._wait_for_results(), self._rescale_results()]
        other = [self._wait_for_results(is_twin=True), self._rescale_results()]
        return tirx.IfThenElse(self._ring.stage.equal(0), sequence(first), sequence(other))

    def _issue_values_before(self) -> list[tirx.Stmt]:
        """Issue the product with the values of the tile before that at hand."""
        ring = self._ring
        parity = tirx.Select(ring.stage.equal(0), 1 - ring.parity, ring.parity)
        full = self._full(V_FULL, ring.before, parity)
        return [full, self._multiply_values(index(ring.before), is_waited_for=False)]
