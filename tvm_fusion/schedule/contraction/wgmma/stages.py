"""Stages of a Hopper GEMM in shared memory, and the mbarriers that hand them over.

A of all stages, B of all stages      128-byte swizzle, as TMA writes them and wgmma reads them
full[stage]     the copies of a stage are there: one arrival, and the bytes that TMA counts; of a
                computed B one more of each warp of the producer
empty[stage]    each warp of the consumers has read it
order[consumer]  of two ping-pong consumers: the other has multiplied its tile
"""

from __future__ import annotations

from tvm import ir, tirx

from ....core.expressions import load
from ....core.loops import index, sequence, when
from ...gpu import mbarrier, tma, wgmma
from ...gpu.cp_async import warp_sync
from ...gpu.warp import lane_of
from .config import WgmmaConfig


class TileStages:
    """Addresses of stages and barriers.

    Parameters
    ----------
    shared : Var
        Shared memory, bytes.
    """

    def __init__(self, config: WgmmaConfig, shared: ir.Var) -> None:
        self._config, self._shared = config, shared

    def initialize(self, maps: list[list[ir.Var]]) -> tirx.Stmt:
        """Initialize the barriers, and prefetch tensor maps; one thread does."""
        arrivals = self._config.consumers_of_tile * wgmma.WARPS
        producers = 1 + (wgmma.WARPS if self._config.computes_b else 0)
        stmts = [tma.prefetch(m) for some in maps for m in some]
        for stage in range(self._config.stages):
            stmts.append(mbarrier.init(self.full(index(stage)), producers))
            stmts.append(mbarrier.init(self.empty(index(stage)), arrivals))
        if self._config.is_ping_pong:
            stmts += [mbarrier.init(self.order_barrier(index(i)), wgmma.WARPS) for i in range(2)]
        return sequence([*stmts, mbarrier.fence_init()])

    def operand(self, i: int, stage: ir.Expr, at: ir.Expr | int = 0) -> ir.TensorLoad:
        """Return the byte ``at`` of A (0) or B (1) of a stage."""
        a, b = self._config.operands
        stage = index(stage)
        place = stage * a.bytes if i == 0 else stage * b.bytes + self._config.stages * a.bytes
        return self._at(place + at)

    def full(self, stage: ir.Expr) -> ir.TensorLoad:
        """Return the barrier at which consumers wait for a stage."""
        return self._at(index(stage) * mbarrier.BYTES + self._config.barrier_offset)

    def empty(self, stage: ir.Expr) -> ir.TensorLoad:
        """Return the barrier at which the producer waits for a stage."""
        behind = self._config.barrier_offset + self._config.stages * mbarrier.BYTES
        return self._at(index(stage) * mbarrier.BYTES + behind)

    def order_barrier(self, consumer: ir.Expr) -> ir.TensorLoad:
        """Return the barrier at which a consumer waits for its turn."""
        behind = self._config.barrier_offset + 2 * self._config.stages * mbarrier.BYTES
        return self._at(consumer * mbarrier.BYTES + behind)

    def release(self, thread: ir.Expr, stage: ir.Expr) -> tirx.Stmt:
        """Let the producer overwrite a stage: each warp has read it."""
        return when(lane_of(thread).equal(0), mbarrier.arrive(self.empty(stage)))

    def fill(self, thread: ir.Expr, stage: ir.Expr) -> tirx.Stmt:
        """Let consumers read what the threads of a warp of the producer wrote to a stage."""
        arrive = when(lane_of(thread).equal(0), mbarrier.arrive(self.full(stage)))
        return sequence([wgmma.fence_proxy(), warp_sync(), arrive])

    def ping_pong(
        self, thread: ir.Expr, own: ir.Expr, step: ir.Expr
    ) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """Wait before a tile until the other consumer has multiplied the one before.

        Parameters
        ----------
        thread, own : Expr
            The thread, and the number of its consumer.
        step : Expr
            The tile's number among the block's.

        Returns
        -------
        (list of Stmt, list of Stmt)
            What stands before the products of the tile, and behind them.
        """
        parity = tirx.floormod(tirx.floordiv(step, index(2)) + 1 - own, index(2))
        ready = when(lane_of(thread).equal(0), mbarrier.arrive(self.order_barrier(1 - own)))
        return [mbarrier.wait(self.order_barrier(own), parity)], [ready]

    def _at(self, place: ir.Expr) -> ir.TensorLoad:
        return load(self._shared, [place])
