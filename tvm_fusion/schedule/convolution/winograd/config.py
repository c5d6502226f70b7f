"""Configurations of Winograd convolutions on CPUs: the default by a model, and the space around it.

The model counts cycles of the busiest core, as that of direct convolutions does (config.py):
multiplications in register tiles, the transforms, and vectors of the weight and of the transformed
image from a far cache. Measured on one Zen 5 core, F(4 x 4) and F(2 x 2) against the direct kernel:
256 channels of 28 x 28 pixels 2.9 and 1.9 times as fast, 64 of 224 x 224 2.6 and 1.7, 512 of
14 x 14 1.8 and 1.75, where the transformed weight is 38 and 17 MB.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ....core.tir.loops import constant
from ....device import Device
from ...contraction.cpu.blocking import Machine, cycles_of
from ...index.design_space import default_first
from ..dense.config import FAR, L1_BYTES, STREAM, TASK, ConvConfig, ConvSizes, estimated_cycles
from ..problem.problem import ConvProblem
from .transforms import SIZES, WINDOW

PLACE = 8.0  # cycles of a vector of a transform, at each of its places: 7 to 10 measured
# Cycles of a vector of the weight, from memory: kernels between two calls evict it. 256 channels of
# 7 x 7 pixels take 107 us in F(4 x 4) right after another call, 340 us with cold caches; the direct
# kernel 220 and 270.
MEMORY = 6.0
FAR_IMAGE = 1.0  # cycles of a vector of the transformed image beyond the level-2 cache
# Register tiles of one vector load as much as they multiply, of four need panels of the weight that
# leave no room in a level-1 cache: up to 2 and 1.5 times the time.
VECTORS = (2, 3)
LEAST_F4_GAIN = 1.2  # over F(2 x 2), whose errors are a seventh
MAX_TILES = 64  # of a task
MAX_CHUNKS = 8  # of channels: each transforms the image again


@dataclass(frozen=True)
class WinogradConfig:
    """Configuration of a Winograd convolution."""

    lanes: int  # float32 elements of a vector
    m: int  # rows and columns of results of a tile
    tiles: int  # tiles of a task
    height: int  # tiles of a register tile
    vectors: int  # vectors of output channels of a register tile
    chunk: int = 1  # register tiles of channels of a task

    @property
    def places(self) -> int:
        """Products of a tile, for each pair of channels."""
        return (self.m + WINDOW - 1) ** 2

    @property
    def name(self) -> str:
        """The algorithm."""
        return f"Winograd F({self.m} x {self.m}, 3 x 3)"


def winograd_default(problem: ConvProblem, device: Device) -> tuple[WinogradConfig, float] | None:
    """Choose a configuration by the model, with its cycles; ``None`` where none fits.

    Parameters
    ----------
    problem
        A convolution that has a :func:`~.choice.winograd_window`.
    """
    machine = Machine.of(device)
    return _fastest(ConvSizes.of(problem, machine), machine)


def winograd_configs(problem: ConvProblem, device: Device) -> Iterator[WinogradConfig]:
    """Enumerate configurations, each once, the default first.

    Parameters are those of :func:`winograd_default`.
    """
    chosen = winograd_default(problem, device)
    if chosen is not None:
        machine = Machine.of(device)
        designs = _designs(ConvSizes.of(problem, machine), machine)
        yield from default_first(chosen[0], designs)


def direct_cycles(config: ConvConfig, problem: ConvProblem, device: Device) -> float:
    """Estimate the cycles of the direct kernel, whose weight comes from memory as well."""
    machine = Machine.of(device)
    sizes = ConvSizes.of(problem, machine)
    vectors = sizes.c * sizes.window * math.ceil(sizes.k / config.lanes)
    cold = vectors * (MEMORY - FAR) / machine.cores
    return estimated_cycles(config, sizes, machine) + cold


@lru_cache(maxsize=1024)  # planning asks about many groups of the same convolution
def _fastest(sizes: ConvSizes, machine: Machine) -> tuple[WinogradConfig, float] | None:
    found = {c: winograd_cycles(c, sizes, machine) for c in _designs(sizes, machine)}
    best = [
        min(of_size, key=lambda c: found[c])
        for m in SIZES
        if (of_size := [c for c in found if c.m == m])
    ]
    handicap = {m: LEAST_F4_GAIN if m == 4 else 1.0 for m in SIZES}
    config = min(best, key=lambda c: found[c] * handicap[c.m], default=None)
    return None if config is None else (config, found[config])


def _designs(sizes: ConvSizes, machine: Machine) -> Iterator[WinogradConfig]:
    lanes = machine.unit.lanes
    for m in SIZES:
        if any(m % size for size in sizes.pool):
            continue
        total = _tiles(sizes, m)
        parts = range(math.ceil(total / MAX_TILES), total + 1)
        blocks = list(dict.fromkeys(math.ceil(total / n) for n in parts))
        for vectors in (n for n in VECTORS if n <= math.ceil(sizes.k / lanes)):
            most = machine.unit.rows(vectors)
            chunks = math.ceil(sizes.k / (lanes * vectors))
            by_chunk = {math.ceil(chunks / n) for n in range(1, min(chunks, MAX_CHUNKS) + 1)}
            for tiles in blocks:
                height = math.ceil(tiles / math.ceil(tiles / most))
                if tiles % height and tiles < total:
                    continue  # as good as one of whole register tiles
                one = WinogradConfig(lanes, m, tiles, height, vectors)
                yield from (replace(one, chunk=n) for n in sorted(by_chunk))


def _tiles(sizes: ConvSizes, m: int) -> int:
    return math.ceil(sizes.y / m) * math.ceil(sizes.x / m)


def winograd_tasks(problem: ConvProblem, config: WinogradConfig) -> int:
    """Count the tasks of an image."""
    y, x, k = (constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k))
    parts = math.ceil(math.ceil(y / config.m) * math.ceil(x / config.m) / config.tiles)
    return parts * math.ceil(k / (config.lanes * config.vectors * config.chunk))


def winograd_cycles(config: WinogradConfig, sizes: ConvSizes, machine: Machine) -> float:
    """Estimate the cycles of the busiest core."""
    lanes, places, c = config.lanes, config.places, sizes.c
    parts = math.ceil(_tiles(sizes, config.m) / config.tiles)
    panels = math.ceil(sizes.k / (lanes * config.vectors))
    chunks = math.ceil(panels / config.chunk)
    each = math.ceil(sizes.batch * parts * chunks / machine.cores)
    width = config.chunk * config.vectors  # vectors of output channels of a task
    full, rest = divmod(config.tiles, config.height)
    row = 4 * config.vectors * lanes
    steps = full * cycles_of(config.height, config.vectors)
    steps += cycles_of(rest, config.vectors) if rest else 0
    if row * c > L1_BYTES:  # the panel comes from the level-2 cache for each register tile
        steps += (full + bool(rest)) * row / STREAM / 2
    cycles = config.chunk * places * c * steps
    image, weight = math.ceil(c / lanes), c * width  # vectors, at one place
    cycles += places * config.tiles * (image + width) * PLACE
    if 4 * lanes * places * config.tiles * (image + config.vectors) > machine.l2_bytes:
        cycles += places * image * config.tiles * config.chunk * FAR_IMAGE
    # Once from memory, for all cores; then again for each task, from where it stays.
    all_weights = places * c * math.ceil(sizes.k / lanes)
    again = FAR if 4 * lanes * all_weights > machine.l2_bytes / 2 else 0.0
    if 4 * lanes * all_weights > machine.l3_bytes / 2:
        again = MEMORY
    cycles += places * weight * again
    return each * (cycles + TASK) + all_weights * (MEMORY - again) / machine.cores
