"""Configurations of depthwise convolutions on CPUs."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant
from ....device import Device
from ....program.stage import Axis
from ...contraction.cpu.blocking import Machine
from ...index.address import lies_along
from ...index.design_space import default_first
from ...math.vector_math import makes_vectors, vector_math
from ..problem.problem import ConvProblem

GRAIN = 1 << 14  # multiplications of vectors that are worth a task
TASKS = 4  # per core, for balance
MAX_PARTS = 64  # of a row


@dataclass(frozen=True)
class DepthwiseConfig:
    """Configuration of a depthwise convolution."""

    lanes: int  # float32 elements of a vector
    width: int  # pixels of a tile
    band: int  # rows of pixels of a task
    part: int = 0  # tiles along the rows of pixels of a task; 0 where tasks take whole rows


def depthwise_config(problem: ConvProblem, device: Device) -> DepthwiseConfig | None:
    """Choose a configuration; ``None`` where channels of the image are not contiguous."""
    image, k = problem.image, problem.k
    own = [a for a, p in zip(image.axes, image.place, strict=True) if p.same_as(k.var)]
    if problem.c is not None or len(own) != 1 or own[0].var in image.inside or not image.has_zeros:
        return None
    axis = Axis(own[0].var, k.extent)
    along = [x for x in loads(image.value) if axis.var in variables(x)]
    machine = Machine.of(device)
    lanes = machine.unit.lanes
    if not along or not all(lies_along(x.source, x.indices, axis, lanes) for x in along):
        return None
    if not makes_vectors(vector_math(image.value)):
        return None
    x, y = (constant(a.extent) or 1 for a in (problem.x, problem.y))
    most = (machine.unit.registers - 2) // 2
    width = math.ceil(x / math.ceil(x / most))
    around = math.prod(constant(a.extent) or 1 for a in problem.batch)
    around *= math.ceil((constant(k.extent) or 1) / lanes)
    window = math.prod(constant(a.extent) or 1 for a in problem.window)
    wanted = min(TASKS * machine.cores, max(1, around * y * x * window // GRAIN))
    if wanted <= 1:
        return DepthwiseConfig(lanes, width, y)
    bands = _pieces(y, around, wanted, machine.cores)
    tiles, part = math.ceil(x / width), 0
    if bands == y and around * y < wanted and tiles > 1:
        part = math.ceil(tiles / _pieces(tiles, around * y, wanted, machine.cores))
    return DepthwiseConfig(lanes, width, math.ceil(y / bands), part)


def _pieces(extent: int, around: int, wanted: int, cores: int) -> int:
    """Choose in how many pieces to cut an axis, so that cores are equally busy."""
    fewest = max(1, min(extent, math.ceil(wanted / around)))
    even = (n for n in range(fewest, extent + 1) if around * n % cores == 0)
    return next(even, fewest)


def depthwise_configs(problem: ConvProblem, device: Device) -> Iterator[DepthwiseConfig]:
    """Enumerate tiles that fit the registers and tasks, each once, the default first.

    Parameters are those of :func:`depthwise_config`.
    """
    chosen = depthwise_config(problem, device)
    if chosen is None:
        return
    x, y = (constant(a.extent) or 1 for a in (problem.x, problem.y))
    most = min(x, Machine.of(device).unit.registers - 2)
    widths = sorted({math.ceil(x / math.ceil(x / width)) for width in range(1, most + 1)})
    bands = sorted({math.ceil(y / parts) for parts in range(1, y + 1)})
    yield from default_first(chosen, _tasks(chosen, x, widths, bands))


def _tasks(
    chosen: DepthwiseConfig, x: int, widths: Iterable[int], bands: Iterable[int]
) -> Iterator[DepthwiseConfig]:
    """Combine tiles and tasks: rows are cut where a task has one of them."""
    for width, band in itertools.product(widths, bands):
        tiles = math.ceil(x / width)
        parts = {0, *(math.ceil(tiles / n) for n in range(2, min(tiles, MAX_PARTS) + 1))}
        for part in sorted(parts) if band == 1 else [0]:
            yield DepthwiseConfig(chosen.lanes, width, band, part)
