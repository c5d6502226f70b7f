"""Configuration of two GEMMs back to back: resident weights, a ring of rows, chunks of N1.

grid       as many blocks as run at once; each takes every grid-th tile of 64 rows
block      a producer warpgroup, and 2 to 4 consumers, each with a tile of its own
shared     W1 by chunks of N1, W2, then stages of X: 64 rows of all K each
registers  sums of a chunk of H, its rounded values as fragments of A, sums of D
"""

from dataclasses import dataclass

from tvm import DataType

from ....core.tir.expressions import loads, variables
from ...gpu.matrix.wgmma import THREADS, M
from ...gpu.memory import mbarrier
from ...gpu.memory.tma import PANEL
from ..tile.shape import REGISTER_FILE
from ..wgmma.config import WgmmaConfig
from ..wgmma.operands.matrix import TmaOperand

OTHER_REGISTERS = 24  # of a consumer's thread, besides sums, fragments and what these read


@dataclass(frozen=True, eq=False)
class BackToBackConfig:
    """Two products in one kernel."""

    # Of tiles of 64 rows and a chunk of columns; its result is the hidden operand.
    first: WgmmaConfig
    second: WgmmaConfig  # of tiles of 64 rows and all columns; of its operands, B alone is copied
    chunk: int  # columns of H that a consumer computes at a time: terms of the second product
    consumers: int  # warpgroups that multiply
    # Tiles of rows that shared memory holds: a multiple of the consumers. One that got a stage from
    # another could be a turn ahead of a copy that is late, and take the barrier's phase before for
    # its own.
    stages: int

    @property
    def chunks(self) -> int:
        """Chunks of H."""
        return -(-self.first.problem.n // self.chunk)

    @property
    def k_tiles(self) -> int:
        """Boxes along K."""
        return -(-self.first.problem.k // PANEL)

    @property
    def w1_bytes(self) -> int:
        """Size of a chunk of W1 in shared memory."""
        return self.k_tiles * self.first.operands[1].bytes

    @property
    def w2_tiles(self) -> int:
        """Boxes of W2 along a chunk: of one where columns are contiguous, panels of terms."""
        return -(-self.chunk // self.w2.block_k)

    @property
    def w2(self) -> TmaOperand:
        """W2."""
        assert self.second.operand_b is not None
        return self.second.operand_b

    @property
    def weight_bytes(self) -> int:
        """Size of both weights in shared memory."""
        return self.chunks * (self.w1_bytes + self.w2_tiles * self.w2.bytes)

    @property
    def stage_bytes(self) -> int:
        """Size of a tile of X."""
        return self.k_tiles * self.first.operands[0].bytes

    @property
    def barrier_offset(self) -> int:
        """Where the barriers lie in shared memory: of the weights, then of stages."""
        return self.weight_bytes + self.stages * self.stage_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: a multiple of 16, as the barriers are not."""
        return self.barrier_offset + 2 * (1 + self.stages) * mbarrier.BYTES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS * (1 + self.consumers)

    @property
    def registers(self) -> int:
        """Registers of a thread at the start of a block."""
        return REGISTER_FILE // self.threads // 8 * 8

    @property
    def registers_needed(self) -> int:
        """Registers of a consumer's thread while it computes hidden columns, roughly."""
        (result,) = self.first.problem.contraction.results
        rows = {a.var for a in self.first.problem.m_axes}
        read = {x.source: x for x in loads(result.value)}.values()
        values = sum(
            self.chunk // 4 * (2 if rows & variables(x) else 1) * DataType(str(x.ty.dtype)).itemsize
            for x in read
        )
        sums = (self.second.tile.block_n + self.chunk) // 2
        return sums + self.chunk // 4 + -(-values // 4) + OTHER_REGISTERS

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return -(-int(self.first.problem.m) // M)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return min(self.tiles, self.first.multiprocessors)
