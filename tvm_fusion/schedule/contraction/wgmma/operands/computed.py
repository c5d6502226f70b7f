"""B of a Hopper GEMM that threads compute: dequantized, say, on its way to shared memory.

    thread of the producer, for its chunks of a stage:
      registers = what the chunk of the next stage is computed of       global, 16 bytes or fewer
      chunk = values of the registers loaded before                     (dequantize/chunk)
      stage[row, c ^ row % 8] = chunk            16 bytes               shared, as TMA writes them

Each element of B is computed once for each tile of C, not for each warp that multiplies it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir

from ....gpu.matrix.wgmma import WARPS
from ....instructions.nvidia import HALF_TYPES
from ...tile.config import TileGemmConfig
from ...tile.operand.chunks import OperandChunks
from ...tile.operand.tile import OperandTile, is_dequantized
from ...tile.problem import GemmProblem
from .matrix import TmaOperand

WORD_BYTES = 4
# Clocks of a thread for an element, by pairs and one by one: about three times the instructions, as
# a warp alone waits for its own; and of a stage. 512x4096x14336 of int4 on an H200: 139.6 us
# with tiles of 128x256, 130.0 of 128x224, 178.9 of 128x128, and where products take longer, 107.8
# of 256x128. Elements one by one were not measured.
DEQUANTIZED, COMPUTED = 12.2, 24.4
STAGE = 380.0


@dataclass(frozen=True)
class ComputedOperand(TmaOperand):
    """An operand that no TMA copies: it has no maps, and no boxes."""

    item: int = 2  # size of an element in shared memory
    clocks: float = 0.0  # of a thread, for an element that it computes

    def of_rows(self, rows: int) -> ComputedOperand:
        """Change the columns of B of a tile."""
        return replace(self, rows=rows)

    @property
    def item_bytes(self) -> int:
        """Size of an element."""
        return self.item

    def boxes(
        self, batch: object, firsts: object, k: object
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List none."""
        return []


def computed_operand(problem: GemmProblem, block_k: int) -> ComputedOperand | None:
    """Describe a computed B; ``None`` where it has no vectors along K, or parts."""
    if not problem.staged_b or problem.parts > 1 or problem.b_dtype not in HALF_TYPES:
        return None
    chunks = OperandChunks(problem, False)
    if chunks.is_gathered or chunks.layout.is_shifted or not chunks.layout.is_k:
        return None
    clocks = DEQUANTIZED if is_dequantized(problem, False) else COMPUTED
    return ComputedOperand((), True, (), 0, block_k, item=problem.item_bytes, clocks=clocks)


class ComputedTile(OperandTile):
    """Tiles of a computed B, written by the threads of one warpgroup to shared memory of bytes.

    Parameters
    ----------
    config
        The product, in tiles of Hopper's.
    """

    def __init__(self, config: TileGemmConfig) -> None:
        shape = replace(config.tile, warps_m=WARPS, warps_n=1, warps_k=1)
        super().__init__(TileGemmConfig(config.problem, shape), False)

    def _word(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        return super()._word(row, column) * WORD_BYTES
