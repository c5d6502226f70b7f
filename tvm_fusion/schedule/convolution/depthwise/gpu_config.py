"""Configuration of a depthwise convolution on a GPU: pixels of a thread, threads of a block."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ....core.tir.loops import constant
from ....device import Device
from ....ecg.work import at
from .gpu_view import DepthwiseView

THREADS = 128  # of a block, about
MOST_BYTES = 256  # of a block, of each pixel: whole lines
ROWS = 4  # of a block: a window of 3 loads 6 rows for 4, not 12
MOST_REGISTERS = 96  # of sums and columns, besides addresses and the weight
PIXELS = (7, 8, 4, 2, 1)
PIXELS_ONLY_WHERE_THEY_DIVIDE = 7  # only for widths such as 7, 14, 28 and 56
# Channels of a thread, the default first. On one H200 in half types, of 2 channels and of 8, each
# with the best number of pixels: 7x7 of 96 channels over 56 x 56 pixels 4.1 us and 5.6, of 192 over
# eight images of 28 x 28 9.1 and 10.9; 3x3 of 144 over 56 x 56 2.4 and 3.0, over eight 7.8, 11.1.
LANES = (2, 4, 8)
ASSUMED_SM_COUNT = 80  # of a GPU whose number of multiprocessors is not known
# Threads of a multiprocessor, times columns of the window that each loads at a time, below which
# fewer pixels a thread hide more latency: 3x3 of 144 channels over 56 x 56 pixels take 2.8 us with
# 7 pixels a thread (244 threads), 2.4 with 4 (428); 7x7 of 384 over 14 x 14 4.0 with 7 (41), 3.6
# with 2 (143), 4.2 with 1; 5x5 of 672 over 14 x 14 3.4 with 7 (71), 2.4 with 2 (249), 3.1 with 1.
LEAST_LOADS_PER_SM = 800


@dataclass(frozen=True)
class DepthwiseGpuConfig:
    """Configuration of a depthwise convolution."""

    lanes: int  # channels of a thread
    pixels: int  # of a thread, along x
    # Threads of a block along y, x and the channels.
    rows: int
    block_strips: int
    block_vectors: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.block_strips * self.block_vectors


def depthwise_gpu_configs(view: DepthwiseView, device: Device) -> Iterator[DepthwiseGpuConfig]:
    """Enumerate configurations, the default first: few channels a thread, and many pixels.

    As many pixels as leave enough threads.
    """
    found = [
        _config(view, lanes, pixels)
        for lanes, pixels in itertools.product(LANES, PIXELS)
        if view.lanes % lanes == 0 and _fits(view, lanes, pixels)
    ]
    narrow = [config for config in found if config.lanes == found[0].lanes]
    enough = LEAST_LOADS_PER_SM * (device.sm_count or ASSUMED_SM_COUNT) // view.taps
    first = next((c for c in narrow if threads(view, c) >= enough), narrow[-1])
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
    if wasted and pixels == PIXELS_ONLY_WHERE_THEY_DIVIDE:
        return False
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
