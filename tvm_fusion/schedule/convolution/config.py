"""Configurations of dense convolutions on CPUs: the default by a model, and the space around it.

The model counts cycles of the busiest core: multiplications in register tiles, as the blocking of
GEMMs counts them, the copy of the image, and vectors of weight and image from a far cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...core.loops import constant
from ...device import Device
from ..contraction.blocking import cycles_of
from ..contraction.gemm_problem_cpu import Machine
from .groups import shared_k
from .problem import ConvProblem

MAX_PIXELS = 28
MAX_VECTORS = 4
MAX_PARTS = 64  # of an axis, for tasks
NEAR = 1.15  # cycles of a tile over the fewest, for which the default compares tasks
COPY = 1.5  # cycles of a vector of the image that a task copies
FAR = 2.0  # cycles of a vector of the weight that comes from a far cache
TASK = 2000  # cycles of starting a task
SYMBOLIC = 4  # images, if symbolic


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
    """

    lanes: int
    height: int
    width: int
    vectors: int
    band: int = 1
    chunk: int = 1


@dataclass(frozen=True)
class ConvSizes:
    """A convolution as the model sees it.

    Attributes
    ----------
    batch, y, x, k, c : int
        Extents.
    terms : int
        Products of a sum: channels and window.
    stride, overlap : int
        Lines of the image from one row of pixels to the next, and those that two rows share.
    is_copied : bool
        Whether tasks copy lines of the image.
    shared_k : int
        Adjacent output channels that read the same input channels: all, or those of a group.
    """

    batch: int
    y: int
    x: int
    k: int
    c: int
    terms: int
    stride: int
    overlap: int
    is_copied: bool
    shared_k: int

    @classmethod
    def of(cls, problem: ConvProblem) -> ConvSizes:
        """Read a convolution."""
        y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
        sizes = {a.var: constant(a.extent) or 1 for a in problem.window}
        c = 1 if problem.c is None else constant(problem.c.extent) or 1
        stride, overlap = 1, 0
        for atoms in problem.image.sums.values():
            if problem.y.var in atoms:
                stride = atoms[problem.y.var]
                overlap = sum((sizes.get(v, 1) - 1) * n for v, n in atoms.items())
        return cls(
            math.prod(constant(a.extent) or SYMBOLIC for a in problem.batch),
            y,
            x,
            k,
            c,
            c * math.prod(sizes.values()),
            stride,
            overlap,
            not problem.image.is_load,
            shared_k(problem),
        )


def default(problem: ConvProblem, device: Device) -> ConvConfig | None:
    """Choose a configuration by the model; ``None`` where groups have less than a vector.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    device : Device
        A CPU.
    """
    machine, sizes = Machine.of(device), ConvSizes.of(problem)
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


def configs(problem: ConvProblem, device: Device) -> Iterator[ConvConfig]:
    """Enumerate configurations that fit the registers, each once, the default first.

    Parameters are those of :func:`default`.
    """
    chosen = default(problem, device)
    if chosen is None:
        return
    yield chosen
    machine, sizes = Machine.of(device), ConvSizes.of(problem)
    for tile in _tiles(sizes, machine):
        yield from (config for config in _tasks(tile, sizes) if config != chosen)


def _tiles(sizes: ConvSizes, machine: Machine) -> Iterator[ConvConfig]:
    """Enumerate tiles that divide rows of pixels evenly and fit into the registers."""
    unit = machine.unit
    for vectors in range(1, min(MAX_VECTORS, math.ceil(sizes.k / unit.lanes)) + 1):
        if sizes.shared_k < sizes.k and sizes.shared_k % (vectors * unit.lanes):
            continue
        most = min(MAX_PIXELS, unit.rows(vectors))
        shapes: dict[tuple[int, int], None] = {}
        for width in range(1, min(sizes.x, most) + 1):
            width = math.ceil(sizes.x / math.ceil(sizes.x / width))
            height = min(sizes.y, most // width) if width == sizes.x else 1
            height = math.ceil(sizes.y / math.ceil(sizes.y / height))
            shapes[height, width] = None
        for height, width in shapes:
            yield ConvConfig(unit.lanes, height, width, vectors)


def _tasks(tile: ConvConfig, sizes: ConvSizes) -> Iterator[ConvConfig]:
    """Enumerate the tasks of a tile."""
    bands = _even(math.ceil(sizes.y / tile.height))
    chunks = _even(math.ceil(sizes.k / (tile.vectors * tile.lanes)))
    for band, chunk in itertools.product(bands, chunks):
        width = chunk * tile.vectors * tile.lanes
        if sizes.is_copied and sizes.shared_k < sizes.k and sizes.shared_k % width:
            continue  # the channels of one group are copied
        yield replace(tile, band=band, chunk=chunk)


def _even(count: int) -> list[int]:
    """List the sizes of even parts of a number of tiles."""
    return sorted({math.ceil(count / parts) for parts in range(1, min(count, MAX_PARTS) + 1)})


def _tile_cycles(tile: ConvConfig, sizes: ConvSizes) -> float:
    """Estimate the cycles of the multiplications of all tiles, for one term."""
    tiles = math.ceil(sizes.k / (tile.lanes * tile.vectors))
    last = math.ceil(sizes.k / tile.lanes) - (tiles - 1) * tile.vectors
    total = 0.0
    for height, width in itertools.product(
        _parts(sizes.y, tile.height), _parts(sizes.x, tile.width)
    ):
        pixels = height[0] * width[0]
        cycles = (tiles - 1) * cycles_of(pixels, tile.vectors) + cycles_of(pixels, last)
        total += height[1] * width[1] * cycles
    return total * sizes.batch


def cycles_of_busiest(
    config: ConvConfig, sizes: ConvSizes, machine: Machine, tile_cycles: float
) -> float:
    """Estimate the cycles of the busiest core.

    Parameters
    ----------
    config : ConvConfig
        The configuration.
    sizes : ConvSizes
        The convolution.
    machine : Machine
        The CPU.
    tile_cycles : float
        Cycles of the multiplications of all tiles, for one term.
    """
    lanes, row = config.lanes, config.height
    tiles, rows = math.ceil(sizes.k / (lanes * config.vectors)), math.ceil(sizes.y / row)
    chunks, bands = math.ceil(tiles / config.chunk), math.ceil(rows / config.band)
    tasks = sizes.batch * bands * chunks
    each = math.ceil(tasks / machine.cores)
    share = each * (config.chunk / tiles) * (config.band / rows) / sizes.batch
    cycles = tile_cycles * sizes.terms * min(1.0, share)
    lines = min(config.band, rows) * row * sizes.stride + sizes.overlap
    image = lines * (sizes.x * sizes.stride + sizes.overlap) * sizes.c / lanes
    panel = sizes.terms * config.vectors  # vectors of the weight of one tile
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
