"""Parts of a tensor that workers hold: one axis, in segments that are each split evenly.

axis of 12 in segments (8, 4), 2 workers:  0 0 0 0 1 1 1 1 | 0 0 1 1

Segments come from products joined along their columns, such as queries, keys and values in one:
each worker has its own columns of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shard:
    """How a tensor is split."""

    axis: int  # from 0
    # Extents whose sum is the axis's; each is a multiple of the number of workers.
    segments: tuple[int, ...]

    @property
    def extent(self) -> int:
        """The whole tensor's along the axis."""
        return sum(self.segments)

    def indices(self, rank: int, size: int) -> np.ndarray:
        """Return which elements along the axis a worker has."""
        found, begin = [], 0
        for segment in self.segments:
            length = segment // size
            found.append(np.arange(begin + rank * length, begin + (rank + 1) * length))
            begin += segment
        return np.concatenate(found)

    def part(self, array: np.ndarray, rank: int, size: int) -> np.ndarray:
        """Copy what a worker has of a whole tensor."""
        pieces, begin = [], 0
        for segment in self.segments:
            length = segment // size
            at = begin + rank * length
            pieces.append(array[(slice(None),) * self.axis + (slice(at, at + length),)])
            begin += segment
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, self.axis)
        return np.array(joined, order="C")

    def whole(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Put a tensor together from all workers' parts, in the order of ranks."""
        joined = np.concatenate(parts, self.axis)
        order = [self.indices(rank, len(parts)) for rank in range(len(parts))]
        return np.ascontiguousarray(np.take(joined, np.argsort(np.concatenate(order)), self.axis))

    def as_json(self) -> dict[str, Any]:
        """Write it as the manifest has it."""
        return {"axis": self.axis, "segments": list(self.segments)}

    @classmethod
    def of_json(cls, entry: dict[str, Any]) -> Shard:
        """Read what :meth:`as_json` wrote."""
        return cls(entry["axis"], tuple(entry["segments"]))
