"""The epilogue of a tile of pixels by output channels: vectors of results.

for pixel:  for vector of channels:  results(acc)            unrolled where results are short
the last channels, of fewer than a vector: from a copy of the tile, by powers of two
results of other layouts (NCHW, shuffled channels), from a copy of the tile:
  for pixel:  for vector of channels:  stored = result(acc)      where its operands are vectors
  for channel:  for pixel:  result = stored                      where a channel goes is known once
  or stored = rows of pixels, which are transposed                                  (row_stores)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import is_expensive, load
from ....core.tir.loops import constant, coordinates, index, loop, sequence, substitute
from ...contraction.problem.epilogue.fuse import is_vector_code
from ...contraction.problem.pool import Pool
from ...contraction.problem.sum_of_products import Result
from ...cpu.register_tile import in_vectors
from ...index.estimate import operations
from ...index.index_ranges import Ranges
from ...math.vector_math import vector_math
from ..problem.problem import ConvProblem
from ..problem.result_layout import has_vectors, is_contiguous
from .row_stores import GatheredRows, RowStores

Into = Callable[[ir.Expr, ir.Expr], tuple[ir.Var, list[ir.Expr]]]  # a pixel, a channel of the tile

MOST_INLINE = 8  # operations of a result that are unrolled for every pixel of a tile


class ConvEpilogue:
    """Stores the results of tiles.

    Parameters
    ----------
    lanes
        Elements of a vector.
    """

    def __init__(self, problem: ConvProblem, lanes: int) -> None:
        self._problem, self._lanes = problem, lanes
        self._size = constant(problem.k.extent) or 1
        contraction = problem.contraction
        self._total = contraction.total
        results = [replace(r, value=vector_math(r.value)) for r in contraction.results]
        self._shuffled = [r for r in results if not is_contiguous(r, problem, lanes)]
        self._results = [r for r in results if r not in self._shuffled]
        pool = problem.pool
        self._pool = None if pool is None else replace(pool, update=vector_math(pool.update))
        values = [*(r.value for r in contraction.results), *([pool.update] if pool else [])]
        self._is_short = all(
            operations(value) <= MOST_INLINE and not is_expensive(value) for value in values
        )

    def tile(
        self,
        acc: ir.Var,
        shape: tuple[int, int],
        first_k: ir.Expr,
        is_last: bool,
        place: AtPixel,
        ranges: Ranges,
        rows: RowStores | None = None,
        in_memory: bool = False,
    ) -> tuple[tirx.Stmt, list[ir.Var]]:
        """Store the results of a tile.

        Parameters
        ----------
        shape
            Rows and columns of pixels of the tile.
        first_k
            Its first channel; a constant in the last tile.
        is_last
            Whether it may have fewer channels than the tile is wide.
        place
            Gives all axes but the channels, at a row and a column of the tile.
        rows
            The rows of pixels that results are gathered in.
        in_memory
            Whether the sums are in memory already, rather than in registers.
        """
        pixels, width = (int(d) for d in acc.ty.shape)
        inside = width
        if is_last:
            inside = max(0, min(width, self._problem.channels - int(first_k)))
        parts = [(n, self._lanes) for n in range(0, inside - self._lanes + 1, self._lanes)]
        rest = inside // self._lanes * self._lanes
        is_inline = rest == inside and self._is_short and not (self._shuffled or in_memory)
        if rest < inside:
            parts.append((rest, inside - rest))
        # Lanes that blocked results have beyond the channels are zero; other results have none.
        end = min(width, self._size - int(first_k)) if is_last else width
        if inside < end:
            parts += [(n, size) for n, size in self._zeros(inside, end)]

        tile, buffers, stmts = acc, [], []
        if not (is_inline or in_memory):
            tile = declare([index(pixels), index(width)], str(acc.ty.dtype), "tile", "local")
            buffers.append(tile)
            copy = lambda i: in_vectors(  # noqa: E731
                width, lambda lane: tirx.BufferStore(tile, load(acc, [i, lane]), [i, lane])
            )
            stmts.append(loop("i", pixels, copy, tirx.ForKind.UNROLLED))

        sums = TileSums(self._problem, self._pool, shape, tile, place, ranges)

        def pixel(i: ir.Expr) -> tirx.Stmt:
            ranges.bind(i, sums.count)
            return sequence(
                [
                    self._store(result, sums, i, n, size, first_k, ranges)
                    for n, size in parts
                    for result in self._results
                ]
            )

        kind = tirx.ForKind.UNROLLED if is_inline else tirx.ForKind.SERIAL
        if self._results:
            stmts.append(loop("i", sums.count, pixel, kind))
        for result in self._shuffled:
            # A concatenation has channels beyond those of the sum.
            count = end if result.condition is None else inside
            gathered = None if rows is None else rows.of(result)
            if not count or not has_vectors(result, self._problem, self._lanes):
                stmts.append(self._shuffle(result, None, gathered, sums, count, first_k, ranges))
                continue
            existing = [(n, size) for n, size in parts if n < count]
            into = partial(self._gathered, gathered, sums, ranges)
            if gathered is None:
                extents = [index(sums.count), index(count)]
                stored = declare(extents, str(result.buffer.ty.dtype), "stored", "local")
                buffers.append(stored)
                into = partial(_element, stored)
            stmts.append(self._stage(result, into, sums, existing, first_k, ranges))
            if gathered is None:
                stmts.append(self._shuffle(result, stored, None, sums, count, first_k, ranges))
        return sequence(stmts), buffers

    def _gathered(
        self,
        gathered: GatheredRows | None,
        sums: TileSums,
        ranges: Ranges,
        i: ir.Expr,
        lane: ir.Expr,
    ) -> tuple[ir.Var, list[ir.Expr]]:
        """Return the place of a value in the rows of pixels that results are gathered in."""
        assert gathered is not None
        row, _ = coordinates(i, sums.shape)
        x = sums.place(i)[self._problem.x.var] - gathered.first
        return gathered.buffer, [*ranges.indices([row, x]), lane]

    def _stage(
        self,
        result: Result,
        into: Into,
        sums: TileSums,
        parts: Sequence[tuple[int, int]],
        first_k: ir.Expr,
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Compute the values of a shuffled result, by vectors of channels."""

        def pixel(i: ir.Expr) -> tirx.Stmt:
            ranges.bind(i, sums.count)
            return sequence(
                [self._store(result, sums, i, n, size, first_k, ranges, into) for n, size in parts]
            )

        return loop("i", sums.count, pixel)

    def _shuffle(
        self,
        result: Result,
        stored: ir.Var | None,
        gathered: GatheredRows | None,
        sums: TileSums,
        inside: int,
        first_k: ir.Expr,
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Store elements one by one; where a channel is going is worked out once for all pixels."""
        k = self._problem.k.var
        rows, columns = sums.shape

        def channel(lane: ir.Expr) -> tirx.Stmt:
            ranges.bind(lane, inside)
            own = tirx.Var("channel", "int64")
            ranges.bind(own, self._size)

            def pixel(row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
                ranges.bind(row, rows)
                ranges.bind(column, columns)
                i = row * columns + column
                where = {**sums.place(i), k: own}
                if stored is not None:
                    value: ir.Expr = load(stored, [i, lane])
                else:
                    where[self._total] = sums.value(i, lane, where)
                    value = ranges.value(substitute(result.value, where))
                if gathered is not None:
                    x = ranges.index(where[self._problem.x.var] - gathered.first)
                    return tirx.BufferStore(gathered.buffer, value, [row, x, lane])
                indices = ranges.indices([substitute(x, where) for x in result.indices])
                return tirx.BufferStore(result.buffer, value, indices)

            pixels = loop(
                "row", rows, lambda row: loop("column", columns, lambda column: pixel(row, column))
            )
            return sequence([tirx.Bind(own, first_k + lane), pixels])

        return loop("lane", inside, channel)

    def _zeros(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Cut the channels that no sum has at the bounds of vectors."""
        cuts = [begin, *range(begin // self._lanes * self._lanes + self._lanes, end, self._lanes)]
        return [(a, b - a) for a, b in zip(cuts, [*cuts[1:], end], strict=True)]

    def _store(
        self,
        result: Result,
        sums: TileSums,
        i: ir.Expr,
        start: int,
        size: int,
        first_k: ir.Expr,
        ranges: Ranges,
        into: Into | None = None,
    ) -> tirx.Stmt:
        """Store some adjacent channels of one pixel, into a buffer of the tile if one is given."""
        where = sums.place(i)

        def at(expr: ir.Expr, lane: ir.Expr) -> ir.Expr:
            place = {**where, self._problem.k.var: first_k + (start + lane)}
            total = sums.value(i, start + lane, place)
            return ranges.value(substitute(expr, {**place, self._total: total}))

        probe = tirx.Var("lane", "int64")
        ranges.bind(probe, size)
        if result.condition is not None:
            known = ranges.holds(at(result.condition, probe))
            if known is False:
                return sequence([])
        # A concatenation chooses its operand once for a vector, where that begins and ends a block.
        value = ranges.value(ranges.without_lane(at(result.value, probe), probe, size))
        plain = replace(result, value=value, condition=None)
        is_vector = is_vector_code(plain, self._total)
        is_choice = not is_vector and is_vector_code(plain, self._total, probe)

        def element(lane: ir.Expr) -> tirx.Stmt:
            ranges.bind(lane, size)
            own = substitute(value, {probe: lane}) if is_choice else at(result.value, lane)
            if into is not None:
                buffer, where = into(i, start + lane)
                return tirx.BufferStore(buffer, own, where)
            indices = ranges.indices([at(x, lane) for x in result.indices])
            return tirx.BufferStore(result.buffer, own, indices)

        return in_vectors(size, element) if is_vector or is_choice else loop("lane", size, element)


def _element(stored: ir.Var, i: ir.Expr, lane: ir.Expr) -> tuple[ir.Var, list[ir.Expr]]:
    return stored, [i, lane]


# What the epilogue of a convolution reads: sums of a tile, pooled where windows join them.
#
# for pixel that is left:
#     value = initial
#     for row, column of the window:  value = update(value, sum)                    unrolled
Place = dict[ir.Var, ir.Expr]
AtPixel = Callable[[ir.Expr, ir.Expr], Place]


class TileSums:
    """The sums of a tile, or what pooling leaves of them, by number.

    Parameters
    ----------
    pool
        Its pooling, as code for vectors.
    shape
        Rows and columns of pixels of the tile.
    at_pixel
        Gives all axes but the channels, at a row and a column of the tile.
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
        """Return all axes but the channels."""
        row, column = coordinates(i, self._left)
        height, width = self._window
        where = self._at_pixel(row * height, column * width)
        for own, window in self._pool.windows.items() if self._pool else ():
            place = tirx.floordiv(where[own], index(window.size))
            where[window.pixel.var] = self._ranges.index(place)
        return where

    def value(self, i: ir.Expr, lane: ir.Expr, place: Place) -> ir.Expr:
        """Return the value of a channel; pooling reads axes at a place."""
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
