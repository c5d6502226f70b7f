"""Configurations of convolutions on tile registers: the default by a model, and the space.

The model counts cycles of the busiest core: a product of tiles takes as many as it has rows of A,
at least half of 16; beside it, copies of lines, stores of sums, and the start of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ....core.loops import constant
from ....device import Device
from ...contraction.cpu.blocking import Machine
from ...index.design_space import default_first
from ...instructions.tiles import TILE_ROWS
from ..dense.config import MAX_PARTS, TASK, ConvConfig
from .problem import GROUPED, TileConv, window_size

LEAST_ROWS = 10  # cycles of a product of few rows: loads of tiles take as long
SUM = 0.35  # cycles of a sum that is stored, and read by the epilogue
LINE = 0.06  # cycles of an element of a line that is copied
COLUMNS = (1, 2)  # tiles of columns, beside two rows of tiles
ROWS = 2


@dataclass(frozen=True)
class TileConvConfig(ConvConfig):
    """Configuration of a convolution on tile registers; vectors are tiles of 16 channels."""

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of the tiles of A: pixels of a row, or of each of two rows."""
        if self.height > 1:
            return (self.width,) * self.height
        return tuple(
            min(TILE_ROWS, self.width - first) for first in range(0, self.width, TILE_ROWS)
        )


def default(conv: TileConv, device: Device) -> TileConvConfig:
    """Choose a configuration by the model."""
    cores = Machine.of(device).cores
    return min(_designs(conv), key=lambda config: cycles(conv, config, cores))


def configs(conv: TileConv, device: Device) -> Iterator[TileConvConfig]:
    """Enumerate configurations, each once, the default first."""
    yield from default_first(default(conv, device), _designs(conv))


def _designs(conv: TileConv) -> Iterator[TileConvConfig]:
    problem = conv.single
    y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
    pool = problem.pool
    rows, columns = (pool.size(v.var) if pool else 1 for v in (problem.y, problem.x))
    shapes: dict[tuple[int, int], None] = {}
    for most, height in ((TILE_ROWS * ROWS, 1), (TILE_ROWS, ROWS)):
        if height % rows or (height > y and height > 1):
            continue
        whole = x // columns
        width = math.ceil(whole / math.ceil(whole / max(1, most // columns))) * columns
        if width <= most:
            shapes[height, width] = None
    for height, width in shapes:
        for vectors in COLUMNS:
            if vectors > 1 and k <= TILE_ROWS:
                continue
            if problem.groups is not None and vectors != GROUPED:
                continue
            for band in _parts(math.ceil(y / height)):
                for chunk in _parts(math.ceil(k / (TILE_ROWS * vectors))):
                    yield TileConvConfig(TILE_ROWS, height, width, vectors, band, chunk)


def _parts(count: int) -> list[int]:
    return sorted({math.ceil(count / parts) for parts in range(1, min(count, MAX_PARTS) + 1)})


def cycles(conv: TileConv, config: TileConvConfig, cores: int) -> float:
    """Estimate the cycles of the busiest core."""
    problem = conv.single
    y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
    batch = math.prod(constant(a.extent) or 1 for a in problem.batch)
    width = TILE_ROWS * config.vectors
    tiles, rows = math.ceil(k / width), math.ceil(y / config.height)
    bands, chunks = math.ceil(rows / config.band), math.ceil(tiles / config.chunk)
    each = math.ceil(batch * bands * chunks / cores)
    across = math.ceil(x / config.width)
    products = conv.steps * window_size(conv.outer)
    tile: float = products * config.vectors * sum(max(h, LEAST_ROWS) for h in config.heights)
    tile += SUM * config.height * config.width * width
    lines = config.band * config.height + window_size(conv.outer)
    copied = 0.0 if conv.in_place else LINE * lines * x * conv.pixel
    return each * (TASK + copied + tile * across * config.band * min(config.chunk, tiles))


def waste(conv: TileConv) -> float:
    """Tell how many times as many products as a convolution has its tiles compute."""
    problem = conv.single
    c = problem.groups.c if problem.groups is not None else constant(conv.c.extent) or 1
    done = conv.steps * conv.words * conv.group * window_size(conv.outer)
    return done / (window_size(problem.window) * c)
