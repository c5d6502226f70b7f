"""Stages of a Hopper GEMM in shared memory, and the barriers that hand them over (gpu/pipeline).

A of all stages, B of all stages      128-byte swizzle, as TMA writes them and wgmma reads them
full[stage]     the copies of a stage are there: one arrival, and the bytes that TMA counts; of a
                computed B one more of each warp of the producer
empty[stage]    each warp of the consumers has read it
order[consumer]  of two ping-pong consumers: the other has multiplied its tile
"""

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, sequence
from ...gpu.matrix import wgmma
from ...gpu.memory import tma
from ...gpu.memory.cp_async import warp_sync
from ...gpu.memory.pipeline import Barriers, Ring, RingPosition, initialize
from ...gpu.threads.warp import lane_of
from .config import WgmmaConfig


class TileStages:
    """Addresses of stages, and their barriers.

    Parameters
    ----------
    shared
        Shared memory, bytes.
    """

    def __init__(self, config: WgmmaConfig, shared: ir.Var) -> None:
        self._config, self._shared = config, shared
        filled = 1 + (wgmma.WARPS if config.computes_b else 0)
        emptied = config.consumers_of_tile * wgmma.WARPS
        at = RingPosition(config.tile.stages)
        self.ring = Ring(shared, config.barrier_offset, (filled, emptied), at)
        turns = 2 if config.is_ping_pong else 0
        self._order = Barriers(shared, self.ring.empty.end, turns, wgmma.WARPS)

    def initialize(self, maps: list[list[ir.Var]]) -> tirx.Stmt:
        """Initialize the barriers, and prefetch tensor maps; one thread does."""
        stmts = [tma.prefetch(m) for some in maps for m in some]
        return sequence([*stmts, *initialize(self.ring.barriers, [self._order])])

    def operand(self, i: int, stage: ir.Expr, at: ir.Expr | int = 0) -> ir.TensorLoad:
        """Return the byte ``at`` of A (0) or B (1) of a stage."""
        a, b = self._config.operands
        stage = index(stage)
        place = stage * a.bytes if i == 0 else stage * b.bytes + self._config.tile.stages * a.bytes
        return load(self._shared, [place + at])

    def fill(self, thread: ir.Expr, stage: ir.Expr) -> tirx.Stmt:
        """Let consumers read what the threads of a warp of the producer wrote to a stage."""
        filled = self.ring.full.arrive(stage, lane_of(thread))
        return sequence([wgmma.fence_proxy(), warp_sync(), filled])

    def ping_pong(
        self, thread: ir.Expr, own: ir.Expr, step: ir.Expr
    ) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """Wait before a tile until the other consumer has multiplied the one before.

        Parameters
        ----------
        thread, own
            The thread, and the number of its consumer.
        step
            The tile's number among the block's.

        Returns
        -------
        (list of Stmt, list of Stmt)
            What stands before the products of the tile, and behind them.
        """
        parity = tirx.floormod(tirx.floordiv(step, index(2)) + 1 - own, index(2))
        return [self._order.wait(own, parity)], [self._order.arrive(1 - own, lane_of(thread))]
