"""Configuration of a depthwise convolution on a GPU: pixels of a thread, threads of a block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.loops import constant
from ...device import Device
from ...ecg.work import at
from .depthwise_view_gpu import DepthwiseView

THREADS = 128  # of a block, about
MOST_VECTORS = 16  # of a block: 256 bytes of each pixel are whole lines
ROWS = 4  # of a block: a window of 3 loads 6 rows for 4, not 12
MOST_REGISTERS = 96  # of sums and columns, beside addresses and the weight
PIXELS = (8, 7, 4, 2, 1)
_UNITS = 80  # multiprocessors of an unknown GPU
# Threads of a multiprocessor below which fewer pixels a thread hide more latency.
RESIDENT = 256


@dataclass(frozen=True)
class DepthwiseGpuConfig:
    """Configuration of a depthwise convolution.

    Attributes
    ----------
    pixels : int
        Of a thread, along x.
    rows, block_strips, block_vectors : int
        Threads of a block along y, x and the channels.
    """

    pixels: int
    rows: int
    block_strips: int
    block_vectors: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.block_strips * self.block_vectors


def depthwise_gpu_configs(view: DepthwiseView, device: Device) -> Iterator[DepthwiseGpuConfig]:
    """Enumerate configurations, the default first: most pixels that leave enough threads."""
    found = [_config(view, pixels) for pixels in PIXELS if _fits(view, pixels)]
    enough = RESIDENT * (device.sm_count or _UNITS)
    first = next((c for c in found if threads(view, c) >= enough), found[-1])
    yield first
    yield from (c for c in found if c is not first)


def threads(view: DepthwiseView, config: DepthwiseGpuConfig) -> int:
    """Count the threads of the grid that have a strip."""
    outer = math.prod(at(a.extent) for a in (*view.batch, view.y))
    strips = -(-at(view.x.extent) // config.pixels)
    return outer * strips * ((constant(view.k.extent) or 1) // view.lanes)


def blocks(view: DepthwiseView, config: DepthwiseGpuConfig) -> int:
    """Count the blocks of the grid."""
    return max(1, -(-threads(view, config) // config.threads))


def registers(view: DepthwiseView, pixels: int) -> int:
    """Count the 32-bit registers of the sums and of the columns of one row."""
    columns = {p * view.step + t * view.dilation for p in range(pixels) for t in range(view.taps)}
    size = 2 if str(view.image.ty.dtype) in ("float16", "bfloat16") else 4
    return view.lanes * pixels + len(columns) * view.lanes * size // 4


def _fits(view: DepthwiseView, pixels: int) -> bool:
    width = at(view.x.extent)
    if pixels == 1:
        return True
    wasted = -(-width // pixels) * pixels - width
    return pixels <= width and 8 * wasted <= width and registers(view, pixels) <= MOST_REGISTERS


def _config(view: DepthwiseView, pixels: int) -> DepthwiseGpuConfig:
    vectors = (constant(view.k.extent) or 1) // view.lanes
    own = max(n for n in range(1, min(vectors, MOST_VECTORS) + 1) if vectors % n == 0)
    rows = min(ROWS, at(view.y.extent))
    strips = -(-at(view.x.extent) // pixels)
    return DepthwiseGpuConfig(pixels, rows, max(1, min(strips, THREADS // (own * rows))), own)
