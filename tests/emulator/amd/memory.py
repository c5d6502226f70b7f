"""Memory: that of the device, LDS of the blocks, scratch of the lanes.

Device memory is this process's: arrays, the code object, arguments. Every access has to lie within
one of the regions that a launch names. LDS and scratch begin undefined, and so do their bytes'
shadows, which loads and stores carry along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class _Window:
    """Bytes of this process from an address on, for numpy."""

    def __init__(self, start: int, size: int, kind: str):
        self.__array_interface__ = {
            "version": 3, "data": (start, False), "typestr": f"<{kind}",
            "shape": (max(size - int(kind[1:]) + 1, 0),), "strides": (1,),
        }  # fmt: skip


class Bytes:
    """A range of bytes, read and written at any address as items of 1, 2, 4 or 8 bytes.

    Parameters
    ----------
    start, size
        In this process.
    held
        What owns the memory.
    """

    def __init__(self, start: int, size: int, held: Any = None):
        self.start, self.size, self._held = start, size, held
        self._views = {n: np.asarray(_Window(start, size, f"u{n}")) for n in (1, 2, 4, 8)}

    @classmethod
    def filled(cls, size: int, byte: int) -> Bytes:
        """Allocate."""
        held = np.full(max(size, 16), byte, "u1")
        return cls(held.ctypes.data, max(size, 16), held)

    def load(self, at: np.ndarray, size: int) -> np.ndarray:
        """Return items of so many bytes; of more than 4 as a last axis of words."""
        if size <= 4 and size != 3:
            return self._views[size][at]
        return self._views[4][at[..., None] + np.arange(0, size, 4)]

    def store(self, at: np.ndarray, size: int, values: np.ndarray) -> None:
        """Write items; of more than 4 bytes the last axis is words."""
        if size <= 4:
            self._views[size][at] = values
        else:
            self._views[4][at[..., None] + np.arange(0, size, 4)] = values

    def view(self, size: int) -> np.ndarray:
        """Return items that begin at every byte."""
        return self._views[size]


class Regions:
    """Device memory: which addresses a kernel may use.

    Parameters
    ----------
    regions
        Address, size, name.
    """

    def __init__(self, regions: Iterable[tuple[int, int, str]]):
        found = sorted(r for r in regions if r[1] > 0)
        merged: list[tuple[int, int, str]] = []
        for start, size, name in found:
            if merged and start < merged[-1][0] + merged[-1][1]:
                before, length, first = merged.pop()
                merged.append((before, max(length, start + size - before), first))
            else:
                merged.append((start, size, name))
        self.names = [name for _, _, name in merged]
        self.starts = np.array([start for start, _, _ in merged], "u8")
        self.ends = np.array([start + size for start, size, _ in merged], "u8")
        sizes = (self.ends - self.starts).astype("i8")
        #: Where each region's shadow begins among those of all.
        self.shadows = np.concatenate([[0], np.cumsum(sizes)]).astype("i8")
        base = int(self.starts[0]) if len(merged) else 4096
        top = int(self.ends[-1]) if len(merged) else 8192
        self.bytes = Bytes(base, top - base)
        self.base = np.uint64(base)

    def locate(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets in :attr:`bytes` and in the shadows.

        Raises
        ------
        LookupError
            With the first address that lies outside.
        """
        at = np.searchsorted(self.starts, addresses, "right") - 1
        outside = (at < 0) | (addresses + np.uint64(size) > self.ends[at])
        if outside.any():
            raise LookupError(int(np.asarray(addresses)[outside].flat[0]))
        offsets = (addresses - self.base).astype("i8")
        return offsets, self.shadows[at] + (addresses - self.starts[at]).astype("i8")

    def nearest(self, address: int) -> str:
        """Say where an address outside of the regions lies."""
        if not len(self.starts):
            return "there is no memory"
        gaps = [
            max(int(s) - address, address - int(e) + 1, 0)
            for s, e in zip(self.starts, self.ends, strict=True)
        ]
        k = int(np.argmin(gaps))
        size = int(self.ends[k] - self.starts[k])
        return (
            f"{address - int(self.starts[k])} bytes behind the start of {self.names[k]}, "
            f"which has {size}"
        )
