"""The numbers of a tiled GEMM: tile of C, warps, pipeline stages, split-K; types of operands."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

from tvm import DataType

from ...gpu.memory.vector_moves import AMD_MOVES, NVIDIA_MOVES, VectorMoves
from ...instructions.amd import FAMILIES as AMD_FAMILIES
from ...instructions.instruction import Instruction
from ...instructions.layout import Layout
from ...instructions.nvidia import HALF_TYPES
from ...instructions.table import newest

M16 = newest("mma.sync", "float16", "float16").m  # of all types
CHUNK_BYTES = 16  # of a copy to shared memory
OTHER_REGISTERS = 24  # of a thread, besides accumulators, fragments and addresses
WAVE_REGISTERS = 18  # the same of AMD's, whose addresses and conditions are scalars
WAVE64 = 64  # lanes of CDNA, whose threads have 512 registers
ADDRESS_REGISTERS = 4  # of a chunk, where there are 256: LLVM keeps what it can add to a base
REGISTER_FILE, MOST_REGISTERS = 1 << 16, 255
STAGED_REGISTERS = 14  # of a chunk of 8 elements, their addresses and conditions


@dataclass(frozen=True)
class TileOperands:
    """How operands get to tensor cores, in tiles of any shape."""

    # Types of A and of B in shared memory.
    a_dtype: str
    b_dtype: str
    # Whether threads compute or gather an operand, on its way to shared memory.
    staged_a: bool = field(default=False, kw_only=True)
    staged_b: bool = field(default=False, kw_only=True)
    # Parts of a column split, of each of which a tile has as many columns.
    parts: int = field(default=1, kw_only=True)
    # Columns of a part that lie side by side in a tile of ``mma.sync``: those of a fragment, or all
    # of a period, so that whole periods lie as in memory.
    panel: int = field(default=8, kw_only=True)
    # Instructions for each product of fragments: 3 of float32 that keep its precision, each operand
    # split into two tfloat32; otherwise 1.
    products: int = field(default=1, kw_only=True)
    # Whether what is loaded as it is is copied by cp.async; otherwise through registers.
    is_async: bool = field(default=True, kw_only=True)
    # Whether blocks that share K are a cluster.
    has_clusters: bool = field(default=True, kw_only=True)
    # What multiplies fragments, where it is not ``mma.sync``.
    instruction: Instruction | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, problem: TileOperands) -> TileOperands:
        """Take these fields out of a problem."""
        return cls(**{f.name: getattr(problem, f.name) for f in fields(cls)})

    @cached_property
    def item_bytes(self) -> int:
        """Size of an element of A and of B in shared memory."""
        return int(DataType(self.a_dtype).itemsize)

    @cached_property
    def mma(self) -> Instruction:
        """The instruction whose fragments a warp has; each warp of a wgmma has ``mma.sync``'s."""
        return self.instruction or newest("mma.sync", self.a_dtype, self.b_dtype)

    @cached_property
    def is_amd(self) -> bool:
        """Whether it is one of AMD's: a wave multiplies fragments along K alone."""
        return self.mma.family in AMD_FAMILIES

    @property
    def moves(self) -> VectorMoves:
        """How threads move vectors."""
        return AMD_MOVES if self.is_amd else NVIDIA_MOVES

    @property
    def sums(self) -> Layout:
        """Where a fragment of C lies; AMD's multiply B and A transposed, for runs of columns."""
        return self.mma.c.transposed if self.is_amd else self.mma.c

    @property
    def stage_pad(self) -> int:
        """Float32 between staged rows of C: rows of a fragment lie in different banks."""
        return 4 if self.sums.run == 4 else 8

    @property
    def arithmetic(self) -> str:
        """Tell a reader how types other than half types are multiplied."""
        if self.products > 1:
            return "float32 split into tfloat32 (3xTF32)"
        if self.mma.kind == "tfloat32":
            return "float32 rounded to tfloat32"
        if self.a_dtype in HALF_TYPES or self.mma.kind == "float32":
            return ""
        return f"products of {' and '.join(dict.fromkeys((self.a_dtype, self.b_dtype)))}"

    @property
    def narrow_dtype(self) -> str:
        """Name what is multiplied, as a device's peaks do, where a graph has it wider: bytes."""
        return self.mma.kind if self.item_bytes == 1 else ""

    @property
    def k_step(self) -> int:
        """Terms of a step: of an instruction, 32 bytes; of AMD's in whole chunks of each lane."""
        mma = self.mma
        if not self.is_amd:
            return mma.k
        lanes_of_k = mma.k // mma.k_per_lane
        return max(mma.k, lanes_of_k * self.chunk)

    @cached_property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return CHUNK_BYTES // self.item_bytes


@dataclass(frozen=True)
class TileConfig:
    """The numbers of a tiled GEMM that a tuner varies, and what blocks of such tiles take."""

    operands: TileOperands  # what the tiles are of: types, and ways to shared memory
    # The tile of C of a block, and the k of a pipeline stage; powers of two.
    block_m: int
    block_n: int
    block_k: int
    # Warps that share the tile.
    warps_m: int
    warps_n: int
    # Warps that share the k of a stage (slice-K); their sums are added up in shared memory.
    warps_k: int = 1
    stages: int = 4  # stages of the cp.async pipeline
    # Blocks that share K (split-K), whose sums are added up in a fixed order: a cluster, or any
    # blocks, behind which a second kernel adds up (split_k_workspace).
    split_k: int = 1
    group_m: int = 8  # tiles along M whose blocks run one after the other, so that L2 holds their B

    @property
    def tile_positions(self) -> int:
        """Columns of each part of a column split in the tile; without one, all."""
        return self.block_n // self.operands.parts

    @property
    def warp_m(self) -> int:
        """Rows of a warp."""
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of a warp."""
        return self.block_n // self.warps_n

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps_m * self.warps_n * self.warps_k * self.operands.mma.lanes

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        mma = self.operands.mma
        return self.warp_m // M16 * (self.warp_n // mma.n) * mma.c.per_lane

    @property
    def stage_bytes(self) -> int:
        """Shared memory of A and B in a pipeline stage."""
        rows = self.block_m + self.block_n
        return rows * self.block_k * self.operands.item_bytes

    @cached_property
    def staged(self) -> tuple[int, int]:
        """Slabs of 16 rows, and columns, of a warp that the epilogue stages at once.

        All that fit the shared memory of the pipeline.
        """
        slabs, columns = self.warp_m // M16, self.warp_n
        while self._staged_bytes(slabs, columns) > self.stages * self.stage_bytes:
            if slabs > 1:
                slabs //= 2
            elif columns % (2 * self.operands.panel * self.operands.parts) == 0:
                columns //= 2
            else:
                break
        return slabs, columns

    def _staged_bytes(self, slabs: int, columns: int) -> int:
        width = columns * self.warps_n + self.operands.stage_pad
        return self.warps_k * slabs * self.warps_m * M16 * width * 4

    @property
    def staged_bytes(self) -> int:
        """Shared memory of the sums that the epilogue stages at once."""
        return self._staged_bytes(*self.staged)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: pipeline stages, and behind them sums on their way out."""
        return max(self.stages * self.stage_bytes, self.staged_bytes)

    @property
    def has_workspace(self) -> bool:
        """Whether partial sums of split-K lie in global memory."""
        return self.split_k > 1 and not self.operands.has_clusters

    @cached_property
    def wanted_registers(self) -> int:
        """Registers that a thread would take if it could."""
        operands, of_16 = self.operands, (self.warp_m + self.warp_n) // M16
        if operands.is_amd:
            row = operands.mma
            own = of_16 * operands.k_step * row.k_per_lane // row.k * operands.item_bytes // 4
            held = 0
            for rows, is_staged in (
                (self.block_m, operands.staged_a),
                (self.block_n, operands.staged_b),
            ):
                chunks = -(-rows * self.block_k // operands.chunk // self.threads)
                held += chunks * CHUNK_BYTES // 4
                if row.lanes < WAVE64:
                    held += chunks * (ADDRESS_REGISTERS + is_staged * CHUNK_BYTES // 4)
            return WAVE_REGISTERS + self.accumulators + own + held
        fragments = of_16 * 4 * 2
        # Of split operands: sums of a tile of K, of lower halves, and of all.
        wanted = OTHER_REGISTERS + self.accumulators * operands.products + fragments
        for rows, is_staged in (
            (self.block_m, operands.staged_a),
            (self.block_n, operands.staged_b),
        ):
            chunks = -(-rows * self.block_k // operands.chunk // self.threads)
            staged = STAGED_REGISTERS * operands.chunk // 8
            copied = 2 if operands.is_async else 2 + CHUNK_BYTES // 4
            wanted += (staged if is_staged else copied) * chunks
        return wanted

    @property
    def registers_at_most(self) -> int:
        """Registers of a thread of any K: what the choice of a tile counts with."""
        most = min(MOST_REGISTERS, REGISTER_FILE // self.threads // 8 * 8)
        return max(32, min(self.wanted_registers, most))
