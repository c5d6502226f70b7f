"""The kernel of a convolution on tile registers: the loops of a dense one around other tiles."""

from collections.abc import Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    index,
    local,
    prefetch,
    sequence,
    substitute,
)
from ....program.program import Program
from ....program.stage import Axis
from ...contraction.problem.functions.packing import packed_kernel, packing_function
from ...cpu.tile_block import WORD_BYTES, TileBlock
from ...index.index_ranges import Ranges
from ...instructions.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TileAddress,
    configure,
    keep_extents,
    release,
    tile_config,
)
from ..dense.image_copy import CopiedImage, DirectImage
from ..dense.kernel import DenseLoops
from ..dense.prefetch import Prefetch
from ..dense.prefetch_cpu import operands_of
from ..dense.row_stores import RowStores
from ..dense.tile import PixelTile
from ..dense.weight import KernelWeight
from ..problem.groups import Band
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from .config import TileConvConfig
from .problem import TileConv, last_index

# The weight of a convolution in the order of tiles, packed at compile time.
#
# for tile of channels, window around runs, step of a run, register, word, column, lane:
#     packed[tile, ..., step, register, word, column, lane] = W[k, c, window]
#
# A register is 16 words of K, each of 16 columns: a kilobyte that is contiguous.


class TileWeight(KernelWeight):
    """``[k tile][window][step][register][word of K][column][k of the word]``, padded with zeros.

    Parameters
    ----------
    registers
        Of a tile of output channels.
    """

    def __init__(self, conv: TileConv, registers: int) -> None:
        problem, width = conv.single, registers * TILE_ROWS
        self._conv, self._width, self._registers = conv, width, registers
        self.band = Band(problem, width)
        shape = [
            ceildiv(problem.k.extent, width),
            *(index(a.extent) for a in conv.outer),
            *map(index, (conv.steps, registers, conv.words, TILE_ROWS, conv.group)),
        ]
        dtype = str(problem.weight.ty.dtype)
        super().__init__(problem, declare(shape, dtype, f"{problem.source.name}_packed"))

    def at(self, tile: ir.Expr, window: Sequence[ir.Expr], step: ir.Expr, register: int) -> ir.Expr:
        """Read the first element of a register."""
        zero = index(0)
        return load(self.buffer, [tile, *window, step, index(register), zero, zero, zero])

    def prefetch(
        self,
        tile: ir.Expr,
        window: Sequence[ir.Expr],
        step: ir.Expr,
        number: ir.Expr,
        count: int,
    ) -> tirx.Stmt:
        """Prefetch what the next tile of channels reads in a step, a part of it in each tile.

        Parameters
        ----------
        number
            Of the tile of pixels.
        count
            Tiles of pixels that read the same weight.
        """
        conv = self._conv
        lines, line = self._registers * conv.words, TILE_ROWS * conv.group
        each = -(-lines // count)
        first = tirx.floormod(number, index(-(-lines // each))) * each
        start = self.at(tile + 1, window, step, 0)
        *outer, last = start.indices
        elements = [[*outer, last + (first + n) * line] for n in range(each)]
        return sequence([prefetch(load(self.buffer, one), level=2) for one in elements])

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""
        conv, problem = self._conv, self._conv.single
        names = [
            "tile",
            *(a.var.name for a in conv.outer),
            "step",
            "register",
            "word",
            "column",
            "lane",
        ]
        axes = [
            Axis(tirx.Var(name, "int64"), extent)
            for name, extent in zip(names, self.buffer.ty.shape, strict=True)
        ]
        tile, *window, step, register, word, column, lane = (a.var for a in axes)
        k = tile * self._width + register * TILE_ROWS + column
        element = (step * conv.words + word) * conv.group + lane
        place = dict(zip((a.var for a in conv.outer), window, strict=True))
        channel = element
        if conv.column is not None:
            place[conv.column.var] = tirx.floordiv(element, index(problem.block))
            channel = tirx.floormod(element, index(problem.block))
        c = self.band.begin(tile) + channel
        place |= {problem.k.var: k, conv.c.var: c}
        inside = [c < self.band.end(tile)]
        if problem.channels % self._width or constant(problem.k.extent) != problem.channels:
            inside.append(k < index(problem.channels))
        value = substitute(problem.weight, place)
        for condition in inside:
            value = tirx.if_then_else(condition, value, tirx.const(0, str(value.ty.dtype)))
        return packing_function(problem.source, self.buffer, axes, value)


# A tile of pixels by output channels in tile registers, and its results.
#
# C = 0
# for window around runs, step of a run:
#   load A[pixels of each row of tiles];  for column of tiles: load B, C += A * B
# store C to memory;  results                                              (dense/epilogue)


class RegisterTiles(PixelTile):
    """Writes tiles.

    Parameters
    ----------
    problem
        As results see it.
    image
        Of the single elements of ``conv``.
    """

    def __init__(
        self,
        problem: ConvProblem,
        conv: TileConv,
        config: TileConvConfig,
        image: ImageReader,
        weight: TileWeight,
        ranges: Ranges,
    ) -> None:
        super().__init__(problem, config, ranges)
        self._conv, self._image, self._weight = conv, image, weight
        self._heights = config.heights
        self._tiles = TileBlock(conv.row, config.heights, config.vectors, conv.words)
        self._memory = tile_config()

    @property
    def task_buffers(self) -> list[ir.Var]:
        """The memory of the tiles' shapes."""
        return [self._memory]

    def begin_task(self) -> list[tirx.Stmt]:
        """Shape the tiles, and keep the lines as they are declared."""
        lines = [keep_extents(buffer) for buffer in self._image.buffers()]
        return [*lines, configure(self._memory, self._tiles.shapes())]

    def end_task(self) -> list[tirx.Stmt]:
        """Give up the tiles."""
        return [release()]

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
        """Write one tile: clear, multiply, store, results."""
        problem, config = self._problem, self._config
        height, width = shape
        first_k = number * self._nr
        full = TileConvConfig(config.lanes, height, width, vectors)
        heights = full.heights
        is_shaped = heights == self._heights[: len(heights)]
        tiles = self._tiles
        if not is_shaped:
            tiles = TileBlock(tiles.row, heights, config.vectors, tiles.words)
        tiles = tiles.part(len(heights), vectors)
        columns = vectors * TILE_ROWS
        acc = local("acc", [height * width, columns], problem.contraction.dtype)

        def first_row(i: int) -> int:
            return i * width if height > 1 else i * TILE_ROWS

        def c_tile(i: int, j: int) -> TileAddress:
            element = load(acc, [index(first_row(i)), index(j * TILE_ROWS)])
            return TileAddress(element, columns * WORD_BYTES)

        count = config.band * row_tiles
        products = self._products(tiles, task, number, (y, x), height, (tile_index, count))
        place = self._place(task, y, x)
        results, buffers = self._epilogue.tile(
            acc, shape, first_k, is_last, place, self._ranges, rows, in_memory=True
        )
        is_beyond = is_last and int(first_k) >= problem.channels  # of a concatenation
        # Pixels of channels-last results are far apart: hardware prefetches nothing.
        ahead = operands_of(problem, config.lanes, shape, columns, first_k, place, self._ranges)
        sums = [*ahead, tiles.clear(), *([] if is_beyond else [products]), tiles.store(c_tile)]
        if not is_shaped:
            before, after = (configure(self._memory, t.shapes()) for t in (tiles, self._tiles))
            sums = [before, *sums, after]
        return block("tile", sequence([keep_extents(acc), *sums, results]), [acc, *buffers])

    def _products(
        self,
        tiles: TileBlock,
        task: dict,
        number: ir.Expr,
        pixel: tuple[ir.Expr, ir.Expr],
        height: int,
        place: tuple[ir.Expr, int],
    ) -> tirx.Stmt:
        """Multiply; ``place`` is the number of the tile of those that read the same weight."""
        conv, problem, ranges = self._conv, self._conv.single, self._ranges
        chunk = conv.words * conv.group
        begin = self._weight.band.begin(number)

        def run(window: list[ir.Expr]) -> tirx.Stmt:
            around = dict(zip((a.var for a in conv.outer), window, strict=True))
            if conv.column is not None:
                around[conv.column.var] = index(0)

            def a_tile(i: int, k: ir.Expr) -> TileAddress:
                row, column = (i, 0) if height > 1 else (0, i * TILE_ROWS)
                at = {problem.y.var: pixel[0] + row, problem.x.var: pixel[1] + column}
                where = {**task, **at, **around, problem.k.var: index(0)}
                where[conv.c.var] = begin
                element = self._image.at(task, where, ranges)
                first = last_index(element, k * chunk)
                return TileAddress(load(element.source, first), conv.pixel * conv.itemsize)

            def b_tile(j: int, k: ir.Expr) -> TileAddress:
                return TileAddress(self._weight.at(number, window, k, j), TILE_ROW_BYTES)

            def prefetched(k: ir.Expr) -> tirx.Stmt:
                return self._weight.prefetch(number, window, k, *place)

            is_far = bool(self._config.prefetches & Prefetch.WEIGHT)
            return tiles.accumulate(conv.steps, a_tile, b_tile, prefetched if is_far else None)

        def level(done: list[ir.Expr]) -> tirx.Stmt:
            if len(done) == len(conv.outer):
                return run(done)
            axis = conv.outer[len(done)]
            size = constant(axis.extent) or 1
            return self.loop(f"r{len(done)}", size, size, lambda i: level([*done, i]))

        return level([])


def tile_conv_cpu(
    program: Program, problem: ConvProblem, config: TileConvConfig, conv: TileConv
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    ranges, width = Ranges(), config.vectors * config.lanes
    weight = TileWeight(conv, config.vectors)
    pixels = config.band * config.height, config.columns(constant(problem.x.extent) or 1)
    image: ImageReader = DirectImage(conv.single)
    if not conv.in_place:
        band = Band(conv.single, config.chunk * width)
        image = CopiedImage(conv.single, pixels, band, conv.single.block)
    tile = RegisterTiles(problem, conv, config, image, weight, ranges)
    loops = DenseLoops(problem, config, image, weight, tile, ranges)
    return packed_kernel(program, loops.tasks(), [weight])
