"""A register tile of a dense convolution: pixels by vectors of output channels.

  prefetch operands of the results                                where they are far (prefetch_cpu)
  acc[pixels][vectors] = 0                                                         registers
  for block of the input channels of the tile:
    prefetch image[pixels of the next tile, block], a share of the weight          where it is far
    for window, channel c of the block:
      prefetch weight of the next tile of channels[c, window, a vector]            where it is far
      acc += broadcast image[pixel + window, c] * weight[c, window, vectors]
  results of the tile                                                                  (epilogue)

Of a grouped convolution, the channels are a band; where it does not begin and end with a block, the
loop over its channels is the outer one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from tvm import ir, tirx
from tvm.tirx import ForKind

from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, coordinates, index, local, loop, sequence, unrolled
from ...contraction.problem.sum_of_products import Result
from ...cpu.register_tile import WIDEST, clear, each, with_prefetch
from ...index.index_ranges import Ranges
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from .config import ConvConfig
from .epilogue import AtPixel, ConvEpilogue
from .prefetch_cpu import TilePrefetch
from .row_stores import RowStores
from .weight import PackedWeight

UNROLLED = 8  # trips of the innermost loop that are written out
# Lanes of a register from which on an expression spans several registers. LLVM counts it as one
# instruction when it unrolls loops: of four lanes it wrote out 36 steps of a 3 x 3 window, and 598
# of their 1,807 instructions loaded and stored what did not fit the registers of a Cortex-A76.
WIDE = 8

Body = Callable[[ir.Expr], tirx.Stmt]
PrefetchCallback = Callable[[ir.Expr, ir.Expr], list[tirx.Stmt]]  # blocks of image and weight


class PixelTile(ABC):
    """A tile of pixels by output channels."""

    def __init__(self, problem: ConvProblem, config: ConvConfig, ranges: Ranges) -> None:
        self._problem, self._config, self._ranges = problem, config, ranges
        self._nr = config.vectors * config.lanes
        self._epilogue = ConvEpilogue(problem, config.lanes)

    @property
    def task_buffers(self) -> list[ir.Var]:
        """Buffers of a task."""
        return []

    def begin_task(self) -> list[tirx.Stmt]:
        """Prepare the tiles of a task, behind its image."""
        return []

    def end_task(self) -> list[tirx.Stmt]:
        """Leave nothing behind."""
        return []

    def loop(
        self, name: str, extent: ir.Expr | int, most: int, body: Body, kind=ForKind.SERIAL
    ) -> tirx.Stmt:
        """Write a loop of at most so many trips, whose variable has a range."""

        def bound(i: ir.Expr) -> tirx.Stmt:
            self._ranges.bind(i, most)
            return body(i)

        return loop(name, extent, bound, kind)

    @abstractmethod
    def write(
        self,
        task: dict,
        number: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        shape: tuple[int, int],
        vectors: int,
        is_last: bool,
        tile_index: ir.Expr,
        row_tiles: int,
        rows: RowStores,
    ) -> tirx.Stmt:
        """Write one tile: clear, accumulate, results.

        Parameters
        ----------
        task
            Batch axes, the first output channel, row and column of pixels, by variable.
        number
            The tile of output channels.
        y, x
            Its first pixel, relative to the task's.
        is_last
            Whether channels may end before it does.
        tile_index
            How many tiles of pixels the task has done with these channels.
        row_tiles
            Tiles of a row of pixels.
        rows
            Of the row of tiles.
        """

    def store_rows(
        self,
        rows: RowStores,
        task: dict,
        number: ir.Expr,
        y: ir.Expr,
        vectors: int,
        is_last: bool,
    ) -> tirx.Stmt:
        """Store what a row of tiles has gathered; parameters are those of :meth:`write`."""
        problem, first_k = self._problem, number * self._nr

        def channels(result: Result) -> int:
            width = vectors * self._config.lanes
            if not is_last:
                return width
            most = constant(problem.k.extent) if result.condition is None else problem.channels
            return max(0, min(width, (most or 0) - int(first_k)))

        def place(row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
            at = {problem.y.var: y + row, problem.x.var: column}
            return self._pixel_place(task, at)

        return rows.store(channels, first_k, place, self._ranges)

    def _pixel_place(self, task: dict, pixel: dict) -> dict[ir.Var, ir.Expr]:
        """Return the axes of the results at a pixel, which is relative to the task's first."""
        moved = {v: task[v] + pixel[v] for v in (self._problem.y.var, self._problem.x.var)}
        axes = {a.var: index(0) for a in self._problem.contraction.stage.axes}
        return {**axes, **task, **moved}

    def _place(self, task: dict, y: ir.Expr, x: ir.Expr) -> AtPixel:
        """Give all axes but the channels at a pixel of the tile that begins at a pixel."""

        def place(row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
            at = {self._problem.y.var: y + row, self._problem.x.var: x + column}
            return self._pixel_place(task, at)

        return place


class DenseTile(PixelTile):
    """Writes tiles of vector registers.

    Parameters
    ----------
    weight
        For tiles of its width.
    """

    def __init__(
        self,
        problem: ConvProblem,
        config: ConvConfig,
        image: ImageReader,
        weight: PackedWeight,
        ranges: Ranges,
    ) -> None:
        super().__init__(problem, config, ranges)
        self._image, self._weight = image, weight
        self._prefetch = TilePrefetch(problem, config, image, weight, ranges)

    def write(
        self,
        task: dict,
        number: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        shape: tuple[int, int],
        vectors: int,
        is_last: bool,
        tile_index: ir.Expr,
        row_tiles: int,
        rows: RowStores,
    ) -> tirx.Stmt:
        """Write one tile: clear, accumulate, results."""
        problem, ranges, words = self._problem, self._ranges, self._problem.words
        height, width = shape
        pixels, nr = height * width, vectors * self._config.lanes
        acc = local("acc", [pixels, nr], problem.contraction.dtype)
        first_k = number * self._nr

        def pixel(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
            row, column = coordinates(i, [height, width])
            return {problem.y.var: y + row, problem.x.var: x + column}

        def accumulate(
            channel: ir.Expr, block_c: ir.Expr, window: list[ir.Expr], inner: ir.Expr
        ) -> tirx.Stmt:
            def add(i: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
                ranges.bind(i, pixels)
                where = {**task, **pixel(i), problem.k.var: first_k}
                where.update(zip((a.var for a in problem.window), window, strict=True))
                if problem.c is not None:
                    where[problem.c.var] = channel
                image = self._image.at(task, where, ranges)
                weight = self._weight.at(number, block_c, window, inner, lane)
                sums = load(acc, [i, lane])
                if words is not None:
                    return tirx.BufferStore(acc, words.dot.add(sums, image, weight), [i, lane])
                return tirx.BufferStore(acc, sums + image * weight, [i, lane])

            def add_words(i: ir.Expr) -> tirx.Stmt:
                starts = range(0, nr, self._config.lanes)
                vector = partial(tirx.Ramp, stride=index(1), lanes=self._config.lanes)
                return sequence([add(i, vector(index(start))) for start in starts])

            prefetch = self._prefetch.weight(number, tile_index, block_c, window, inner)
            if words is not None:
                return with_prefetch(prefetch, unrolled("i", pixels, add_words))
            lanes = self._config.lanes
            widest = WIDEST if lanes >= WIDE else lanes
            return with_prefetch(prefetch, each(acc, add, widest))

        place = self._place(task, y, x)
        results, buffers = self._epilogue.tile(acc, shape, first_k, is_last, place, ranges, rows)
        operands = self._prefetch.operands(shape, nr, first_k, place)
        tiles = self._config.band * row_tiles

        def prefetch(block_c: ir.Expr, packed: ir.Expr) -> list[tirx.Stmt]:
            image = self._prefetch.image(task, tile_index, row_tiles, block_c)
            return [*image, *self._prefetch.weight_lines(number, tile_index, tiles, packed)]

        is_beyond = is_last and int(first_k) >= problem.channels  # of a concatenation
        sums = [] if is_beyond else self._sums(number, accumulate, prefetch)
        parts = [*operands, clear(acc, problem.contraction.initial), *sums, results]
        return block("tile", sequence(parts), [acc, *buffers])

    def _sums(
        self, number: ir.Expr, accumulate: Callable[..., tirx.Stmt], prefetch: PrefetchCallback
    ) -> list[tirx.Stmt]:
        """Write the loops over input channels and the window around a step."""
        problem, band, ranges = self._problem, self._weight.band, self._ranges
        if not band.is_aligned:
            return self._unaligned_sums(number, accumulate)
        size = problem.depth
        blocks, rest = divmod(band.most, size)
        count: ir.Expr | int = blocks
        if band.size is None:
            extent = band.end(number) - band.begin(number)
            count = ranges.index(tirx.floordiv(extent, index(size)))
        first: ir.Expr = index(0)
        if not band.is_dense:
            first = ranges.index(tirx.floordiv(band.begin(number), index(size)))

        def whole(n: ir.Expr) -> tirx.Stmt:
            terms = self._terms(first + n, n, size, accumulate)
            return sequence([*prefetch(first + n, n), terms])

        stmts = []
        if blocks:
            stmts.append(self.loop("block", count, blocks, whole))
        if rest:
            stmts.append(self._terms(index(blocks), index(blocks), rest, accumulate))
        return stmts

    def _unaligned_sums(
        self, number: ir.Expr, accumulate: Callable[..., tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Write loops over the channels of a band one by one."""
        problem, band, ranges = self._problem, self._weight.band, self._ranges
        begin, channel = (tirx.Var(n, "int64") for n in ("begin", "channel"))
        total = 1 if problem.c is None else constant(problem.c.extent) or 1
        for var in (begin, channel):
            ranges.bind(var, total)
        count: ir.Expr | int | None = band.size
        if count is None:
            count = ranges.index(band.end(number)) - begin

        def one(n: ir.Expr) -> tirx.Stmt:
            windows = [constant(a.extent) or 1 for a in problem.window]
            step = lambda window: accumulate(channel, n, window, index(0))  # noqa: E731
            return sequence([tirx.Bind(channel, begin + n), self._window(windows, step)])

        body = self.loop("c", count, band.most, one)
        return [sequence([tirx.Bind(begin, ranges.index(band.begin(number))), body])]

    def _terms(
        self, block_c: ir.Expr, packed: ir.Expr, inner: int, accumulate: Callable[..., tirx.Stmt]
    ) -> tirx.Stmt:
        """Write the loops over the window and the channels of a block.

        Parameters
        ----------
        block_c
            The block of the image.
        packed
            The block of the packed weight.
        """
        problem = self._problem
        extents = [*(constant(a.extent) or 1 for a in problem.window), inner]
        columns = extents[-2] if len(extents) > 1 else 1
        joins = inner == problem.block and self._is_contiguous()
        if joins:
            extents[-2:] = [columns * inner]

        def step(done: list[ir.Expr]) -> tirx.Stmt:
            *window, c = done
            if joins:
                column, c = coordinates(c, [columns, inner])
                window.append(column)
            return accumulate(block_c * problem.depth + c, packed, window, c)

        return self._window(extents, step)

    def _window(self, extents: list[int], body: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        """Write nested loops, of which a short innermost one is unrolled."""
        wide = [n for n, size in enumerate(extents) if size > 1]
        innermost = wide[-1] if wide else None

        def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
            if depth == len(extents):
                return body(done)
            size = extents[depth]
            is_short = depth == innermost and size <= UNROLLED
            kind = ForKind.UNROLLED if is_short else ForKind.SERIAL
            return self.loop(f"r{depth}", size, size, lambda i: level(depth + 1, [*done, i]), kind)

        return level(0, [])

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
