"""The shape of a tiled GEMM's blocks: tile of C, warps, pipeline stages, split-K; plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tvm import DataType

from ..gpu.mma import ACCUMULATORS, GROUPS, WARP

M16 = K16 = 16  # of mma.m16n8k16
OTHER_REGISTERS = 24  # of a thread, beside accumulators, fragments and addresses
STAGE_PAD = 8  # float32 between staged rows of C: rows of a fragment lie in different banks
REGISTER_FILE, MOST_REGISTERS = 1 << 16, 255
STAGED_REGISTERS = 14  # of 8 elements, their addresses and conditions


@dataclass(frozen=True)
class TileShape:
    """The shape of the blocks of a tiled GEMM, and what they take.

    Attributes
    ----------
    half : str
        Type of A and B in shared memory.
    block_m, block_n, block_k : int
        The tile of C of a block, and the k of a pipeline stage; powers of two.
    warps_m, warps_n : int
        Warps that share the tile.
    warps_k : int
        Warps that share the k of a stage (slice-K); their sums are added up in shared memory.
    stages : int
        Stages of the cp.async pipeline.
    split_k : int
        Blocks that share K (split-K): a cluster, whose sums are added up in a fixed order.
    group_m : int
        Tiles along M whose blocks run one after the other, so that L2 holds their B.
    staged_a, staged_b : bool
        Whether threads compute or gather an operand, on its way to shared memory.
    parts : int
        Parts of a column split, of each of which the tile has as many columns.
    """

    half: str
    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    warps_k: int = 1
    stages: int = 4
    split_k: int = 1
    group_m: int = 8
    staged_a: bool = False
    staged_b: bool = False
    parts: int = 1

    @classmethod
    def of(cls, config: TileShape) -> TileShape:
        """Take the shape out of a configuration."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(cls)})

    @property
    def tile_positions(self) -> int:
        """Columns of each part of a column split in the tile; without one, all."""
        return self.block_n // self.parts

    @property
    def warp_m(self) -> int:
        """Rows of a warp."""
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a warp."""
        return self.block_n // self.warps_n

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps_m * self.warps_n * self.warps_k * WARP

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.warp_m // M16 * (self.warp_n // GROUPS) * ACCUMULATORS

    @property
    def stage_bytes(self) -> int:
        """Shared memory of A and B in a pipeline stage."""
        rows = self.block_m + self.block_n
        return rows * self.block_k * DataType(self.half).itemsize

    @property
    def staged(self) -> tuple[int, int]:
        """Slabs of 16 rows, and columns, of a warp that the epilogue stages at once.

        All that fit the shared memory of the pipeline.
        """
        slabs, columns = self.warp_m // M16, self.warp_n
        while self._staged_bytes(slabs, columns) > self.stages * self.stage_bytes:
            if slabs > 1:
                slabs //= 2
            elif columns > GROUPS * self.parts:
                columns //= 2
            else:
                break
        return slabs, columns

    def _staged_bytes(self, slabs: int, columns: int) -> int:
        width = columns * self.warps_n + STAGE_PAD
        return self.warps_k * slabs * self.warps_m * M16 * width * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: pipeline stages, and behind them sums on their way out."""
        return max(self.stages * self.stage_bytes, self._staged_bytes(*self.staged))

    @property
    def wanted_registers(self) -> int:
        """Registers that a thread would take if it could."""
        fragments = (self.warp_m + self.warp_n) // M16 * 4 * 2
        wanted = OTHER_REGISTERS + self.accumulators + fragments
        for rows, is_staged in ((self.block_m, self.staged_a), (self.block_n, self.staged_b)):
            chunks = -(-rows * self.block_k // 8 // self.threads)
            wanted += STAGED_REGISTERS * chunks if is_staged else 2 * chunks
        return wanted

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claimed_resources."""
        most = min(MOST_REGISTERS, REGISTER_FILE // self.threads // 8 * 8)
        return max(32, min(self.wanted_registers, most))
