"""Depthwise convolution on a CPU: vectors of channels, tiles of pixels of one row.

  tasks in parallel: (image, vector of channels, band of rows of pixels, part of one row)
    for row of pixels:  for tile of width pixels:
      acc[width] = 0                                                             registers
      for row of the window that is inside of the image:
        for column of the window, pixel:                                         unrolled
          acc[pixel] += image[pixel + window] * weight[window]
      results of the tile                                                      (dense/epilogue)

Nothing is copied: taps in the padding are left out, of rows by the bounds of a loop, of columns at
compile time, for which the tiles at the borders have code of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import block, ceildiv, constant, index, local, loop, sequence, substitute
from ....program.program import Program
from ....program.stage import Axis
from ...contraction.problem.functions.packing import packed_kernel
from ...cpu.register_tile import clear, in_vectors
from ...index.index_ranges import Ranges
from ...math.vector_math import vector_math
from ..dense.epilogue import ConvEpilogue
from ..dense.weight import PackedWeight
from ..problem.problem import ConvProblem
from ..problem.task_loop import fresh, task_loop
from .cpu_config import DepthwiseConfig


def depthwise_cpu(
    program: Program, problem: ConvProblem, config: DepthwiseConfig
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    loops = DepthwiseLoops(problem, config)
    return packed_kernel(program, loops.tasks(), [loops.weight])


class DepthwiseLoops:
    """The loops of a depthwise convolution, from tasks inwards."""

    def __init__(self, problem: ConvProblem, config: DepthwiseConfig) -> None:
        self._problem, self._config = problem, config
        self.weight = PackedWeight(problem, config.lanes, is_small=True)
        self._epilogue = ConvEpilogue(problem, config.lanes)
        self._value = vector_math(problem.image.value)
        self._ranges = Ranges()
        self._window = DepthwiseWindow(problem, self._ranges)

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        vectors = -(-(constant(problem.k.extent) or 1) // config.lanes)
        full = problem.channels // config.lanes
        batch = fresh(problem.batch)
        vector = Axis(tirx.Var("vector", "int64"), index(vectors))
        band = Axis(tirx.Var("band", "int64"), ceildiv(problem.y.extent, config.band))
        x = constant(problem.x.extent) or 1
        columns = min(x, config.part * config.width) if config.part else x
        part = Axis(tirx.Var("part", "int64"), index(-(-x // columns)))
        is_cut = columns < x
        self._part = part.var if is_cut else None

        def task() -> tirx.Stmt:
            place = {a.var: b.var for a, b in zip(problem.batch, batch, strict=True)}
            body: tirx.Stmt | None = None
            for n in reversed(range(full, vectors)):
                # Blocked results may have vectors beyond the channels, which are zero.
                lanes = max(0, problem.channels - n * config.lanes)
                rest = self._band(place, index(n), band.var, lanes)
                body = rest if body is None else tirx.IfThenElse(vector.var < n + 1, rest, body)
            if not full:
                return body
            whole = self._band(place, vector.var, band.var, config.lanes)
            return whole if body is None else tirx.IfThenElse(vector.var < full, whole, body)

        products = [config.band, columns, *(a.extent for a in problem.window)]
        axes = [*batch, vector, band, *([part] if is_cut else [])]
        return task_loop(axes, [*products, config.lanes], self._ranges, task)

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
            return sequence([tirx.Bind(y, band * config.band + n), *self._row(here, vector, lanes)])

        return loop("row", count, row)

    def _row(self, place: dict, vector: ir.Expr, lanes: int) -> list[tirx.Stmt]:
        """Write the tiles of a row, or of the task's part of it."""
        if self._part is None:
            return [self._tile(place, vector, *one, lanes) for one in self._parts()]
        stmts, done, size = [], 0, self._config.part
        for start, columns, count in self._parts():
            first = self._part * size - done
            begin, end = (
                self._ranges.index(tirx.min(tirx.max(n, index(0)), index(count)))
                for n in (first, first + size)
            )
            own = begin, end - begin
            stmts.append(self._tile(place, vector, start, columns, count, lanes, own))
            done += count
        return stmts

    def _parts(self) -> list[tuple[int, int, int]]:
        """List ranges of equal tiles: the first column, columns of a tile, number of tiles."""
        size, width = constant(self._problem.x.extent) or 1, self._config.width
        parts: list[tuple[int, int, int]] = []
        for start in range(0, size, width):
            columns = min(width, size - start)
            inside = all(
                self._window.columns.is_inside(start + p, s) for p, s in self._taps(columns)
            )
            joins = parts and inside and columns == width and parts[-1][2] > 0
            if joins and self._inner(parts[-1]):
                parts[-1] = (parts[-1][0], width, parts[-1][2] + 1)
            else:
                parts.append((start, columns, 1))
        return parts

    def _inner(self, part: tuple[int, int, int]) -> bool:
        start, columns, _ = part
        is_whole = columns == self._config.width
        return is_whole and all(
            self._window.columns.is_inside(start + p, s) for p, s in self._taps(columns)
        )

    def _taps(self, columns: int) -> list[tuple[int, int]]:
        return [(p, s) for s in range(self._window.columns.size) for p in range(columns)]

    def _tile(
        self,
        place: dict,
        vector: ir.Expr,
        start: int,
        columns: int,
        count: int,
        lanes: int,
        own: tuple[ir.Expr, ir.Expr] | None = None,
    ) -> tirx.Stmt:
        """Write some equal tiles of a row: all, or the task's, from one of them so many."""
        problem, config, ranges = self._problem, self._config, self._ranges
        x = problem.x.var
        first_k = vector * config.lanes

        def tile(n: ir.Expr) -> tirx.Stmt:
            if isinstance(n, ir.Var):
                ranges.bind(n, count)
            acc = local("acc", [columns, config.lanes], problem.contraction.dtype)
            first = start + n * columns

            def taps(window: list[ir.Expr]) -> tirx.Stmt:
                stmts = []
                for pixel, tap in self._taps(columns):
                    # In a loop of several tiles all taps are inside.
                    if not self._window.columns.is_inside(start + pixel, tap):
                        continue
                    where = [*window]
                    if self._window.columns.window is not None:
                        where[self._window.columns.window] = index(tap)
                    stmts.append(self._add(acc, pixel, vector, place, first + pixel, where, lanes))
                return sequence(stmts)

            def pixel_place(_row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
                axes = {a.var: index(0) for a in problem.contraction.stage.axes}
                return {**axes, **place, x: first + column}

            is_last = lanes < config.lanes
            results, buffers = self._epilogue.tile(
                acc, (1, columns), first_k, is_last, pixel_place, ranges
            )
            sums = [self._window.loops(place, taps)] if lanes else []
            parts = [clear(acc, problem.contraction.initial), *sums, results]
            return block("tile", sequence(parts), [acc, *buffers])

        if own is None:
            return loop("tile", count, tile)
        begin, trips = own

        def own_tile(n: ir.Expr) -> tirx.Stmt:
            if count == 1:
                return tile(index(0))
            number = tirx.Var("number", "int64")
            return sequence([tirx.Bind(number, begin + n), tile(number)])

        return loop("tile", trips, own_tile)

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


# The window of a depthwise convolution: rows that are inside of the image, taps of a row.
#
# for row of the window that is inside of the image:         by the bounds of the loop
#     taps of the row                                        unrolled, those in the padding left out
@dataclass(frozen=True)
class Direction:
    """How pixels and the window move along one axis of the image."""

    window: int | None  # position among the axes of the window
    size: int
    stride: int
    dilation: int
    begin: int
    end: int

    def is_inside(self, pixel: int, tap: int) -> bool:
        """Whether a tap of the window at a pixel is inside of the image."""
        return self.begin <= pixel * self.stride + tap * self.dilation < self.end

    @classmethod
    def of(cls, problem: ConvProblem, pixel: Axis) -> Direction:
        """Describe an axis of pixels."""
        image = problem.image
        for axis, place in zip(image.axes, image.place, strict=True):
            atoms = image.sums.get(axis.var, {place: 1})
            if pixel.var not in atoms:
                continue
            end = constant(axis.extent) or 0
            begin, end = image.inside.get(axis.var, (0, end))
            for n, one in enumerate(problem.window):
                if one.var in atoms:
                    size = constant(one.extent) or 1
                    return cls(n, size, atoms[pixel.var], atoms[one.var], begin, end)
            return cls(None, 1, 1, 1, begin, end)
        return cls(None, 1, 1, 1, 0, 1)


class DepthwiseWindow:
    """Writes the loops over a window."""

    def __init__(self, problem: ConvProblem, ranges: Ranges) -> None:
        self._problem, self._ranges = problem, ranges
        self.rows = Direction.of(problem, problem.y)
        self.columns = Direction.of(problem, problem.x)

    def loops(self, place: dict, taps: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        """Write the loops around the taps of a row.

        Parameters
        ----------
        place
            Batch axes and the row of pixels, by variable.
        taps
            Writes the taps of a row at a place in the window, whose column is 0.
        """
        problem, rows = self._problem, self.rows
        y = place[problem.y.var]

        def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
            if depth == len(problem.window):
                return self._guarded({**place}, done, taps(done))
            if depth == self.columns.window:
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
        """Return the first row of the window that is inside of the image, and how many are."""
        rows, ranges = self.rows, self._ranges
        first = y * rows.stride

        def from_row(row: int) -> ir.Expr:
            """Return the first row of the window at or after a row of the image."""
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
