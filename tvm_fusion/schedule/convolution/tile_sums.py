"""What the epilogue of a convolution reads: sums of a tile, pooled where windows join them.

for pixel that is left:
    value = initial
    for row, column of the window:  value = update(value, sum)                    unrolled
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import coordinates, index, substitute
from ..index.index_ranges import Ranges
from .pool import Pool
from .problem import ConvProblem

Place = dict[ir.Var, ir.Expr]
AtPixel = Callable[[ir.Expr, ir.Expr], Place]


class TileSums:
    """The sums of a tile, or what pooling leaves of them, by number.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    pool : Pool or None
        Its pooling, as code for vectors.
    shape : tuple of int
        Rows and columns of pixels of the tile.
    tile : Var
        Sums, pixels by channels.
    at_pixel : callable
        Gives all axes but the channels, at a row and a column of the tile.
    ranges : Ranges
        Of their variables.
    """

    def __init__(
        self,
        problem: ConvProblem,
        pool: Pool | None,
        shape: tuple[int, int],
        tile: ir.Var,
        at_pixel: AtPixel,
        ranges: Ranges,
    ) -> None:
        self._axes = problem.y.var, problem.x.var
        self._pool, self._width = pool, shape[1]
        self._window = [pool.size(v) if pool else 1 for v in self._axes]
        self._left = [n // size for n, size in zip(shape, self._window, strict=True)]
        self._tile, self._at_pixel, self._ranges = tile, at_pixel, ranges
        self.count = math.prod(self._left)

    @property
    def shape(self) -> list[int]:
        """Rows and columns of what is left."""
        return self._left

    def place(self, i: ir.Expr) -> Place:
        """Give all axes but the channels."""
        row, column = coordinates(i, self._left)
        height, width = self._window
        where = self._at_pixel(row * height, column * width)
        for own, window in self._pool.windows.items() if self._pool else ():
            place = tirx.floordiv(where[own], index(window.size))
            where[window.pixel.var] = self._ranges.index(place)
        return where

    def value(self, i: ir.Expr, lane: ir.Expr, place: Place) -> ir.Expr:
        """Give the value of a channel; pooling reads axes at a place."""
        pool = self._pool
        if pool is None:
            return load(self._tile, [i, lane])
        row, column = coordinates(i, self._left)
        height, width = self._window
        value = pool.initial
        for r, c in itertools.product(range(height), range(width)):
            pixel = (row * height + r) * self._width + (column * width + c)
            total = load(self._tile, [self._ranges.index(pixel), lane])
            value = pool.reduced(value, total, dict(zip(self._axes, (r, c), strict=True)))
        return substitute(value, place)
