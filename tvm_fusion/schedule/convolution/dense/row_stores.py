"""Results whose channels are strided, as in NCHW, stored by whole rows of pixels.

for tile of a row of tiles:  rows[row][column of the image][channel] = values           (epilogue)
for row of pixels:  for square of channels by columns:  result = transposed(rows)   by shuffles
the last channels, of fewer than a vector:              result = rows[row][column]  by elements

A tile is a few pixels wide: stored one by one, each line of a result would be written several
times, and lines of 64 channels whose distance is a power of two evict each other in between. On one
Zen 5 core, 64 channels of 32 x 32 pixels took 110 us longer than in blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, loop, sequence, substitute
from ...contraction.problem.sum_of_products import Result
from ...cpu.transpose import transposed
from ...cpu.vector_loops import by_vectors
from ...index.address import known_step
from ...index.index_ranges import Ranges
from ..problem.problem import ConvProblem
from ..problem.result_layout import is_contiguous

MOST_BYTES = 1 << 17  # of the rows, which are to stay in the level-2 cache
LEAST_SQUARE = 4  # channels by columns, below which elements are stored one by one

AtPixel = Callable[[ir.Expr, ir.Expr], dict[ir.Var, ir.Expr]]


@dataclass(frozen=True)
class GatheredRows:
    """The rows of pixels that a result is gathered in."""

    buffer: ir.Var  # ``[row][column][channel]``, of a row of tiles
    first: ir.Expr  # the column of the image that is the first one


def is_by_rows(
    result: Result, problem: ConvProblem, lanes: int, shape: tuple[int, int, int]
) -> bool:
    """Whether a result is stored by rows: its columns are contiguous, and its channels are not.

    Parameters
    ----------
    lanes
        Elements of a vector.
    shape
        Rows and columns of pixels of a row of tiles, and its channels.
    """
    if problem.pool is not None or 4 * math.prod(shape) > MOST_BYTES:
        return False
    axes = [a.var for a in problem.contraction.stage.axes]
    step = known_step(result.buffer, result.indices, problem.x.var, axes)
    return step == 1 and not is_contiguous(result, problem, lanes)


def square_size(result: Result, problem: ConvProblem, lanes: int, columns: int) -> int:
    """Count the channels and columns of rows that are transposed together; 0 for none.

    Parameters
    ----------
    columns
        Of a row; fewer than the image has where tasks take parts of its rows.
    """
    if str(result.buffer.ty.dtype) != "float32":
        return 0
    size = min(lanes, 1 << (columns.bit_length() - 1))
    while size >= LEAST_SQUARE and not _are_runs(result, problem, columns, size):
        size //= 2
    return size if size >= LEAST_SQUARE else 0


def _are_runs(result: Result, problem: ConvProblem, columns: int, size: int) -> bool:
    """Whether the columns of every square lie along the last dimension of a result."""
    number, lane = (tirx.Var(n, "int64") for n in ("number", "lane"))
    ranges = Ranges()
    ranges.bind(number, columns // size)
    ranges.bind(lane, size)
    starts = [number * size, *([index(columns - size)] if columns % size else [])]
    beyond = (constant(problem.x.extent) or 1) - columns
    if beyond:
        first = tirx.Var("first", "int64")
        ranges.bind(first, beyond + 1)
        starts = [first + start for start in starts]

    def goes_on(position: ir.Expr, start: ir.Expr, step: ir.Expr) -> bool | None:
        first, other = (substitute(position, {problem.x.var: x}) for x in (start, start + lane))
        return ranges.holds(tirx.EQ(ranges.index(other - first), step))

    *others, last = result.indices
    return all(
        goes_on(last, start, lane) and all(goes_on(i, start, index(0)) for i in others)
        for start in starts
    )


class RowStores:
    """The rows of a row of tiles, of all results that are stored so.

    Parameters
    ----------
    lanes
        Elements of a vector.
    shape
        Rows and columns of pixels of a row of tiles, and its channels.
    """

    def __init__(
        self, problem: ConvProblem, lanes: int, shape: tuple[int, int, int], first: ir.Expr
    ) -> None:
        self._problem, self._lanes, self._first = problem, lanes, first
        self._height, self._columns, _ = shape
        extents = [index(d) for d in shape]
        self._rows: list[tuple[Result, ir.Var]] = [
            (r, declare(extents, str(r.buffer.ty.dtype), "rows", "local"))
            for r in problem.contraction.results
            if is_by_rows(r, problem, lanes, shape)
        ]

    def of(self, result: Result) -> GatheredRows | None:
        """Return the rows of a result, if it has some."""
        found = (rows for r, rows in self._rows if r.buffer.same_as(result.buffer))
        return next((GatheredRows(rows, self._first) for rows in found), None)

    def around(self, tiles: tirx.Stmt, store: tirx.Stmt) -> tirx.Stmt:
        """Store the rows behind the tiles."""
        if not self._rows:
            return tiles
        return block("rows", sequence([tiles, store]), [rows for _, rows in self._rows])

    def store(
        self,
        count: Callable[[Result], int],
        first_k: ir.Expr,
        at_pixel: AtPixel,
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Store the rows.

        Parameters
        ----------
        count
            Gives the number of a result's channels.
        at_pixel
            Gives all axes but the channels, at a row and a column of these.
        """
        parts = (self._transposed, self._by_elements)
        stmts = [
            part(result, rows, count(result), first_k, at_pixel, ranges)
            for result, rows in self._rows
            for part in parts
        ]
        return sequence(stmts)

    def _transposed(
        self,
        result: Result,
        rows: ir.Var,
        channels: int,
        first_k: ir.Expr,
        at_pixel: AtPixel,
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Store the whole vectors of channels, as vectors of columns."""
        size = square_size(result, self._problem, self._lanes, self._columns)
        if not size:
            return sequence([])
        vector_from = lambda first: tirx.Ramp(first, index(1), size)  # noqa: E731

        def square(row: ir.Expr, first: ir.Expr, column: ir.Expr) -> tirx.Stmt:
            where = at_pixel(row, column)

            def store(lane: int, vector: ir.Expr) -> tirx.Stmt:
                place = {**where, self._problem.k.var: first_k + (first + lane)}
                *indices, last = ranges.indices([substitute(x, place) for x in result.indices])
                return tirx.BufferStore(result.buffer, vector, [*indices, vector_from(last)])

            return transposed(
                [load(rows, [row, column + n, vector_from(first)]) for n in range(size)], store
            )

        def row(number: ir.Expr) -> tirx.Stmt:
            ranges.bind(number, self._height)

            def block_of(channel: ir.Expr) -> tirx.Stmt:
                ranges.bind(channel, channels // size)

                def columns(column: ir.Expr) -> tirx.Stmt:
                    ranges.bind(column, self._columns // size)
                    return square(number, channel * size, column * size)

                stmts = [loop("column", self._columns // size, columns)]
                if self._columns % size:  # the last columns, some of them once more
                    last = index(self._columns - size)
                    stmts.append(square(number, channel * size, last))
                return sequence(stmts)

            return loop("channel", channels // size, block_of)

        return loop("row", self._height, row)

    def _by_elements(
        self,
        result: Result,
        rows: ir.Var,
        channels: int,
        first_k: ir.Expr,
        at_pixel: AtPixel,
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Store the channels that squares leave."""
        size = square_size(result, self._problem, self._lanes, self._columns)
        done = channels // size * size if size else 0

        def channel(lane: ir.Expr) -> tirx.Stmt:
            ranges.bind(lane, channels - done)

            def row(number: ir.Expr) -> tirx.Stmt:
                ranges.bind(number, self._height)

                def element(column: ir.Expr) -> tirx.Stmt:
                    place = {self._problem.k.var: first_k + (done + lane)}
                    where = {**at_pixel(number, column), **place}
                    indices = ranges.indices([substitute(x, where) for x in result.indices])
                    value = load(rows, [number, column, done + lane])
                    return tirx.BufferStore(result.buffer, value, indices)

                def vector(first: ir.Expr, width: int) -> tirx.Stmt:
                    kind = tirx.ForKind.VECTORIZED
                    return loop("column", width, lambda n: element(first + n), kind)

                return by_vectors(self._columns, self._lanes, vector)

            return loop("row", self._height, row)

        return loop("lane", channels - done, channel)
