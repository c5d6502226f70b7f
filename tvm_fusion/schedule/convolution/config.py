"""Configurations of direct convolutions on CPUs: the default by a model, and the space around it.

A tile is a rectangle of pixels by whole vectors of output channels; a task is a band of rows of
tiles by a chunk of tiles of channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.loops import constant
from ...device import Device
from ...program.stage import Axis
from ..contraction.blocking import PER_CYCLE, cycles_of
from ..contraction.gemm_problem_cpu import Machine
from .problem import ConvProblem
from .simplify import Ranges

MAX_PIXELS = 28
MAX_VECTORS = 4
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
    band: int
    chunk: int


@dataclass(frozen=True)
class _Sizes:
    """What the model reads of a convolution."""

    batch: int
    y: int
    x: int
    k: int
    terms: int
    channels: int
    lines_per_row: float
    is_copied: bool
    k_of_image: int  # output channels that read the same input channels


def default(problem: ConvProblem, device: Device) -> ConvConfig | None:
    """Choose a configuration by the model; ``None`` where channels of a group are too few.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    device : Device
        A CPU.
    """
    found = list(configs(problem, device))
    return found[0] if found else None


def configs(problem: ConvProblem, device: Device) -> Iterator[ConvConfig]:
    """Enumerate configurations that fit the registers, the fastest by the model first.

    Parameters are those of :func:`default`.
    """
    machine = Machine.of(device)
    sizes = _sizes(problem, machine)
    found: dict[ConvConfig, float] = {}
    for config in _tiles(problem, sizes, machine):
        for band, chunk in itertools.product(
            _counts(math.ceil(sizes.y / config.height)),
            _counts(math.ceil(sizes.k / (config.vectors * config.lanes))),
        ):
            tiled = ConvConfig(
                config.lanes, config.height, config.width, config.vectors, band, chunk
            )
            if sizes.is_copied and sizes.k_of_image < sizes.k:
                width = chunk * config.vectors * config.lanes
                if sizes.k_of_image % width:
                    continue
            found[tiled] = _cycles(tiled, sizes, machine)
    yield from sorted(found, key=lambda c: found[c])


def _sizes(problem: ConvProblem, machine: Machine) -> _Sizes:
    c = 1 if problem.c is None else constant(problem.c.extent) or 1
    window = math.prod(constant(a.extent) or 1 for a in problem.window)
    stride = max((n.get(problem.y.var, 1) for n in problem.image.sums.values()), default=1)
    return _Sizes(
        math.prod(constant(a.extent) or SYMBOLIC for a in problem.batch),
        constant(problem.y.extent) or 1,
        constant(problem.x.extent) or 1,
        constant(problem.k.extent) or 1,
        c * window,
        c,
        stride,
        not problem.image.is_load,
        _k_of_image(problem),
    )


def _k_of_image(problem: ConvProblem) -> int:
    """Count adjacent output channels that read the same input channels: all, or those of a group."""
    k, size = problem.k, constant(problem.k.extent) or 1
    place = dict(zip((a.var for a in problem.image.axes), problem.image.place, strict=True))
    if not any(p.same_as(k.var) for p in place.values()):
        return size
    own = next(a.var for a, p in zip(problem.image.axes, problem.image.place, strict=True)
               if p.same_as(k.var))  # fmt: skip
    for width in (d for d in range(size, 0, -1) if size % d == 0):
        if _is_constant(problem, own, width):
            return width
    return 1


def _is_constant(problem: ConvProblem, axis, width: int) -> bool:
    from tvm import tirx

    from ...core.expressions import variables
    from ...core.loops import index, substitute

    ranges, number, lane = Ranges(), tirx.Var("number", "int64"), tirx.Var("lane", "int64")
    ranges.bind(lane, width)
    for other in problem.image.axes:
        if other.var is not axis:
            ranges.bind(other.var, other.extent)
    value = ranges.value(substitute(problem.image.value, {axis: number * index(width) + lane}))
    return lane not in variables(value)


def _tiles(problem: ConvProblem, sizes: _Sizes, machine: Machine) -> Iterator[ConvConfig]:
    """Enumerate tiles with evenly divided sides that fit into the registers."""
    unit = machine.unit
    for vectors in range(1, MAX_VECTORS + 1):
        if vectors > math.ceil(sizes.k / unit.lanes):
            continue
        if sizes.k_of_image < sizes.k and sizes.k_of_image % (vectors * unit.lanes):
            continue
        most = min(MAX_PIXELS, unit.rows(vectors))
        seen = set()
        for width in range(1, min(sizes.x, most) + 1):
            width = math.ceil(sizes.x / math.ceil(sizes.x / width))
            height = min(sizes.y, most // width) if width == sizes.x else 1
            height = math.ceil(sizes.y / math.ceil(sizes.y / height))
            if width * height > most or (height, width) in seen:
                continue
            seen.add((height, width))
            yield ConvConfig(unit.lanes, height, width, vectors, 1, 1)


def _counts(count: int) -> list[int]:
    """List the numbers of tiles of a task that divide all of them most evenly."""
    return sorted({math.ceil(count / parts) for parts in range(1, min(count, 64) + 1)})


def _cycles(config: ConvConfig, sizes: _Sizes, machine: Machine) -> float:
    """Estimate the cycles of the busiest core."""
    lanes, cores = config.lanes, machine.cores
    columns = _parts(sizes.x, config.width)
    k_tiles = math.ceil(sizes.k / (lanes * config.vectors))
    chunks = math.ceil(k_tiles / config.chunk)
    rows = config.band * config.height
    bands = math.ceil(sizes.y / rows)
    last = math.ceil(sizes.k / lanes) - (k_tiles - 1) * config.vectors

    def tiles(height: int) -> float:
        """Give the cycles of one row of tiles for all channels."""
        whole = sum(cycles_of(height * w, config.vectors) for w in columns)
        rest = sum(cycles_of(height * w, last) for w in columns)
        return ((k_tiles - 1) * whole + rest) * sizes.terms

    work = sum(tiles(h) for h in _parts(sizes.y, config.height)) * sizes.batch
    tasks = sizes.batch * bands * chunks
    # Of an uneven division the busiest core has more.
    balance = math.ceil(tasks / min(cores, tasks)) / (tasks / min(cores, tasks))
    balance *= bands * rows / sizes.y if bands > 1 else 1
    balance *= chunks * config.chunk / k_tiles if chunks > 1 else 1
    cost = work / min(cores, tasks) * max(1.0, balance)
    per_core = tasks / min(cores, tasks)
    weight = sizes.terms * config.chunk * config.vectors
    image = (
        (rows * sizes.lines_per_row + 2) * sizes.x * sizes.lines_per_row * sizes.channels / lanes
    )
    if sizes.is_copied:
        cost += per_core * image * COPY
    cost += per_core * (weight * FAR + TASK)
    if image * lanes * 4 > machine.l2_bytes / 2:  # read again for each tile of channels
        cost += per_core * image * FAR * config.chunk
    panel = sizes.terms * config.vectors
    if panel * lanes * 4 > machine.l2_bytes / 2:
        cost += per_core * weight * FAR * config.band * len(columns)
    return cost


def _parts(extent: int, size: int) -> list[int]:
    full, rest = divmod(extent, size)
    return [size] * full + ([rest] if rest else [])


def tiles_of(axis: Axis, size: int) -> int:
    """Count the tiles along an axis, the last of which may be smaller."""
    return math.ceil((constant(axis.extent) or 1) / size)


__all__ = ["PER_CYCLE", "ConvConfig", "configs", "default", "tiles_of"]
