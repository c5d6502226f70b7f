"""The image of a direct convolution: read in place, or lines that a task copies with padding.

for block of c, line of the task:
inside of the image:  zeros on the left, elements (prologue included), zeros on the right
outside:              zeros
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load
from ...core.loops import constant, index, loop, sequence, substitute
from ..register_tile import in_vectors
from ..vector_math import makes_vectors, vector_math
from .problem import ConvProblem
from .simplify import Ranges

Place = Mapping[ir.Var, ir.Expr]


class ImageReader(ABC):
    """The image, an element at a time.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.image = problem, problem.image

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return []

    def fill(self, task: Place, ranges: Ranges) -> tirx.Stmt | None:
        """Prepare the image of a task.

        Parameters
        ----------
        task : Mapping
            Batch axes, the first output channel, and the first row of pixels, by variable.
        ranges : Ranges
            Of their variables.
        """
        return None

    @abstractmethod
    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read an element.

        Parameters
        ----------
        task : Mapping
            As it was filled.
        place : Mapping
            All axes of the convolution; y relative to the task's first row.
        ranges : Ranges
            Of their variables.
        """


class DirectImage(ImageReader):
    """An image without padding, read in place."""

    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read the image itself."""
        y = self.problem.y.var
        place = {**place, y: task[y] + place[y]}
        where = [substitute(p, place) for p in self.image.place]
        there = dict(zip((a.var for a in self.image.axes), where, strict=True))
        return ranges.value(substitute(self.image.value, there))


class CopiedImage(ImageReader):
    """Lines of the image with their padding: ``[block of c][..., line][column][c in the block]``.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    rows : int
        Rows of pixels of a task.
    """

    def __init__(self, problem: ConvProblem, rows: int) -> None:
        super().__init__(problem)
        self._value = vector_math(self.image.value)
        is_vector = makes_vectors(self._value)
        self._kind = tirx.ForKind.VECTORIZED if is_vector else tirx.ForKind.SERIAL
        axes = [a.var for a in self.image.axes]
        self._moved = dict(zip(axes, self.image.place, strict=True))
        self._extents = {a.var: a.extent for a in self.image.axes}
        sizes = {a.var: constant(a.extent) or 1 for a in (*problem.window, problem.x)}
        sizes[problem.y.var] = rows
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
        self._blocks = -(-self._channels // problem.block)
        shape = [self._blocks, *self._lines.values(), self._columns, problem.block]
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
        where = [tirx.floordiv(c, index(problem.block))]
        where += [substitute(self._moved[axis], here) for axis in self._lines]
        column = self._column
        where.append(index(0) if column is None else substitute(self._moved[column], here))
        where.append(tirx.floormod(c, index(problem.block)))
        return load(self._buffer, ranges.indices(where))

    def fill(self, task: Place, ranges: Ranges) -> tirx.Stmt:
        """Copy the lines of a task."""
        problem = self.problem
        whole, rest = divmod(self._channels, problem.block)
        start = {**task, **{a.var: index(0) for a in (*problem.window, problem.x)}}
        first = {axis: ranges.index(substitute(self._moved[axis], start)) for axis in self._lines}
        axes = list(self._lines)

        def lines(block: ir.Expr, lanes: int, local: list[ir.Expr]) -> tirx.Stmt:
            if len(local) == len(axes):
                there = {a: first[a] + i for a, i in zip(axes, local, strict=True)}
                return self._line(block, lanes, local, there, ranges)
            axis = axes[len(local)]
            count: ir.Expr = index(self._lines[axis])
            if constant(self._extents[axis]) != self._lines[axis] and self._lines[axis] > 1:
                count = tirx.min(count, self._extents[axis] - first[axis])

            def one(i: ir.Expr) -> tirx.Stmt:
                ranges.bind(i, self._lines[axis])
                return lines(block, lanes, [*local, i])

            return loop("line", count, one)

        def one_block(n: ir.Expr) -> tirx.Stmt:
            ranges.bind(n, whole)
            return lines(n, problem.block, [])

        stmts = [loop("block", whole, one_block)] if whole else []
        if rest:
            stmts.append(lines(index(whole), rest, []))
        return sequence(stmts)

    def _line(
        self,
        block: ir.Expr,
        lanes: int,
        local: list[ir.Expr],
        there: dict[ir.Var, ir.Expr],
        ranges: Ranges,
    ) -> tirx.Stmt:
        """Copy one line of one block of channels; ``there`` is where it is in the image."""
        problem = self.problem
        zero = tirx.const(0, str(self._value.ty.dtype))

        def columns(begin: int, end: int, is_inside: bool) -> tirx.Stmt:
            def column(n: ir.Expr) -> tirx.Stmt:
                ranges.bind(n, end - begin)
                x = begin + n

                def element(lane: ir.Expr) -> tirx.Stmt:
                    value = zero
                    if is_inside:
                        ranges.bind(lane, lanes)
                        where = dict(there)
                        if self._column is not None:
                            where[self._column] = x
                        for axis in self._moved:
                            if axis not in where:
                                where[axis] = block * problem.block + lane
                        value = ranges.value(substitute(self._value, where))
                    return tirx.BufferStore(self._buffer, value, [block, *local, x, lane])

                if self._kind == tirx.ForKind.SERIAL:
                    return loop("lane", lanes, element)
                return in_vectors(lanes, element)

            return loop("column", end - begin, column)

        inside = dict(self.image.inside)
        begin, end = 0, self._columns
        if self._column in inside:
            low, high = inside.pop(self._column)
            begin, end = max(0, low), min(self._columns, high)
        parts = [(0, begin, False), (begin, end, True), (end, self._columns, False)]
        stmt = sequence([columns(*part) for part in parts if part[0] < part[1]])
        conditions = [c for a, r in inside.items() for c in _within(there[a], *r)]
        conditions = [c for c in conditions if not ranges.holds(c)]
        if not conditions:
            return stmt
        condition = conditions[0]
        for other in conditions[1:]:
            condition = tirx.And(condition, other)
        return tirx.IfThenElse(condition, stmt, columns(0, self._columns, False))


def _within(position: ir.Expr, begin: int, end: int) -> list[ir.Expr]:
    return [position >= index(begin), position < index(end)]


def image_reader(problem: ConvProblem, rows: int) -> ImageReader:
    """Read an image in place where there is neither padding nor arithmetic."""
    return DirectImage(problem) if problem.image.is_load else CopiedImage(problem, rows)
