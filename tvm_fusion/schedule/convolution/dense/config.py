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

from ....core.loops import constant
from ....device import Device
from ...contraction.cpu.blocking import Machine, cycles_of
from ...contraction.cpu.dot_products import Int16Dot
from ...index.design_space import default_first, varied
from ..problem.problem import ConvProblem, Groups
from .prefetch import SYMBOLIC, Prefetch, far_streams

MAX_PIXELS = 28
MAX_VECTORS = 4
MAX_PARTS = 64  # of an axis, for tasks
NEAR = 1.15  # cycles of a tile over the fewest, for which the default compares tasks
COPY = 1.5  # cycles of a vector of the image that a task copies
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
    """Configuration of a dense convolution.

    Attributes
    ----------
    lanes : int
        float32 elements of a vector.
    height, width : int
        Pixels of a tile.
    vectors : int
        Vectors of output channels of a tile.
    band : int
        Rows of tiles of a task.
    chunk : int
        Tiles of channels of a task.
    prefetches : Prefetch
        What tiles prefetch.
    """

    lanes: int
    height: int
    width: int
    vectors: int
    band: int = 1
    chunk: int = 1
    prefetches: Prefetch = Prefetch.NONE


@dataclass(frozen=True)
class ConvSizes:
    """A convolution as the model sees it.

    Attributes
    ----------
    batch, y, x, k : int
        Extents.
    c, window : int
        Products of a sum: input channels, of all groups, and the window.
    stride, overlap : int
        Lines of the image from one row of pixels to the next, and those that two rows share.
    is_copied : bool
        Whether tasks copy lines of the image.
    groups : Groups or None
        Of a grouped convolution.
    pool : tuple of int
        Rows and columns that pooling takes together, of which tiles have whole ones.
    far : Prefetch
        Which of the image and the operands of the results come from a far cache or memory.
    temporaries : int
        Registers that products need beside those of fused multiply-adds.
    """

    batch: int
    y: int
    x: int
    k: int
    c: int
    window: int
    stride: int
    overlap: int
    is_copied: bool
    groups: Groups | None = None
    pool: tuple[int, int] = (1, 1)
    far: Prefetch = Prefetch.NONE
    temporaries: int = 0

    @classmethod
    def of(cls, problem: ConvProblem, machine: Machine) -> ConvSizes:
        """Read a convolution."""
        y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
        sizes = {a.var: constant(a.extent) or 1 for a in problem.window}
        c = 1 if problem.c is None else constant(problem.c.extent) or 1
        stride, overlap, pool = 1, 0, problem.pool
        for atoms in problem.image.sums.values():
            if problem.y.var in atoms:
                stride = atoms[problem.y.var]
                overlap = sum((sizes.get(v, 1) - 1) * n for v, n in atoms.items())
        return cls(
            math.prod(constant(a.extent) or SYMBOLIC for a in problem.batch),
            *(y, x, k, c),
            math.prod(sizes.values()),
            stride,
            overlap,
            not problem.reads_in_place,
            problem.groups,
            (pool.size(problem.y.var), pool.size(problem.x.var)) if pool else (1, 1),
            far_streams(problem, machine),
            _temporaries(problem, machine),
        )

    def bands(self, width: int) -> tuple[int, ...]:
        """List how many input channels tiles of output channels of a width read."""
        return _bands(self.groups, self.k, self.c, width)


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
    """Enumerate the tasks of a tile."""
    bands = _even(math.ceil(sizes.y / tile.height))
    chunks = _even(math.ceil(sizes.k / (tile.vectors * tile.lanes)))
    return varied(tile, band=bands, chunk=chunks)


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
    tile_cycles : float
        Cycles of the multiplications of all tiles.
    """
    lanes, row = config.lanes, config.height
    tiles, rows = math.ceil(sizes.k / (lanes * config.vectors)), math.ceil(sizes.y / row)
    chunks, bands = math.ceil(tiles / config.chunk), math.ceil(rows / config.band)
    tasks = sizes.batch * bands * chunks
    each = math.ceil(tasks / machine.cores)
    share = each * (config.chunk / tiles) * (config.band / rows) / sizes.batch
    cycles = tile_cycles * min(1.0, share)
    channels = max(sizes.bands(lanes * config.vectors * config.chunk))
    lines = min(config.band, rows) * row * sizes.stride + sizes.overlap
    image = lines * (sizes.x * sizes.stride + sizes.overlap) * channels / lanes
    most = max(sizes.bands(lanes * config.vectors))
    panel = most * sizes.window * config.vectors  # vectors of the weight of one tile
    cycles += each * (TASK + panel * config.chunk * FAR)
    if sizes.is_copied:
        cycles += each * image * COPY
    if (image + panel) * lanes * 4 > machine.l2_bytes:  # one evicts the other
        cycles += each * image * FAR * config.chunk
    if panel * lanes * 4 > machine.l2_bytes / 2:  # read again for each tile of pixels
        columns = math.ceil(sizes.x / config.width)
        cycles += each * panel * config.chunk * FAR * config.band * columns
    return cycles


def _parts(extent: int, size: int) -> list[tuple[int, int]]:
    """List the sizes of the tiles along an axis, and how many have them."""
    full, rest = divmod(extent, size)
    return [*([(size, full)] if full else []), *([(rest, 1)] if rest else [])]
