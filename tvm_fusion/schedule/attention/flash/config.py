"""Configuration of FlashAttention on tensor cores, as plain data."""

from dataclasses import dataclass

from ...gpu.launch import VECTOR_BYTES
from ...gpu.memory.swizzle import PanelRows, SwizzledRows
from ...gpu.threads.warp import LANES

MAX_REGISTERS = 255  # of a thread
ADDRESS_REGISTERS = 56  # of a thread: addresses, statistics, loop counters, fragments in flight


@dataclass(frozen=True)
class FlashMmaConfig:
    """Tiles of a block, and what it keeps where."""

    warps: int  # of a block
    rows_of_warp: int  # queries of a warp: 16 or 32
    block_n: int  # keys of a tile
    stages: int  # tiles of the ring in shared memory
    # Whether fragments of q are loaded once, not for every tile. Not for wgmma: ptxas 13.0 lets
    # fragments of p overwrite such of A that are not loaded in the loop.
    q_in_registers: bool
    min_blocks: int  # blocks that a multiprocessor holds at once: the launch bound
    # Elements of a key and of a value, padded to whole fragments.
    depth16: int
    column16: int
    staged_bytes: int  # of an element of the result in shared memory
    # Whether four warps multiply together, with k and v from shared memory.
    uses_wgmma: bool = False
    # Whether one of two warpgroups computes its softmax while the other multiplies.
    is_ping_pong: bool = False
    # Whether q, k and v are copied by cp.async; otherwise through registers, with one stage.
    is_async: bool = True

    @property
    def block_m(self) -> int:
        """Queries of a block."""
        return self.warps * self.rows_of_warp

    @property
    def lanes(self) -> int:
        """Threads of a warp."""
        return LANES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * self.lanes

    @property
    def own_columns(self) -> int:
        """Columns of the results of a warp."""
        return self.column16

    @property
    def m16(self) -> int:
        """Fragments of 16 rows of a warp."""
        return self.rows_of_warp // 16

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread: of its rows of the result, and of the scores of a tile."""
        return self.m16 * (self.column16 + self.block_n) // 2

    @property
    def registers(self) -> int:
        """Registers of a thread, roughly."""
        return min(MAX_REGISTERS, self.registers_needed)

    @property
    def q_fragments(self) -> int:
        """Fragments of q in registers at once, of 16 of the head dimension each."""
        return self.depth16 // 16 if self.q_in_registers or self.uses_wgmma else 1

    @property
    def registers_needed(self) -> int:
        """The same, were there more."""
        # Fragments of p take the place of those of q for a warpgroup.
        q = 0 if self.uses_wgmma else 4 * self.m16 * self.q_fragments
        if self.uses_wgmma:
            q = max(4 * self.q_fragments, self.block_n // 4) - self.block_n // 4
        # Long rows are at more addresses.
        wide = max(0, self.depth16 + self.column16 - 128) // 8
        return self.accumulators + q + ADDRESS_REGISTERS + wide + self.held_registers

    @property
    def held_registers(self) -> int:
        """Registers of keys or values on their way without cp.async."""
        vectors = self.block_n * max(self.depth16, self.column16) // 8
        return 0 if self.is_async else 4 * -(-vectors // self.threads)

    @property
    def q_rows(self) -> SwizzledRows:
        """The queries in shared memory."""
        return SwizzledRows(0, self.depth16 // 8)

    def k_rows(self) -> SwizzledRows:
        """Lay out the keys of all stages, behind the queries."""
        return self._ring(self.q_rows.size(self.block_m), self.depth16)

    def v_rows(self) -> SwizzledRows:
        """Lay out the values of all stages, behind the keys."""
        k = self.k_rows()
        return self._ring(k.first + k.size(self.stages * self.block_n), self.column16)

    def _ring(self, first: int, elements: int) -> SwizzledRows:
        if self.uses_wgmma:
            return PanelRows(first, elements // 8, self.block_n)
        return SwizzledRows(first, elements // 8)

    @property
    def staged_lanes(self) -> int:
        """Elements of a vector of the results."""
        return VECTOR_BYTES // self.staged_bytes

    @property
    def staged_pitch(self) -> int:
        """Vectors from one row of the result to the next in shared memory: an odd number."""
        return self.column16 * self.staged_bytes // 16 | 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; results are staged where operands were."""
        v = self.v_rows()
        operands = 16 * (v.first + v.size(self.stages * self.block_n))
        return max(operands, 16 * self.block_m * self.staged_pitch)
