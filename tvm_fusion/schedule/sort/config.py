"""Configuration of a sort by ranks: decided by the claim, consumed by its emission."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import DataType

from ...device import Device
from ..gpu.launch import STATIC_SHARED_BYTES

THREADS = 256
COUNT_BYTES = 4
MOST_SLICES = 8
WAVES = 4  # warps that each of a multiprocessor's four schedulers wants at least
KEPT = STATIC_SHARED_BYTES * 2 // 3  # of shared memory for keys: blocks share a multiprocessor
# Registers of a thread as ptxas allocates them for sm_90a.
REGISTERS = {4: 34, 8: 40}


@dataclass(frozen=True)
class RankSortConfig:
    """Threads of a block, and what of a row it holds."""

    # Threads: rows, parts of a row's keys that are compared side by side, and elements of a row
    # whose ranks are counted.
    rows: int
    slices: int
    elements: int
    # Keys of each row in shared memory at a time: whole slices of whole tiles of elements.
    chunk: int
    keys: int  # of a row
    bytes: int  # of a key
    # Whether TVM puts counts where keys of as many bytes were: not on AMD GPUs
    # (:class:`tvm_fusion.lower.flatten.SeparateStorage`).
    reuses_shared: bool = True

    @classmethod
    def of(cls, rows: int, keys: int, dtype: str, device: Device) -> RankSortConfig:
        """Share the comparisons of few rows out to many threads; short rows share a block."""
        warp, size = device.warp_size or 32, DataType(dtype).itemsize
        reuses = device.kind == "cuda"
        if keys < warp:
            together = min(rows, max(1, THREADS // 2 // keys))
            return cls(together, 1, keys, keys, keys, size, reuses)
        wanted = (device.sm_count or 1) * 4 * WAVES * warp
        slices = 1
        while slices < MOST_SLICES and slices * rows * keys < wanted and slices * warp < keys:
            slices *= 2
        tiles = -(-keys // warp) // slices  # whole slices of keys that there are
        elements = warp * max(1, min(tiles, THREADS // 2 // (slices * warp)))
        step = slices * elements
        chunk = min(-(-keys // step), max(1, KEPT // size // step)) * step
        return cls(1, slices, elements, chunk, keys, size, reuses)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.slices * self.elements

    @property
    def tiles(self) -> int:
        """Blocks of a row."""
        return -(-self.keys // self.elements)

    @property
    def rounds(self) -> int:
        """Chunks of a row."""
        return -(-self.keys // self.chunk)

    @property
    def shared_bytes(self) -> int:
        """Keys, and the counts of slices, which may reuse the memory of keys."""
        counts = COUNT_BYTES * self.threads if self.slices > 1 else 0
        keys = self.rows * self.chunk * self.bytes
        reuses = self.reuses_shared and self.bytes == COUNT_BYTES
        return max(keys, counts) if reuses else keys + counts

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return REGISTERS[max(4, self.bytes)]
