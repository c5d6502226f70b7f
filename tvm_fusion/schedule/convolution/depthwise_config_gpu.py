"""Configuration of a depthwise convolution on a GPU: pixels of a thread, threads of a block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.loops import constant
from ...device import Device
from ...ecg.work import at
from .depthwise_view_gpu import DepthwiseView

THREADS = 128  # of a block, about
MOST_BYTES = 256  # of a block, of each pixel: whole lines
ROWS = 4  # of a block: a window of 3 loads 6 rows for 4, not 12
MOST_REGISTERS = 96  # of sums and columns, beside addresses and the weight
PIXELS = (8, 7, 4, 2, 1)
LANES = (8, 4, 2)
_UNITS = 80  # multiprocessors of an unknown GPU
# Threads of a multiprocessor below which fewer pixels a thread hide more latency.
RESIDENT = 256


@dataclass(frozen=True)
class DepthwiseGpuConfig:
    """Configuration of a depthwise convolution.

    Attributes
    ----------
    lanes : int
        Channels of a thread.
    pixels : int
        Of a thread, along x.
    rows, block_strips, block_vectors : int
        Threads of a block along y, x and the channels.
    """

    lanes: int
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
    found = [
        _config(view, lanes, pixels)
        for lanes, pixels in itertools.product(LANES, PIXELS)
        if view.lanes % lanes == 0 and _fits(view, lanes, pixels)
    ]
    enough = RESIDENT * (device.sm_count or _UNITS)
    first = next((c for c in found if threads(view, c) >= enough), found[-1])
    yield first
    yield from (c for c in found if c is not first)


def threads(view: DepthwiseView, config: DepthwiseGpuConfig) -> int:
    """Count the threads of the grid that have a strip."""
    outer = math.prod(at(a.extent) for a in (*view.batch, view.y))
    strips = -(-at(view.x.extent) // config.pixels)
    return outer * strips * ((constant(view.k.extent) or 1) // config.lanes)


def blocks(view: DepthwiseView, config: DepthwiseGpuConfig) -> int:
    """Count the blocks of the grid."""
    return max(1, -(-threads(view, config) // config.threads))


def registers(view: DepthwiseView, lanes: int, pixels: int) -> int:
    """Count the 32-bit registers of the sums and of the columns of one row."""
    columns = {p * view.step + t * view.dilation for p in range(pixels) for t in range(view.taps)}
    return lanes * pixels + len(columns) * lanes * _item_bytes(view) // 4


def _item_bytes(view: DepthwiseView) -> int:
    return 2 if str(view.image.ty.dtype) in ("float16", "bfloat16") else 4


def _fits(view: DepthwiseView, lanes: int, pixels: int) -> bool:
    width = at(view.x.extent)
    if pixels == 1:
        return True
    wasted = -(-width // pixels) * pixels - width
    has_room = registers(view, lanes, pixels) <= MOST_REGISTERS
    return pixels <= width and 8 * wasted <= width and has_room


def _config(view: DepthwiseView, lanes: int, pixels: int) -> DepthwiseGpuConfig:
    vectors = (constant(view.k.extent) or 1) // lanes
    most = min(vectors, MOST_BYTES // (lanes * _item_bytes(view)))
    own = max(n for n in range(1, most + 1) if vectors % n == 0)
    rows = min(ROWS, at(view.y.extent))
    strips = -(-at(view.x.extent) // pixels)
    return DepthwiseGpuConfig(
        lanes, pixels, rows, max(1, min(strips, THREADS // (own * rows))), own
    )
