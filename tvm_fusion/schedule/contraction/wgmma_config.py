"""Configuration of a GEMM on Hopper's tensor cores: TMA pipeline, wgmma, a persistent grid.

grid     as many blocks as run at once; each takes every grid-th tile of C, M innermost in groups
block    one producer warpgroup, and consumers that share the rows of the tile
stage    tiles of A and B, block_k = 64 terms: 128 bytes of a half type
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...core.loops import constant, index
from ..gpu import mbarrier
from ..gpu.mma import GROUPS
from ..gpu.tma import PANEL
from ..gpu.wgmma import THREADS, M
from .tile_gemm_config import TileGemmConfig
from .tile_shape import REGISTER_FILE
from .tma_operand import TmaOperand

BLOCK_K = PANEL
# Registers of a thread: 384 threads start with 168 each; consumers take what the producer gives.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
OTHER_REGISTERS = 96  # of a consumer, beside accumulators: results and what they read


@dataclass(frozen=True)
class WgmmaConfig(TileGemmConfig):
    """Configuration of a GEMM with TMA and wgmma.

    Attributes
    ----------
    operand_a, operand_b : TmaOperand
        The operands.
    consumers : int
        Warpgroups that multiply, 1 or 2.
    is_ping_pong : bool
        Whether two consumers take turns, each with a tile of its own: one multiplies while the
        other stores its results. Otherwise they share the rows of a tile.
    blocks_per_sm : int
        Blocks that a multiprocessor holds at once.
    multiprocessors : int
        How many there are.
    """

    operand_a: TmaOperand | None = None
    operand_b: TmaOperand | None = None
    consumers: int = 2
    is_ping_pong: bool = False
    blocks_per_sm: int = 1
    multiprocessors: int = 1

    @property
    def resident(self) -> int:
        """Blocks that run at once."""
        return self.blocks_per_sm * self.multiprocessors

    @property
    def operands(self) -> tuple[TmaOperand, TmaOperand]:
        """A and B."""
        assert self.operand_a is not None
        assert self.operand_b is not None
        return self.operand_a, self.operand_b

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS * (1 + self.consumers)

    @property
    def slabs(self) -> int:
        """Instructions that a consumer's rows take."""
        return self.block_m // self.sharers // M

    @property
    def sharers(self) -> int:
        """Consumers that share the rows of a tile."""
        return 1 if self.is_ping_pong else self.consumers

    @property
    def tiles(self) -> ir.Expr:
        """Tiles of C."""
        return super().blocks

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the grid."""
        count = constant(self.tiles)
        if count is not None:
            return index(min(count, self.resident))
        return tirx.min(self.tiles, index(self.resident))

    @property
    def accumulators(self) -> int:
        """Accumulators of a consumer's thread."""
        return self.slabs * self.block_n // 2

    @property
    def barrier_offset(self) -> int:
        """Where the barriers lie in shared memory, in bytes."""
        return self.stages * self.stage_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, two barriers for each, and two for turns."""
        return self.barrier_offset + 2 * (self.stages + 1) * mbarrier.BYTES

    @property
    def registers(self) -> int:
        """Registers of a thread at the start of a block."""
        if self.consumers == 2:
            return 168  # so that all warpgroups together have the whole file
        most = REGISTER_FILE // (self.threads * self.blocks_per_sm) // 8 * 8
        return min(255, most, OTHER_REGISTERS + self.accumulators)

    @property
    def n8(self) -> int:
        """Tiles of eight columns of a thread's accumulators."""
        return self.block_n // GROUPS
