"""Lines of the image that a task of a direct convolution copies with their padding.

for block of c, line of the task:
  inside of the image:  padding on the left, elements (prologue included), padding on the right
  outside:              padding

Where tasks take parts of the rows, lines are those of the part.
"""

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import constant, find, index, loop, sequence, substitute
from ...cpu.register_tile import WIDEST, in_vectors
from ...index.index_ranges import Ranges
from ...math.vector_math import makes_vectors, vector_math
from ..problem.groups import Band
from ..problem.image_reader import ImageReader, Place
from ..problem.problem import ConvProblem
from ..problem.words import WordImage


class CopiedImage(ImageReader):
    """Lines of the image with their padding: ``[block of c][..., line][column][c in the block]``.

    Of a grouped convolution, the blocks are those that the task reads from.

    Parameters
    ----------
    pixels
        Rows and columns of pixels of a task.
    band
        Input channels that the output channels of a task read.
    word
        Channels that are read together: those beyond the last one are zero.
    """

    def __init__(
        self, problem: ConvProblem, pixels: tuple[int, int], band: Band, word: int = 1
    ) -> None:
        super().__init__(problem)
        self._band, self._word = band, word
        self._value = vector_math(self.image.value)
        is_vector = all(makes_vectors(vector_math(value)) for value in self.image.values)
        self._kind = tirx.ForKind.VECTORIZED if is_vector else tirx.ForKind.SERIAL
        # Of an image in blocks of channels, longer vectors would gather their elements.
        divisions = [d for v in self.image.values for d in find(v, tirx.FloorMod)]
        blocks = {constant(d.b) or 1 for d in divisions}
        self._widest = min(blocks | {WIDEST})
        axes = [a.var for a in self.image.axes]
        self._moved = dict(zip(axes, self.image.place, strict=True))
        self._extents = {a.var: a.extent for a in self.image.axes}
        sizes = {a.var: constant(a.extent) or 1 for a in problem.window}
        sizes[problem.y.var], sizes[problem.x.var] = pixels
        self._lines: dict[ir.Var, int] = {}
        self._column: ir.Var | None = None
        self._columns = 1
        for axis in axes:
            atoms = self.image.sums.get(axis, {self._moved[axis]: 1})
            size = 1 + sum((sizes.get(v, 1) - 1) * n for v, n in atoms.items())
            if problem.x.var in atoms:
                self._column, self._columns = axis, size
            elif problem.c is None or problem.c.var not in atoms:
                self._lines[axis] = size
        self._channels = 1 if problem.c is None else constant(problem.c.extent) or 1
        shape = [band.blocks, *self._lines.values(), self._columns, problem.block]
        dtype = str(self.image.value.ty.dtype)
        self._buffer = declare([index(d) for d in shape], dtype, "lines", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the lines."""
        return [self._buffer]

    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read the copy."""
        problem = self.problem
        here = {**place, **{a.var: index(0) for a in (*problem.batch, problem.k)}}
        c = index(0) if problem.c is None else place[problem.c.var]
        where = [tirx.floordiv(c, index(problem.block)) - self._first_block(task, ranges)]
        where += [substitute(self._moved[axis], here) for axis in self._lines]
        column = self._column
        where.append(index(0) if column is None else substitute(self._moved[column], here))
        where.append(tirx.floormod(c, index(problem.block)))
        return load(self._buffer, ranges.indices(where))

    def fill(self, task: Place, ranges: Ranges) -> tirx.Stmt:
        """Copy the lines of a task."""
        problem = self.problem
        whole, rest = divmod(self._channels, problem.block)
        start = {**task, **{a.var: index(0) for a in problem.window}}
        first = {axis: ranges.index(substitute(self._moved[axis], start)) for axis in self._lines}
        self._first = index(0)
        if self._column is not None:
            self._first = ranges.index(substitute(self._moved[self._column], start))
        axes = list(self._lines)

        def lines(block: ir.Expr, lanes: int, local: list[ir.Expr]) -> tirx.Stmt:
            if len(local) == len(axes):
                there = {a: first[a] + i for a, i in zip(axes, local, strict=True)}
                return self._line(block - first_block, block, lanes, local, there, ranges)
            axis = axes[len(local)]
            count: ir.Expr = index(self._lines[axis])
            if constant(self._extents[axis]) != self._lines[axis] and self._lines[axis] > 1:
                count = tirx.min(count, self._extents[axis] - first[axis])

            def one(i: ir.Expr) -> tirx.Stmt:
                ranges.bind(i, self._lines[axis])
                return lines(block, lanes, [*local, i])

            return loop("line", count, one)

        first_block = self._first_block(task, ranges)
        if not self._band.is_dense:
            tile = tirx.floordiv(task[problem.k.var], index(self._band.width))
            end = self._band.end(tile) + (problem.block - 1)
            count = ranges.index(tirx.floordiv(end, index(problem.block)) - first_block)

            def of_band(n: ir.Expr) -> tirx.Stmt:
                ranges.bind(n, self._band.blocks)
                block = first_block + n
                stmt = lines(block, problem.block, [])
                if not rest:
                    return stmt
                return tirx.IfThenElse(block < whole, stmt, lines(block, rest, []))

            return loop("block", count, of_band)

        stmts, done = [], 0
        for end, value in self.image.parts or ((whole * problem.block, self._value),):
            size, self._value = end // problem.block - done, vector_math(value)

            def one_block(n: ir.Expr, done: int = done, size: int = size) -> tirx.Stmt:
                ranges.bind(n, size)
                return lines(done + n if done else n, problem.block, [])

            if size:
                stmts.append(loop("block", size, one_block))
            done += size
        if rest:
            stmts.append(lines(index(whole), rest, []))
        return sequence(stmts)

    def _first_block(self, task: Place, ranges: Ranges) -> ir.Expr:
        """Return the first block of channels of a task."""
        if self._band.is_dense:
            return index(0)
        tile = tirx.floordiv(task[self.problem.k.var], index(self._band.width))
        return ranges.index(tirx.floordiv(self._band.begin(tile), index(self.problem.block)))

    def _line(
        self,
        place: ir.Expr,
        block: ir.Expr,
        lanes: int,
        local: list[ir.Expr],
        there: dict[ir.Var, ir.Expr],
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Copy one line of a block of channels to a place; ``there`` is where the image has it."""
        problem = self.problem
        padding = self.image.outside
        beyond = -(-lanes // self._word) * self._word

        def nothing(x: ir.Expr, lane: int) -> tirx.Stmt:
            zero = tirx.const(0, str(self._value.ty.dtype))
            return tirx.BufferStore(self._buffer, zero, [place, *local, x, lane])

        def columns(
            begin: ir.Expr | int, count: ir.Expr | int, most: int, is_inside: bool
        ) -> tirx.Stmt:
            def column(n: ir.Expr) -> tirx.Stmt:
                ranges.bind(n, most)
                x = begin + n

                def element(lane: ir.Expr) -> tirx.Stmt:
                    value = padding
                    if is_inside:
                        ranges.bind(lane, lanes)
                        where = dict(there)
                        if self._column is not None:
                            where[self._column] = self._first + x
                        for axis in self._moved:
                            if axis not in where:
                                where[axis] = block * problem.block + lane
                        value = ranges.value(substitute(self._value, where))
                    return tirx.BufferStore(self._buffer, value, [place, *local, x, lane])

                copied = (
                    loop("lane", lanes, element)
                    if self._kind == tirx.ForKind.SERIAL
                    else in_vectors(lanes, element, self._widest)
                )
                return sequence([copied, *(nothing(x, n) for n in range(lanes, beyond))])

            return loop("column", count, column)

        inside, size = dict(self.image.inside), self._columns
        low, high = inside.pop(self._column, (None, None))
        stmt = sequence([columns(*part) for part in self._parts(low, high, ranges)])
        conditions = [c for a, r in inside.items() for c in _within(there[a], *r)]
        conditions = [c for c in conditions if not ranges.holds(c)]
        if not conditions:
            return stmt
        condition = conditions[0]
        for other in conditions[1:]:
            condition = tirx.And(condition, other)
        return tirx.IfThenElse(condition, stmt, columns(0, size, size, False))

    def _parts(
        self, low: int | None, high: int | None, ranges: Ranges
    ) -> list[tuple[ir.Expr | int, ir.Expr | int, int, bool]]:
        """Cut a line at the borders of the image: first column, count, most, whether inside."""
        size, first = self._columns, self._first
        begin: ir.Expr | int = 0
        end: ir.Expr | int = size
        if constant(first) == 0:
            begin, end = max(0, low or 0), min(size, size if high is None else high)
        else:
            if low is not None and not ranges.holds(first >= low):
                begin = tirx.min(tirx.max(index(low) - first, index(0)), index(size))
            if high is not None and not ranges.holds(first + size <= high):
                end = tirx.max(tirx.min(index(high) - first, index(size)), index(begin))
        cuts = [(0, begin, False), (begin, end, True), (end, size, False)]
        parts = []
        for left, right, is_inside in cuts:
            count = right - left
            known = constant(index(count))
            if known is None or known > 0:
                parts.append((left, count, size if known is None else known, is_inside))
        return parts


def _within(position: ir.Expr, begin: int, end: int) -> list[ir.Expr]:
    return [position >= index(begin), position < index(end)]


# The image of a direct convolution: read in place, or lines that a task copies with padding.
class DirectImage(ImageReader):
    """An image without padding, read in place."""

    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read the image itself."""
        y, x = self.problem.y.var, self.problem.x.var
        place = {**place, y: task[y] + place[y], x: task[x] + place[x]}
        where = [substitute(p, place) for p in self.image.place]
        there = dict(zip((a.var for a in self.image.axes), where, strict=True))
        return ranges.value(substitute(self.image.value, there))


def image_reader(problem: ConvProblem, pixels: tuple[int, int], channels: int) -> ImageReader:
    """Read an image in place where there is neither padding nor arithmetic.

    Parameters
    ----------
    pixels
        Rows and columns of pixels of a task.
    channels
        Output channels of a task.
    """
    words = problem.words
    single = problem if words is None else words.single
    reader: ImageReader = DirectImage(single)
    if not problem.reads_in_place:
        size = 1 if words is None else words.dot.group
        reader = CopiedImage(single, pixels, Band(single, channels), size)
    return reader if words is None else WordImage(problem, reader)
