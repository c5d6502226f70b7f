"""Depthwise convolution on a CPU: vectors of channels, tiles of pixels of one row.

  tasks in parallel: (image, vector of channels, band of rows of pixels)
    for row of pixels:  for tile of width pixels:
      acc[width] = 0                                                             registers
      for row of the window that is inside of the image:
        for column of the window, pixel:                                         unrolled
          acc[pixel] += image[pixel + window] * weight[window]
      results of the tile                                                        (epilogue_cpu)

Nothing is copied: taps in the padding are left out, of rows by the bounds of a loop, of columns at
compile time, for which the tiles at the borders have code of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ...core.expressions import load, loads, variables
from ...core.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    local,
    loop,
    product,
    sequence,
    substitute,
    tasks,
)
from ...device import Device
from ...program.program import Program
from ...program.stage import Axis
from ..address import lies_along
from ..contraction.gemm_problem_cpu import Machine
from ..cpu import PARALLEL_WORK
from ..register_tile import clear, in_vectors
from ..vector_math import makes_vectors, vector_math
from .epilogue_cpu import ConvEpilogue
from .problem import ConvProblem
from .simplify import Ranges
from .weight_cpu import PackedWeight

GRAIN = 1 << 14  # multiplications of vectors that are worth a task
TASKS = 4  # per core, for balance


@dataclass(frozen=True)
class DepthwiseConfig:
    """Configuration of a depthwise convolution.

    Attributes
    ----------
    lanes : int
        float32 elements of a vector.
    width : int
        Pixels of a tile.
    band : int
        Rows of pixels of a task.
    """

    lanes: int
    width: int
    band: int


def depthwise_config(problem: ConvProblem, device: Device) -> DepthwiseConfig | None:
    """Choose a configuration; ``None`` where channels of the image are not contiguous.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    device : Device
        A CPU.
    """
    image, k = problem.image, problem.k
    own = [a for a, p in zip(image.axes, image.place, strict=True) if p.same_as(k.var)]
    if problem.c is not None or len(own) != 1 or own[0].var in image.inside:
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
    fewest = max(1, min(y, math.ceil(wanted / around)))
    even = (n for n in range(fewest, y + 1) if around * n % machine.cores == 0)
    bands = next(even, fewest) if wanted > 1 else 1
    return DepthwiseConfig(lanes, width, math.ceil(y / bands))


def depthwise_cpu(
    program: Program, problem: ConvProblem, config: DepthwiseConfig
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs.

    Parameters
    ----------
    program : Program
        Its program.
    problem : ConvProblem
        The convolution.
    config : DepthwiseConfig
        The configuration.
    """
    loops = DepthwiseLoops(problem, config)
    return loops.weight.kernel(program, loops.tasks())


@dataclass(frozen=True)
class _Direction:
    """How pixels and the window move along one axis of the image."""

    window: int | None  # position among the axes of the window
    size: int
    stride: int
    dilation: int
    begin: int
    end: int


class DepthwiseLoops:
    """The loops of a depthwise convolution, from tasks inwards.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    config : DepthwiseConfig
        The configuration.
    """

    def __init__(self, problem: ConvProblem, config: DepthwiseConfig) -> None:
        self._problem, self._config = problem, config
        self.weight = PackedWeight(problem, config.lanes)
        self._epilogue = ConvEpilogue(problem, config.lanes)
        self._value = vector_math(problem.image.value)
        self._ranges = Ranges()
        self._rows, self._columns = self._direction(problem.y), self._direction(problem.x)

    def _direction(self, pixel: Axis) -> _Direction:
        """Describe an axis of pixels."""
        problem, image = self._problem, self._problem.image
        for axis, place in zip(image.axes, image.place, strict=True):
            atoms = image.sums.get(axis.var, {place: 1})
            if pixel.var not in atoms:
                continue
            end = constant(axis.extent) or 0
            begin, end = image.inside.get(axis.var, (0, end))
            for n, one in enumerate(problem.window):
                if one.var in atoms:
                    size = constant(one.extent) or 1
                    return _Direction(n, size, atoms[pixel.var], atoms[one.var], begin, end)
            return _Direction(None, 1, 1, 1, begin, end)
        return _Direction(None, 1, 1, 1, 0, 1)

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        size = constant(problem.k.extent) or 1
        vectors = -(-size // config.lanes)
        bands = ceildiv(problem.y.extent, config.band)
        extents = [*(a.extent for a in problem.batch), vectors, bands]
        full = problem.channels // config.lanes

        def task(number: ir.Expr) -> tirx.Stmt:
            names = [ir.Var(a.var.name, a.var.ty) for a in problem.batch]
            vector, band = (tirx.Var(n, "int64") for n in ("vector", "band"))
            given = [*names, vector, band]
            for var, extent in zip(given, extents, strict=True):
                self._ranges.bind(var, extent)
            place = dict(zip((a.var for a in problem.batch), names, strict=True))
            body = self._band(place, vector, band, config.lanes)
            if full < vectors:
                rest = self._band(place, index(full), band, problem.channels % config.lanes)
                body = tirx.IfThenElse(vector < full, body, rest) if full else rest
            for var, value in reversed(list(zip(given, coordinates(number, extents), strict=True))):
                body = sequence([tirx.Bind(var, value), body])
            return body

        work = [*extents, config.band, problem.x.extent, *(a.extent for a in problem.window)]
        total = constant(product([*work, config.lanes]))
        return tasks(product(extents), task, total is None or total >= PARALLEL_WORK)

    def _band(self, place: dict, vector: ir.Expr, band: ir.Expr, lanes: int) -> tirx.Stmt:
        """Write the rows of a task for a vector of channels, of which ``lanes`` exist."""
        problem, config = self._problem, self._config
        size = constant(problem.y.extent) or 1
        count: ir.Expr = index(config.band)
        if size % config.band:
            count = tirx.min(count, size - band * config.band)

        def row(n: ir.Expr) -> tirx.Stmt:
            y = tirx.Var("y", "int64")
            self._ranges.bind(y, size)
            here = {**place, problem.y.var: y}
            tiles = [self._tile(here, vector, *part, lanes) for part in self._parts()]
            return sequence([tirx.Bind(y, band * config.band + n), *tiles])

        return loop("row", count, row)

    def _parts(self) -> list[tuple[int, int, int]]:
        """List ranges of equal tiles: the first column, columns of a tile, number of tiles."""
        size, width = constant(self._problem.x.extent) or 1, self._config.width
        parts: list[tuple[int, int, int]] = []
        for start in range(0, size, width):
            columns = min(width, size - start)
            inside = all(self._is_inside(start + p, s) for p, s in self._taps(columns))
            joins = parts and inside and columns == width and parts[-1][2] > 0
            if joins and self._inner(parts[-1]):
                parts[-1] = (parts[-1][0], width, parts[-1][2] + 1)
            else:
                parts.append((start, columns, 1))
        return parts

    def _inner(self, part: tuple[int, int, int]) -> bool:
        start, columns, _ = part
        is_whole = columns == self._config.width
        return is_whole and all(self._is_inside(start + p, s) for p, s in self._taps(columns))

    def _taps(self, columns: int) -> list[tuple[int, int]]:
        return [(p, s) for s in range(self._columns.size) for p in range(columns)]

    def _is_inside(self, column: int, tap: int) -> bool:
        along = self._columns
        return along.begin <= column * along.stride + tap * along.dilation < along.end

    def _tile(
        self, place: dict, vector: ir.Expr, start: int, columns: int, count: int, lanes: int
    ) -> tirx.Stmt:
        """Write some equal tiles of a row."""
        problem, config, ranges = self._problem, self._config, self._ranges
        x = problem.x.var
        first_k = vector * config.lanes

        def tile(n: ir.Expr) -> tirx.Stmt:
            ranges.bind(n, count)
            acc = local("acc", [columns, config.lanes], problem.contraction.dtype)
            first = start + n * columns

            def taps(window: list[ir.Expr]) -> tirx.Stmt:
                stmts = []
                for pixel, tap in self._taps(columns):
                    # In a loop of several tiles all taps are inside.
                    if not self._is_inside(start + pixel, tap):
                        continue
                    where = [*window]
                    if self._columns.window is not None:
                        where[self._columns.window] = index(tap)
                    stmts.append(self._add(acc, pixel, vector, place, first + pixel, where, lanes))
                return sequence(stmts)

            def pixel_place(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
                axes = {a.var: index(0) for a in problem.contraction.stage.axes}
                return {**axes, **place, x: first + i}

            results, buffers = self._epilogue.tile(
                acc, columns, first_k, lanes < config.lanes, pixel_place, ranges
            )
            sums = self._windows(place, taps)
            parts = [clear(acc, problem.contraction.initial), sums, results]
            return block("tile", sequence(parts), [acc, *buffers])

        return loop("tile", count, tile)

    def _add(
        self,
        acc: ir.Var,
        pixel: int,
        vector: ir.Expr,
        place: dict,
        x: ir.Expr,
        window: list[ir.Expr],
        lanes: int,
    ) -> tirx.Stmt:
        """Add one tap to one pixel."""
        problem, image = self._problem, self._problem.image
        where = {**place, problem.x.var: x}
        where.update(zip((a.var for a in problem.window), window, strict=True))

        def store(lane: ir.Expr) -> tirx.Stmt:
            self._ranges.bind(lane, lanes)
            here = {**where, problem.k.var: vector * self._config.lanes + lane}
            there = [substitute(p, here) for p in image.place]
            value = substitute(
                self._value, dict(zip((a.var for a in image.axes), there, strict=True))
            )
            weight = self.weight.at(vector, index(0), window, index(0), lane)
            at = [index(pixel), lane]
            total = load(acc, at) + self._ranges.value(value) * weight
            return tirx.BufferStore(acc, total, at)

        return in_vectors(lanes, store)

    def _windows(self, place: dict, taps: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        """Write the loops over the window around the taps of a row of it."""
        problem, rows = self._problem, self._rows
        y = place[problem.y.var]

        def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
            if depth == len(problem.window):
                return self._guarded({**place}, done, taps(done))
            if depth == self._columns.window:
                return level(depth + 1, [*done, index(0)])
            size = constant(problem.window[depth].extent) or 1
            begin, count = index(0), index(size)
            if depth == rows.window:
                begin, count = self._inside_rows(y)

            def one(i: ir.Expr) -> tirx.Stmt:
                if isinstance(i, ir.Var):
                    self._ranges.bind(i, size)
                return level(depth + 1, [*done, begin + i])

            if constant(count) == 1:
                return level(depth + 1, [*done, begin])
            return loop(f"w{depth}", count, one)

        return level(0, [])

    def _inside_rows(self, y: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Give the first row of the window that is inside of the image, and how many are."""
        rows, ranges = self._rows, self._ranges
        first = y * rows.stride

        def from_row(row: int) -> ir.Expr:
            """Give the first row of the window at or after a row of the image."""
            distance = index(row + rows.dilation - 1) - first
            return tirx.floordiv(distance, index(rows.dilation))

        begin = tirx.max(from_row(rows.begin), index(0))
        end = tirx.min(from_row(rows.end), index(rows.size))
        if ranges.holds(from_row(rows.begin) <= 0):
            begin = index(0)
        if ranges.holds(from_row(rows.end) >= rows.size):
            end = index(rows.size)
        return begin, ranges.index(tirx.max(end - begin, index(0)))

    def _guarded(self, place: dict, window: list[ir.Expr], body: tirx.Stmt) -> tirx.Stmt:
        """Leave out windows that other axes of the image do not have, such as planes."""
        problem, image = self._problem, self._problem.image
        here = {**place, **{a.var: w for a, w in zip(problem.window, window, strict=True)}}
        conditions = []
        for axis, place_ in zip(image.axes, image.place, strict=True):
            atoms = image.sums.get(axis.var, {place_: 1})
            own = {problem.x.var, problem.y.var}
            is_windowed = {a.var for a in problem.window} & set(atoms)
            if axis.var not in image.inside or (own & set(atoms) and is_windowed):
                continue
            at = substitute(place_, {problem.x.var: index(0), **here})
            begin, end = image.inside[axis.var]
            conditions += [at >= index(begin), at < index(end)]
        for condition in conditions:
            if not self._ranges.holds(condition):
                body = tirx.IfThenElse(condition, body, None)
        return body
