"""Configurations of convolutions on tile registers: the default by a model, and the space.

The model counts cycles of the busiest core: a product of tiles takes as many as it has rows of A,
at least half of 16, unless loads of tiles or the latency of the product before take longer. Beside
it are the weight from far, copies of lines, stores of sums, and the start of a task.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ....core.tir.loops import constant
from ....device import Device
from ...contraction.cpu.blocking import Machine
from ...cpu.tile_block import fits
from ...index.design_space import default_first
from ...index.estimate import operations
from ...instructions.tiles import TILE_ROW_BYTES, TILE_ROWS
from ..dense.config import L1_BYTES, MAX_PARTS, TASK, ConvConfig, moves
from ..dense.prefetch import Prefetch
from ..problem.groups import Band
from .problem import GROUPED, TileConv, window_size

LEAST_ROWS = 8  # cycles of a product of few rows
SUM = 0.35  # cycles of a sum that is stored, and read by the epilogue
LINE = 0.06  # cycles of an element of a line that is copied
OPERATION = 0.03  # and of each operation on it, in vectors
GATHER = 0.5  # and where the channels of a pixel are strided
LATENCY = 52  # cycles of a product, which the next one to the same sums waits for
NEAR, FAR = 8, 24  # cycles of loading a tile from the level-1 and from the level-2 cache
STREAM = 4.0  # bytes of the weight a cycle, from a far cache
CLOSE = 1.15  # times the cycles of the busiest core, for which the work of all is compared
COLUMNS = range(1, 7)  # registers of output channels
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
    """Choose a configuration by the model: of those near the fastest, the least work of all cores.

    Fewer threads than cores have more of it to do.
    """
    machine = Machine.of(device)
    found = {c: cycles(conv, c, machine.cores) for c in _designs(conv, machine.l2_bytes)}
    most = CLOSE * min(found.values())
    near = [config for config, busiest in found.items() if busiest <= most]
    return min(near, key=lambda config: (cycles(conv, config, 1), found[config]))


def configs(conv: TileConv, device: Device) -> Iterator[TileConvConfig]:
    """Enumerate configurations, each once, the default first."""
    yield from default_first(default(conv, device), _designs(conv, Machine.of(device).l2_bytes))


def _designs(conv: TileConv, l2_bytes: int) -> Iterator[TileConvConfig]:
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
    weight = k * conv.steps * conv.words * TILE_ROW_BYTES // TILE_ROWS * window_size(conv.outer)
    prefetches = Prefetch.WEIGHT if weight > l2_bytes // 2 else Prefetch.NONE
    for height, width in shapes:
        for vectors in COLUMNS:
            rows_of_tiles = height if height > 1 else math.ceil(width / TILE_ROWS)
            if vectors > math.ceil(k / TILE_ROWS) or not fits(rows_of_tiles, vectors):
                continue
            if problem.groups is not None and vectors != GROUPED:
                continue
            for band in _parts(math.ceil(y / height)):
                for chunk in _parts(math.ceil(k / (TILE_ROWS * vectors))):
                    sizes = height, width, vectors, band, chunk
                    yield TileConvConfig(TILE_ROWS, *sizes, prefetches)


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
    multiply = config.vectors * sum(max(h, LEAST_ROWS) for h in config.heights)
    panel = products * config.vectors * conv.words * TILE_ROW_BYTES
    loads = NEAR * len(config.heights) + (FAR if panel > L1_BYTES else NEAR) * config.vectors
    tile: float = products * max(multiply, loads, LATENCY)
    tile += SUM * config.height * config.width * width
    copied = 0.0 if conv.in_place else _copied(conv, config)
    streamed = panel * min(config.chunk, tiles) / STREAM
    work = tile * across * config.band * min(config.chunk, tiles)
    # Tasks one after another have the same weight.
    return each * (TASK + copied + work) + math.ceil(each / bands) * streamed


def _copied(conv: TileConv, config: TileConvConfig) -> float:
    """Estimate the cycles of the lines of a task."""
    problem, sizes = conv.single, {a.var: constant(a.extent) or 1 for a in conv.single.window}
    stride, overlap = moves(problem, problem.y, sizes)
    step, shared = moves(problem, problem.x, sizes)
    rows = config.band * config.height * stride + overlap
    columns = (constant(problem.x.extent) or 1) * step + shared
    band = Band(problem, TILE_ROWS * config.vectors * config.chunk)
    each = LINE + OPERATION * operations(problem.image.value) + GATHER * conv.gathers
    return each * rows * columns * band.blocks * problem.block


def waste(conv: TileConv) -> float:
    """Tell how many times as many products as a convolution has its tiles compute."""
    problem = conv.single
    c = problem.groups.c if problem.groups is not None else constant(conv.c.extent) or 1
    done = conv.steps * conv.words * conv.group * window_size(conv.outer)
    return done / (window_size(problem.window) * c)
