"""FlashAttention by two warpgroups that take turns with the tensor cores.

One computes products while the other computes softmax: a barrier of the block ends each turn.

grid: batch * heads * ceil(queries / 128) blocks; block: two warpgroups of 64 rows each
shared memory: q[128, d]; two tiles k[block_n, d] and v[block_n, d], swizzled in panels
registers of a warpgroup: acc[64, d], s[64, block_n], p_frag, m_i, l_i
issue q and k(0); issue v(0) and k(1)                  each one cp.async group
wait for k(0); barrier; s = wgmma(q, k(0))
for n in range(tiles that a row of the block sees):
    first:  softmax(n): p_frag                         second:  acc += wgmma(p_frag, v(n - 1))
                                                                s = wgmma(q, k(n))
    wait for v(n) and k(n + 1); barrier; issue v(n + 1) and k(n + 2)
    first:  acc += wgmma(p_frag, v(n))                 second:  softmax(n): p_frag
            s = wgmma(q, k(n + 1))
    barrier
second: acc += wgmma(p_frag, v(last))
acc / l_i -> shared memory -> epilogue -> global, as :mod:`.flash_mma`
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import index, loop, sequence, simplified, when
from ..gpu.cp_async import commit, wait
from ..gpu.launch import block_barrier, block_by_address
from ..gpu.wgmma import WARPS, fence_proxy
from ..gpu.wgmma_chain import multiply_and_wait
from .flash_mma_copies import FlashMmaCopies
from .flash_mma_epilogue import FlashEpilogue
from .flash_mma_products import FlashMmaProducts
from .flash_mma_softmax import FlashMmaSoftmax

GROUPS = 2  # warpgroups of a block


class PingPongBlock(FlashMmaCopies, FlashMmaProducts, FlashMmaSoftmax, FlashEpilogue):
    """One thread of a block: its part of the rows of its warpgroup."""

    def stmt(self) -> tirx.Stmt:
        """Write all that the thread does."""
        count = self._tiles.count
        stmts = [
            *(self._issue_queries(), self._issue_keys(index(0)), commit()),
            *self._issue_pair(index(0)),
            self._initialize(),
            *(wait(1), fence_proxy(), block_barrier()),
            self._by_group(
                *(multiply_and_wait(self._half, [self._keys_product(index(0), g)]) for g in (0, 1))
            ),
            loop("n", count, self._step),
            when(tirx.all(count > 0, tirx.Not(self._is_first)), self._last(count - 1)),
            *self._finish(),
        ]
        return block_by_address("flash_attention", sequence(stmts), self._buffers)

    @property
    def _is_first(self) -> ir.Expr:
        return self._g < WARPS

    def _by_group(self, first: tirx.Stmt, second: tirx.Stmt) -> tirx.Stmt:
        return tirx.IfThenElse(self._is_first, first, second)

    def _issue_pair(self, n: ir.Expr) -> list[tirx.Stmt]:
        """Load what is multiplied in one turn: values of a tile, and keys of the next."""
        return [self._issue_values(n), self._issue_keys(simplified(n + 1)), commit()]

    def _step(self, n: ir.Expr) -> tirx.Stmt:
        after = simplified(n + 1)
        whole = tirx.IfThenElse(after < self._tiles.count, self._both(n, 0), self._last(n))
        return sequence(
            [
                self._by_group(self._softmax(n), when(n > 0, self._both(simplified(n - 1), 1))),
                *(wait(0), fence_proxy(), block_barrier()),
                *self._issue_pair(after),
                self._by_group(whole, self._softmax(n)),
                block_barrier(),
            ]
        )

    def _both(self, n: ir.Expr, group: int) -> tirx.Stmt:
        """Multiply the weights of a tile with its values, the queries with the next keys."""
        keys = self._keys_product(simplified(n + 1), group)
        return multiply_and_wait(self._half, [self._values_product(n), keys])

    def _last(self, n: ir.Expr) -> tirx.Stmt:
        return multiply_and_wait(self._half, [self._values_product(n)])
