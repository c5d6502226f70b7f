"""What tiles of a dense convolution prefetch: the next weight and pixels, operands of results.

  tile:
    for pixel, vector of channels:  prefetch operand of the results[pixel, vector]    of this tile
    for block of c:
      for pixel:  prefetch image[pixel of the next tile, block of c]
      vectors shorter than a line:  prefetch a share of weight of the next tile of channels[block]
      others, for c of the block:  prefetch weight of the next tile of channels[c, one vector]

A tile reads a few pixels of every block of channels: short pieces of as many streams as there are
blocks, which hardware follows too late where they come from memory. On one Zen 5 core, 8 images of
56 x 56 pixels: 256 to 64 channels take 966 us an image without the pixels, 460 with them; 8 of
28 x 28, 128 to 512 channels with a residual, 594 and 489.
"""

import math
from collections.abc import Callable, Mapping

from tvm import DataType, ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, loop, prefetch, substitute
from ...index.index_ranges import Ranges
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from .config import ConvConfig
from .prefetch import Prefetch, pixel_operands
from .weight import PackedWeight

LINE_BYTES = 64  # of a cache


class TilePrefetch:
    """Writes the prefetches of tiles.

    Parameters
    ----------
    problem, config, image, weight, ranges
        Those of the tiles, see :class:`.tile.DenseTile`.
    """

    def __init__(
        self,
        problem: ConvProblem,
        config: ConvConfig,
        image: ImageReader,
        weight: PackedWeight,
        ranges: Ranges,
    ) -> None:
        self._problem, self._config, self._ranges = problem, config, ranges
        self._image, self._weight = image, weight
        self._shares_lines = config.lanes * 4 < LINE_BYTES and weight.band.is_aligned

    def weight(
        self,
        number: ir.Expr,
        tile_index: ir.Expr,
        block_c: ir.Expr,
        window: list[ir.Expr],
        inner: ir.Expr,
    ) -> ir.Expr | None:
        """Return the element to prefetch in a step: another vector for every tile of pixels.

        On one Zen 5 core, 512 channels of 7 x 7 pixels with weights in memory take 1.41 ms without.

        Parameters
        ----------
        number
            The tile of output channels.
        tile_index
            How many tiles of pixels the task has done with these channels.
        block_c, inner
            The block of the packed weight, and the channel in it.
        window
            The place in the window.
        """
        if self._shares_lines or not self._config.prefetches & Prefetch.WEIGHT:
            return None
        vector = tirx.floormod(tile_index, index(self._config.vectors)) * self._config.lanes
        return self._weight.element(number + 1, block_c, window, inner, vector)

    def weight_lines(
        self, number: ir.Expr, tile_index: ir.Expr, tiles: int, packed: ir.Expr
    ) -> list[tirx.Stmt]:
        """Prefetch a share of a block of the weight of the next tile of channels.

        Where lines hold several vectors, tiles of pixels ask for each line once together. On one
        Zen core with vectors of 256 bits, 1024 channels to 256 of 14 x 14 pixels take 2.8 ms so,
        3.2 where each tile asks for all lines.

        Parameters
        ----------
        tiles
            Tiles of pixels of a task.
        packed
            The block of the packed weight.
        """
        if not self._config.prefetches & Prefetch.WEIGHT or not self._shares_lines:
            return []
        buffer = self._weight.buffer.ty
        width = LINE_BYTES // DataType(str(buffer.dtype)).itemsize
        lines = math.ceil(math.prod(int(d) for d in buffer.shape[2:]) / width)
        share = math.ceil(lines / tiles)
        begin = [index(0)] * (len(buffer.shape) - 4)

        def one(i: ir.Expr) -> tirx.Stmt:
            line = tirx.min(tile_index * share + i, index(lines - 1))
            element = self._weight.element(number + 1, packed, begin, index(0), line * width)
            return prefetch(element, level=2)

        return [loop("line", share, one)]

    def image(
        self, task: Mapping, tile_index: ir.Expr, row_tiles: int, block_c: ir.Expr
    ) -> list[tirx.Stmt]:
        """Prefetch a block of channels of the next tile of pixels.

        Behind the last tile of a task are pixels that the next one begins with, or nothing: no
        address faults.

        Parameters
        ----------
        tile_index
            How many tiles of pixels the task has done with these channels.
        row_tiles
            Tiles of a row of pixels.
        """
        problem, config = self._problem, self._config
        if not config.prefetches & Prefetch.IMAGE or problem.c is None:
            return []
        row = tirx.floordiv(tile_index + 1, index(row_tiles)) * config.height
        column = tirx.floormod(tile_index + 1, index(row_tiles)) * config.width
        stmts = []
        for pixel in range(config.height * config.width):
            down, right = divmod(pixel, config.width)
            place = {**task, problem.y.var: row + down, problem.x.var: column + right}
            place[problem.c.var] = block_c * problem.depth
            stmts.append(prefetch(self._image.address(task, place, self._ranges), level=1))
        return stmts

    def operands(
        self,
        shape: tuple[int, int],
        width: int,
        first_k: ir.Expr,
        place: Callable[[ir.Expr, ir.Expr], dict[ir.Var, ir.Expr]],
    ) -> list[tirx.Stmt]:
        """Prefetch what the results of a tile read besides its sums.

        Parameters
        ----------
        shape
            Rows and columns of pixels of the tile.
        place
            Gives all axes but the channels, at a row and a column of the tile.
        """
        if not self._config.prefetches & Prefetch.OPERANDS:
            return []
        lanes, ranges = self._config.lanes, self._ranges
        return operands_of(self._problem, lanes, shape, width, first_k, place, ranges)


def operands_of(
    problem: ConvProblem,
    lanes: int,
    shape: tuple[int, int],
    width: int,
    first_k: ir.Expr,
    place: Callable[[ir.Expr, ir.Expr], dict[ir.Var, ir.Expr]],
    ranges: Ranges,
) -> list[tirx.Stmt]:
    """Prefetch what the results of a tile read; see :meth:`TilePrefetch.operands`."""
    stmts = []
    for operand in pixel_operands(problem, lanes):
        step = max(lanes, LINE_BYTES // DataType(str(operand.source.ty.dtype)).itemsize)
        for pixel in range(shape[0] * shape[1]):
            row, column = divmod(pixel, shape[1])
            where = place(index(row), index(column))
            for lane in range(0, width, step):
                where[problem.k.var] = first_k + lane
                indices = [substitute(i, where) for i in operand.indices]
                element = load(operand.source, ranges.indices(indices))
                stmts.append(prefetch(element, level=1))
    return stmts
