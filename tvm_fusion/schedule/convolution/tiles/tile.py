"""A tile of pixels by output channels in tile registers, and its results.

C = 0
for window around runs, step of a run:
  load A[pixels of each row of tiles];  for column of tiles: load B, C += A * B
store C to memory;  results                                              (dense/epilogue)
"""

from __future__ import annotations

from tvm import ir, tirx

from ....core.expressions import load
from ....core.loops import block, constant, index, local, sequence
from ...cpu.tile_block import WORD_BYTES, TileBlock
from ...index.index_ranges import Ranges
from ...instructions.tiles import (
    TILE_ROWS,
    TileAddress,
    configure,
    keep_extents,
    release,
    tile_config,
)
from ..dense.row_stores import RowStores
from ..dense.tile import PixelTile
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from .config import TileConvConfig
from .problem import TileConv, last_index
from .weight import TileWeight


class RegisterTiles(PixelTile):
    """Writes tiles.

    Parameters
    ----------
    problem : ConvProblem
        As results see it.
    image : ImageReader
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

        products = self._products(tiles, task, number, y, x, height)
        place = self._place(task, y, x)
        results, buffers = self._epilogue.tile(
            acc, shape, first_k, is_last, place, self._ranges, rows, in_memory=True
        )
        is_beyond = is_last and int(first_k) >= problem.channels  # of a concatenation
        sums = [tiles.clear(), *([] if is_beyond else [products]), tiles.store(c_tile)]
        if not is_shaped:
            before, after = (configure(self._memory, t.shapes()) for t in (tiles, self._tiles))
            sums = [before, *sums, after]
        return block("tile", sequence([keep_extents(acc), *sums, results]), [acc, *buffers])

    def _products(
        self,
        tiles: TileBlock,
        task: dict,
        number: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        height: int,
    ) -> tirx.Stmt:
        conv, problem, ranges = self._conv, self._conv.single, self._ranges
        chunk = conv.words * conv.group
        begin = self._weight.band.begin(number)

        def run(window: list[ir.Expr]) -> tirx.Stmt:
            around = dict(zip((a.var for a in conv.outer), window, strict=True))
            if conv.column is not None:
                around[conv.column.var] = index(0)

            def a_tile(i: int, k: ir.Expr) -> TileAddress:
                row, column = (i, 0) if height > 1 else (0, i * TILE_ROWS)
                pixel = {problem.y.var: y + row, problem.x.var: x + column}
                where = {**task, **pixel, **around, problem.k.var: index(0)}
                where[conv.c.var] = index(0)
                element = self._image.at(task, where, ranges)
                place = last_index(element, begin + k * chunk)
                return TileAddress(load(element.source, place), conv.pixel * conv.itemsize)

            def b_tile(j: int, k: ir.Expr) -> TileAddress:
                column = index(j * TILE_ROWS)
                element = self._weight.at(number, window, k * conv.words, column)
                return TileAddress(element, self._nr * WORD_BYTES)

            return tiles.accumulate(conv.steps, a_tile, b_tile)

        def level(done: list[ir.Expr]) -> tirx.Stmt:
            if len(done) == len(conv.outer):
                return run(done)
            axis = conv.outer[len(done)]
            size = constant(axis.extent) or 1
            return self.loop(f"r{len(done)}", size, size, lambda i: level([*done, i]))

        return level([])
