"""The design space of norms of channel groups in two launches: parts of an image, threads."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.loops import index
from ....device import Device
from ....program.program import Program
from ...gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES
from ...index.design_space import distinct
from ..program.row_program import RowProgram
from .channel_groups import ChannelGroups, channel_groups
from .normalize import normalize_kernel
from .pixel_loop import PixelTile, divisor, tile_of
from .statistics import statistics_kernel

THREADS = 512  # of a block, with 8 vectors of each in flight
MORE_THREADS = (512, 256, 1024)
SHARES = (1.0, 0.5, 2.0)  # of the default's blocks, in either launch
# Bytes of a block. On one H200, statistics of 67 MB took 31 us in 128 parts and 23 in 256, of 17 MB
# 4.2 and 4.5, of 1.3 MB 1.7 in 64 or more and 1.9 in 32. Every block of the second launch joins all
# parts: 34 us in 128 blocks and 35 in 256, 8.4 and 10.1; of 1.3 MB 3.0 in 64 and 2.7 in 128.
LARGE_PART, SMALL_PART, SMALL_TILE = 128 << 10, 16 << 10, 8 << 10


@dataclass(frozen=True, eq=False)
class ChannelGroupsConfig:
    """Pixels and threads of the blocks of both launches."""

    view: ChannelGroups  # the norm
    partial: tuple[ir.Var, ...]  # workspaces in float32, ``(*rows, parts, groups)``
    # Of each launch.
    first: PixelTile
    second: PixelTile

    @property
    def parts(self) -> int:
        """Parts of an image, each with all its groups, in the launch that has fewer."""
        return self.view.pixel_count // max(self.first.pixels, self.second.pixels)

    @property
    def parallelism(self) -> int:
        """Blocks of the launch that has fewer."""
        return self.view.row_count * self.parts

    @property
    def bytes_between(self) -> int:
        """What is written to workspaces, and read by every block of the second launch."""
        count = self.view.pixel_count
        written = 4 * sum(math.prod(map(int, buffer.shape)) for buffer in self.partial)
        return written * (1 + count // self.second.pixels)

    @property
    def plain(self) -> dict[str, int]:
        """The configuration as plain data."""
        return {
            "parts": self.view.pixel_count // self.first.pixels,
            "first_threads": self.first.threads,
            "second_parts": self.view.pixel_count // self.second.pixels,
            "second_threads": self.second.threads,
        }

    def kernels(self, program: Program, _device: Device) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
        """Write both kernels."""
        first = replace(program, outputs=self.partial)
        second = replace(program, inputs=(*program.inputs, *self.partial))
        return (
            statistics_kernel(self.view, first, self.first, self.partial),
            normalize_kernel(self.view, second, self.second, self.partial),
        )


def channel_groups_config(program: RowProgram, device: Device) -> ChannelGroupsConfig | None:
    """Choose the parts of images; ``None`` where a program is no norm of channel groups."""
    view = channel_groups(program)
    return None if view is None else _config(view, device, (1.0, 1.0), (THREADS, THREADS))


def channel_groups_configs(program: RowProgram, device: Device) -> Iterator[ChannelGroupsConfig]:
    """Enumerate configurations, the default first."""
    view = channel_groups(program)
    several = itertools.product(SHARES, repeat=2), itertools.product(MORE_THREADS, repeat=2)
    if view is None:
        return iter(())
    every = (_config(view, device, *chosen) for chosen in itertools.product(*several))
    return distinct((config for config in every if config is not None), lambda one: one.plain)


def _config(
    view: ChannelGroups, device: Device, shares: tuple[float, ...], threads: tuple[int, ...]
) -> ChannelGroupsConfig | None:
    vectors, pixels, rows = view.channels // view.width, view.pixel_count, view.row_count
    units, size = device.sm_count or 1, rows * pixels * vectors * VECTOR_BYTES
    most = min(2 * units, max(size // LARGE_PART, min(units, size // SMALL_PART)))
    blocks = most, min(units, size // SMALL_TILE)
    tiles = [
        tile_of(pixels // divisor(pixels, int(share * count) // rows), vectors, number)
        for count, share, number in zip(blocks, shares, threads, strict=True)
    ]
    first, second = tiles
    shared = 4 * (2 * first.lines + 2) * view.channels
    limit = device.max_threads_per_block or 1024
    if shared > STATIC_SHARED_BYTES or max(tile.threads for tile in tiles) > limit:
        return None
    parts = view.pixel_count // first.pixels
    shape = [*(axis.extent for axis in view.rows), index(parts), index(view.groups)]
    partial = tuple(declare(shape, "float32", name) for name in ("part_mean", "part_squares"))
    return ChannelGroupsConfig(view, partial, first, second)
