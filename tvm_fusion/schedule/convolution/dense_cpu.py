"""Direct convolution on a CPU: register tiles of pixels by vectors of output channels.

  tasks in parallel: (image, band of rows of pixels, chunk of tiles of channels)
    copy lines of the image with their padding, unless they are read in place        (image_cpu)
    for tile of channels:                                     its weight stays in a near cache
      for tile of height * width pixels:
        acc[pixels][vectors] = 0                                                     registers
        for block of input channels, window, channel c of the block:
          acc += broadcast image[pixel + window, c] * weight[c, window, vectors]
        results of the tile                                                       (epilogue_cpu)

The weight is packed at compile time in the order of these loops (weight_cpu).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx import ForKind

from ...core.expressions import load
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
    tasks,
)
from ...program.program import Program
from ..cpu import PARALLEL_WORK
from ..register_tile import clear, each
from .config import ConvConfig
from .epilogue_cpu import ConvEpilogue
from .image_cpu import image_reader
from .problem import ConvProblem
from .simplify import Ranges
from .weight_cpu import PackedWeight

UNROLLED = 8  # trips of the innermost loop that are written out

Body = Callable[[ir.Expr], tirx.Stmt]


def dense_cpu(
    program: Program, problem: ConvProblem, config: ConvConfig
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs.

    Parameters
    ----------
    program : Program
        Its program.
    problem : ConvProblem
        The convolution.
    config : ConvConfig
        The configuration.
    """
    loops = DenseLoops(problem, config)
    return loops.weight.kernel(program, loops.tasks())


class DenseLoops:
    """The loops of a dense convolution, from tasks inwards.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    config : ConvConfig
        The configuration.
    """

    def __init__(self, problem: ConvProblem, config: ConvConfig) -> None:
        self._problem, self._config = problem, config
        self._nr = config.vectors * config.lanes
        self.weight = PackedWeight(problem, self._nr)
        self._image = image_reader(problem, config.band * config.height)
        self._epilogue = ConvEpilogue(problem, config.lanes)
        self._ranges = Ranges()
        self._sizes = {a.var: constant(a.extent) or 1 for a in (problem.y, problem.x, problem.k)}

    def tasks(self) -> tirx.Stmt:
        """Write the parallel loop."""
        problem, config = self._problem, self._config
        rows = config.band * config.height
        bands = ceildiv(problem.y.extent, rows)
        tiles = -(-self._sizes[problem.k.var] // self._nr)
        chunks = ceildiv(tiles, config.chunk)
        extents = [*(a.extent for a in problem.batch), chunks, bands]

        def task(number: ir.Expr) -> tirx.Stmt:
            *around, chunk, band = coordinates(number, extents)
            names = [ir.Var(a.var.name, a.var.ty) for a in problem.batch]
            chunk_var, band_var = (tirx.Var(n, "int64") for n in ("chunk", "band"))
            given = [*names, chunk_var, band_var]
            for var, extent in zip(given, extents, strict=True):
                self._ranges.bind(var, extent)
            place = dict(zip((a.var for a in problem.batch), names, strict=True))
            first_k: ir.Expr = chunk_var * (config.chunk * self._nr)
            place |= {problem.y.var: band_var * rows, problem.k.var: first_k}
            filled = self._image.fill(place, self._ranges)
            body = self._chunk(place, chunk_var, band_var, tiles)
            stmts = [body] if filled is None else [filled, body]
            stmt = block("task", sequence(stmts), self._image.buffers())
            for var, value in reversed(list(zip(given, [*around, chunk, band], strict=True))):
                stmt = _bound(var, value, stmt)
            return stmt

        work = constant(product([*extents, rows * config.chunk * self._nr, self._terms]))
        return tasks(product(extents), task, work is None or work >= PARALLEL_WORK)

    @property
    def _terms(self) -> ir.Expr:
        problem = self._problem
        around = problem.window if problem.c is None else (problem.c, *problem.window)
        return product([a.extent for a in around])

    def _loop(self, name: str, extent: ir.Expr | int, most: int, body: Body, kind=ForKind.SERIAL):
        def bound(i: ir.Expr) -> tirx.Stmt:
            self._ranges.bind(i, most)
            return body(i)

        return loop(name, extent, bound, kind)

    def _chunk(self, place: dict, chunk: ir.Expr, band: ir.Expr, tiles: int) -> tirx.Stmt:
        """Write the tiles of channels of a task; the last tile may be narrower."""
        problem, config = self._problem, self._config
        size = self._sizes[problem.k.var]
        full = min(problem.channels, size) // self._nr
        count: ir.Expr = index(config.chunk)
        if tiles % config.chunk:
            count = tirx.min(count, tiles - chunk * config.chunk)

        def tile(n: ir.Expr) -> tirx.Stmt:
            number = self._ranges.index(chunk * config.chunk + n)
            whole = lambda: self._band(place, number, band, config.vectors, False)  # noqa: E731
            if full == tiles:
                return whole()
            vectors = -(-(size - full * self._nr) // config.lanes)
            rest = self._band(place, index(full), band, vectors, True)
            return rest if not full else tirx.IfThenElse(number < full, whole(), rest)

        return self._loop("k_tile", count, config.chunk, tile)

    def _band(
        self, place: dict, number: ir.Expr, band: ir.Expr, vectors: int, is_last: bool
    ) -> tirx.Stmt:
        """Write the tiles of pixels of a task; the last ones may be lower and narrower."""
        problem, config = self._problem, self._config
        size = self._sizes[problem.y.var]
        full, rest = divmod(size, config.height)
        rows = full + bool(rest)
        count: ir.Expr = index(config.band)
        if rows % config.band:
            count = tirx.min(count, rows - band * config.band)

        def row(n: ir.Expr) -> tirx.Stmt:
            y = n * config.height
            if not rest:
                return self._row(place, number, y, config.height, vectors, is_last)
            last = self._row(place, number, y, rest, vectors, is_last)
            if not full:
                return last
            whole = self._row(place, number, y, config.height, vectors, is_last)
            return tirx.IfThenElse(band * config.band + n < full, whole, last)

        return self._loop("y_tile", count, config.band, row)

    def _row(
        self, place: dict, number: ir.Expr, y: ir.Expr, height: int, vectors: int, is_last: bool
    ) -> tirx.Stmt:
        problem, config = self._problem, self._config
        full, rest = divmod(self._sizes[problem.x.var], config.width)

        def tile(x: ir.Expr, width: int) -> tirx.Stmt:
            return self._tile(place, number, y, x, (height, width), vectors, is_last)

        stmts = []
        if full:
            stmts.append(
                self._loop("x_tile", full, full, lambda n: tile(n * config.width, config.width))
            )
        if rest:
            stmts.append(tile(index(full * config.width), rest))
        return sequence(stmts)

    def _tile(
        self,
        task: dict,
        number: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        shape: tuple[int, int],
        vectors: int,
        is_last: bool,
    ) -> tirx.Stmt:
        """Write one tile: clear, accumulate, results."""
        problem, ranges = self._problem, self._ranges
        height, width = shape
        pixels, nr = height * width, vectors * self._config.lanes
        acc = local("acc", [pixels, nr], problem.contraction.dtype)
        first_k = number * self._nr

        def pixel(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
            row, column = coordinates(i, [height, width])
            return {problem.y.var: y + row, problem.x.var: x + column}

        def accumulate(block_c: ir.Expr, window: list[ir.Expr], inner: ir.Expr) -> tirx.Stmt:
            def add(i: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
                ranges.bind(i, pixels)
                where = {**task, **pixel(i), problem.k.var: first_k}
                where.update(zip((a.var for a in problem.window), window, strict=True))
                if problem.c is not None:
                    where[problem.c.var] = block_c * problem.block + inner
                image = self._image.at(task, where, ranges)
                weight = self.weight.at(number, block_c, window, inner, lane)
                return tirx.BufferStore(acc, load(acc, [i, lane]) + image * weight, [i, lane])

            return each(acc, add)

        results, buffers = self._epilogue.tile(
            acc,
            pixels,
            first_k,
            is_last,
            lambda i: {**self._pixel_place(task, pixel(i))},
            ranges,
        )
        parts = [clear(acc, problem.contraction.initial), *self._sums(accumulate), results]
        return block("tile", sequence(parts), [acc, *buffers])

    def _pixel_place(self, task: dict, pixel: dict) -> dict[ir.Var, ir.Expr]:
        """Give the axes of the results at a pixel, whose y is relative to the task."""
        y = self._problem.y.var
        axes = {a.var: index(0) for a in self._problem.contraction.stage.axes}
        return {**axes, **task, **pixel, y: task[y] + pixel[y]}

    def _sums(self, accumulate: Callable[..., tirx.Stmt]) -> list[tirx.Stmt]:
        """Write the loops over input channels and the window around a step."""
        problem = self._problem
        channels = 1 if problem.c is None else constant(problem.c.extent) or 1
        blocks, rest = divmod(channels, problem.block)
        windows = [constant(a.extent) or 1 for a in problem.window]

        def terms(block_c: ir.Expr, inner: int) -> tirx.Stmt:
            extents = [*windows, inner]
            joins = inner == problem.block and self._is_contiguous()
            if joins:
                extents[-2:] = [extents[-2] * inner]
            wide = [n for n, size in enumerate(extents) if size > 1]
            innermost = wide[-1] if wide else None

            def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
                if depth == len(extents):
                    *window, c = done
                    if joins:
                        column, c = coordinates(c, [windows[-1], inner])
                        window.append(column)
                    return accumulate(block_c, window, c)
                size = extents[depth]
                is_short = depth == innermost and size <= UNROLLED
                kind = ForKind.UNROLLED if is_short else ForKind.SERIAL
                body = lambda i: level(depth + 1, [*done, i])  # noqa: E731
                return self._loop(f"r{depth}", size, size, body, kind)

            return level(0, [])

        stmts = []
        if blocks:
            stmts.append(self._loop("block", blocks, blocks, lambda n: terms(n, problem.block)))
        if rest:
            stmts.append(terms(index(blocks), rest))
        return stmts

    def _is_contiguous(self) -> bool:
        """Whether a block of channels and the next column of the window are adjacent in memory.

        One loop over both is long: LLVM writes out the trips of short ones on AArch64, loads what
        they share once, and then spills accumulators.
        """
        problem = self._problem
        if problem.block == 1 or not problem.window:
            return False
        last = problem.window[-1].var
        return any(
            atoms.get(last) == 1 and problem.x.var in atoms for atoms in problem.image.sums.values()
        )


def _bound(var: ir.Var, value: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Bind a coordinate of a task, so that indices see a variable with a range."""
    return sequence([tirx.Bind(var, value), body])
