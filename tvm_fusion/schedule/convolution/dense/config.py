"""Configurations of dense convolutions on CPUs: the default by a model, and the space around it.

The model counts cycles of the busiest core: multiplications in register tiles, as the blocking of
GEMMs counts them, or the weight that they stream from the level-2 cache, the copy of the image, and
vectors of weight and image from a far cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tvm import ir

from ....core.tir.loops import constant
from ....device import Device
from ....program.stage import Axis
from ...contraction.cpu.blocking import Machine, cycles_of
from ...contraction.cpu.dot_products import Int16Dot
from ...index.design_space import default_first
from ..problem.problem import BLOCK, ConvProblem, Groups
from .prefetch import SYMBOLIC, Prefetch, far_streams

MAX_PIXELS = 28
MAX_VECTORS = 4
MAX_PARTS = 64  # of an axis, for tasks
NEAR = 1.15  # cycles of a tile over the fewest, for which the default compares tasks
COPY = 1.5  # cycles of a vector of the image that a task copies
PACK = 12.0  # and where it gathers its channels
SHORT = 8.0  # cycles of a vector of the image that comes from a far cache in short pieces
FAR = 2.0  # cycles of a vector of the weight that comes from a far cache
TEMPORARIES = (
    2  # registers: LLVM broadcasts words early, and tiles of 14 by 2 vectors spill without
)
FEW_REGISTERS = 16  # of which tiles of VNNI need all: one spill in 144 products costs less
TASK = 2000  # cycles of starting a task
L1_BYTES = 32 << 10  # of a core: a panel of the weight that is larger comes from the level-2 cache
STREAM = 18.0  # bytes of it a cycle: 14 to 20 choose alike, and best, among 1,500 trials on Zen 5


@dataclass(frozen=True)
class ConvConfig:
    """Configuration of a dense convolution."""

    lanes: int  # float32 elements of a vector
    # Pixels of a tile.
    height: int
    width: int
    vectors: int  # vectors of output channels of a tile
    band: int = 1  # rows of tiles of a task
    chunk: int = 1  # tiles of channels of a task
    prefetches: Prefetch = Prefetch.NONE  # what tiles prefetch
    part: int = 0  # tiles along the rows of pixels of a task; 0 where tasks take whole rows

    def columns(self, x: int) -> int:
        """Count the columns of pixels of a task, of ``x`` in a row."""
        return min(x, self.part * self.width) if self.part else x


@dataclass(frozen=True)
class ConvSizes:
    """A convolution as the model sees it."""

    # Extents.
    batch: int
    y: int
    x: int
    k: int
    # Products of a sum: input channels, of all groups, and the window.
    c: int
    window: int
    # Lines of the image from one row of pixels to the next, and those that two rows share.
    stride: int
    overlap: int
    columns: tuple[int, int]  # the same of columns
    # Whether tasks copy lines of the image, and whether into blocks of channels.
    is_copied: bool
    is_packed: bool = False
    # Whether tiles read an element of a channel, and then one of another line.
    is_plain: bool = False
    groups: Groups | None = None  # of a grouped convolution
    # Rows and columns that pooling takes together, of which tiles have whole ones.
    pool: tuple[int, int] = (1, 1)
    # Which of the image and the operands of the results come from a far cache or memory.
    far: Prefetch = Prefetch.NONE
    temporaries: int = 0  # registers that products need besides those of fused multiply-adds

    @classmethod
    def of(cls, problem: ConvProblem, machine: Machine) -> ConvSizes:
        """Read a convolution."""
        y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
        sizes = {a.var: constant(a.extent) or 1 for a in problem.window}
        c = 1 if problem.c is None else constant(problem.c.extent) or 1
        pool = problem.pool
        stride, overlap = moves(problem, problem.y, sizes)
        return cls(
            math.prod(constant(a.extent) or SYMBOLIC for a in problem.batch),
            *(y, x, k, c),
            math.prod(sizes.values()),
            stride,
            overlap,
            moves(problem, problem.x, sizes),
            not problem.reads_in_place,
            problem.is_packed,
            problem.reads_in_place and problem.block == 1 and c >= BLOCK,
            problem.groups,
            (pool.size(problem.y.var), pool.size(problem.x.var)) if pool else (1, 1),
            far_streams(problem, machine),
            _temporaries(problem, machine),
        )

    def bands(self, width: int) -> tuple[int, ...]:
        """List how many input channels tiles of output channels of a width read."""
        return _bands(self.groups, self.k, self.c, width)


def moves(problem: ConvProblem, pixel: Axis, sizes: dict[ir.Var, int]) -> tuple[int, int]:
    """Return how far the image moves from a pixel to the next, and what their windows share."""
    for atoms in problem.image.sums.values():
        if pixel.var in atoms:
            overlap = sum((sizes.get(v, 1) - 1) * n for v, n in atoms.items())
            return atoms[pixel.var], overlap
    return 1, 0


def _temporaries(problem: ConvProblem, machine: Machine) -> int:
    if problem.words is None:
        return 0
    needs = isinstance(problem.words.dot, Int16Dot)  # products, before they are added
    return TEMPORARIES if needs or machine.unit.registers > FEW_REGISTERS else 0


@lru_cache(maxsize=1024)
def _bands(groups: Groups | None, k: int, c: int, width: int) -> tuple[int, ...]:
    if groups is None:
        return (c,) * math.ceil(k / width)
    bands = groups.bands(c // groups.c * groups.k, width)
    return tuple(end - begin for begin, end in bands)


def default(problem: ConvProblem, device: Device) -> ConvConfig | None:
    """Choose a configuration by the model; ``None`` where no tile fits the registers."""
    machine = Machine.of(device)
    return _fastest(ConvSizes.of(problem, machine), machine)


@lru_cache(maxsize=1024)
def _fastest(sizes: ConvSizes, machine: Machine) -> ConvConfig | None:
    tiles = {tile: _tile_cycles(tile, sizes) for tile in _tiles(sizes, machine)}
    if not tiles:
        return None
    fewest = min(tiles.values())
    found = {
        config: cycles_of_busiest(config, sizes, machine, cycles)
        for tile, cycles in tiles.items()
        if cycles <= NEAR * fewest
        for config in _tasks(tile, sizes)
    }
    return min(found, key=lambda c: found[c], default=None)


def estimated_cycles(config: ConvConfig, sizes: ConvSizes, machine: Machine) -> float:
    """Estimate the cycles of the busiest core; see :func:`cycles_of_busiest`."""
    return cycles_of_busiest(config, sizes, machine, _tile_cycles(config, sizes))


def configs(problem: ConvProblem, device: Device) -> Iterator[ConvConfig]:
    """Enumerate configurations that fit the registers, each once, the default first.

    Parameters are those of :func:`default`.
    """
    chosen = default(problem, device)
    if chosen is None:
        return
    machine = Machine.of(device)
    yield from default_first(chosen, _designs(ConvSizes.of(problem, machine), machine))


def _designs(sizes: ConvSizes, machine: Machine) -> Iterator[ConvConfig]:
    for tile in _tiles(sizes, machine):
        for config in _tasks(tile, sizes):
            yield config
            yield replace(config, prefetches=config.prefetches ^ Prefetch.WEIGHT)


def _tiles(sizes: ConvSizes, machine: Machine) -> Iterator[ConvConfig]:
    """Enumerate tiles that divide rows of pixels evenly and fit into the registers."""
    unit = machine.unit
    unit = replace(unit, registers=unit.registers - sizes.temporaries)
    for vectors in range(1, min(MAX_VECTORS, math.ceil(sizes.k / unit.lanes)) + 1):
        rows, columns = sizes.pool
        most = min(MAX_PIXELS, unit.rows(vectors)) // (rows * columns)
        y, x = sizes.y // rows, sizes.x // columns
        shapes: dict[tuple[int, int], None] = {}
        for width in range(1, min(x, most) + 1):
            width = math.ceil(x / math.ceil(x / width))
            height = min(y, most // width) if width == x else 1
            height = math.ceil(y / math.ceil(y / height))
            shapes[height * rows, width * columns] = None
        far = sizes.k * max(sizes.bands(unit.lanes * vectors)) * sizes.window * 4
        is_far = far > machine.l2_bytes / 2
        for height, width in shapes:
            prefetches = sizes.far | (Prefetch.WEIGHT if is_far else Prefetch.NONE)
            yield ConvConfig(unit.lanes, height, width, vectors, prefetches=prefetches)


def _tasks(tile: ConvConfig, sizes: ConvSizes) -> Iterator[ConvConfig]:
    """Enumerate the tasks of a tile: rows are cut where a task has one row of tiles."""
    bands = _even(math.ceil(sizes.y / tile.height))
    chunks = _even(math.ceil(sizes.k / (tile.vectors * tile.lanes)))
    columns = math.ceil(sizes.x / tile.width)
    parts = [0]
    if tile.height == 1 and sizes.pool == (1, 1):
        parts += [n for n in _even(columns) if n < columns]
    for band, chunk, part in itertools.product(bands, chunks, parts):
        if band == 1 or not part:
            yield replace(tile, band=band, chunk=chunk, part=part)


def _even(count: int) -> list[int]:
    """List the sizes of even parts of a number of tiles."""
    return sorted({math.ceil(count / parts) for parts in range(1, min(count, MAX_PARTS) + 1)})


def _tile_cycles(tile: ConvConfig, sizes: ConvSizes) -> float:
    """Estimate the cycles of the multiplications of all tiles, and of the weight that they read."""
    *full, last = sizes.bands(tile.lanes * tile.vectors)
    rest = math.ceil(sizes.k / tile.lanes) - len(full) * tile.vectors
    total = 0.0
    for height, width in itertools.product(
        _parts(sizes.y, tile.height), _parts(sizes.x, tile.width)
    ):
        pixels = height[0] * width[0]
        cycles = sum(c * _cycles(pixels, tile.vectors, c, sizes, tile) for c in full)
        cycles += last * _cycles(pixels, rest, last, sizes, tile)
        total += height[1] * width[1] * cycles
    return total * sizes.batch * sizes.window


def _cycles(pixels: int, vectors: int, c: int, sizes: ConvSizes, tile: ConvConfig) -> float:
    """Estimate the cycles of one input channel, at one place of the window, of a tile."""
    cycles, row = cycles_of(pixels, vectors), vectors * tile.lanes * 4
    return max(cycles, row / STREAM) if row * c * sizes.window > L1_BYTES else cycles


def cycles_of_busiest(
    config: ConvConfig, sizes: ConvSizes, machine: Machine, tile_cycles: float
) -> float:
    """Estimate the cycles of the busiest core.

    Parameters
    ----------
    tile_cycles
        Cycles of the multiplications of all tiles.
    """
    lanes, row = config.lanes, config.height
    tiles, rows = math.ceil(sizes.k / (lanes * config.vectors)), math.ceil(sizes.y / row)
    chunks, bands = math.ceil(tiles / config.chunk), math.ceil(rows / config.band)
    columns = math.ceil(sizes.x / config.width)
    part = config.part or columns
    parts = math.ceil(sizes.x / config.columns(sizes.x))
    tasks = sizes.batch * bands * chunks * parts
    each = math.ceil(tasks / machine.cores)
    share = each * (config.chunk / tiles) * (config.band / rows) * (part / columns) / sizes.batch
    cycles = tile_cycles * min(parts * part / columns, share)
    channels = max(sizes.bands(lanes * config.vectors * config.chunk))
    lines = min(config.band, rows) * row * sizes.stride + sizes.overlap
    step, shared = sizes.columns
    image = lines * (config.columns(sizes.x) * step + shared) * channels / lanes
    most = max(sizes.bands(lanes * config.vectors))
    panel = most * sizes.window * config.vectors  # vectors of the weight of one tile
    cycles += each * (TASK + panel * config.chunk * FAR)
    if sizes.is_copied:
        cycles += each * image * (PACK if sizes.is_packed else COPY)
    if (image + panel) * lanes * 4 > machine.l2_bytes:  # one evicts the other
        cycles += each * image * (SHORT if sizes.is_plain else FAR) * config.chunk
    if panel * lanes * 4 > machine.l2_bytes / 2:  # read again for each tile of pixels
        cycles += each * panel * config.chunk * FAR * config.band * part
    return cycles


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """List the sizes of the tiles along an axis, and how many have them."""
    full, rest = divmod(extent, size)
    return [*([(size, full)] if full else []), *([(rest, 1)] if rest else [])]
