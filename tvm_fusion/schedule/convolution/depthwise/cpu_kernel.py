"""Depthwise convolution on a CPU: vectors of channels, tiles of pixels of one row.

  tasks in parallel: (image, vector of channels, band of rows of pixels)
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

from tvm import ir, tirx

from ....core.expressions import load
from ....core.loops import block, ceildiv, constant, index, local, loop, sequence, substitute
from ....program.program import Program
from ....program.stage import Axis
from ...cpu.register_tile import clear, in_vectors
from ...index.index_ranges import Ranges
from ...math.vector_math import vector_math
from ..dense.epilogue import ConvEpilogue
from ..dense.weight import PackedWeight
from ..problem.problem import ConvProblem
from ..problem.task_loop import fresh, task_loop
from .cpu_config import DepthwiseConfig
from .window import DepthwiseWindow


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
        self._window = DepthwiseWindow(problem, self._ranges)

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        vectors = -(-(constant(problem.k.extent) or 1) // config.lanes)
        full = problem.channels // config.lanes
        batch = fresh(problem.batch)
        vector = Axis(tirx.Var("vector", "int64"), index(vectors))
        band = Axis(tirx.Var("band", "int64"), ceildiv(problem.y.extent, config.band))

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

        products = [config.band, problem.x.extent, *(a.extent for a in problem.window)]
        axes = [*batch, vector, band]
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
            tiles = [self._tile(here, vector, *part, lanes) for part in self._parts()]
            return sequence([tirx.Bind(y, band * config.band + n), *tiles])

        return loop("row", count, row)

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
