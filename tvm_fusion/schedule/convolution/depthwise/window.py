"""The window of a depthwise convolution: rows that are inside of the image, taps of a row.

for row of the window that is inside of the image:         by the bounds of the loop
    taps of the row                                        unrolled, those in the padding left out
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.loops import constant, index, loop, substitute
from ....program.stage import Axis
from ...index.index_ranges import Ranges
from ..problem.problem import ConvProblem


@dataclass(frozen=True)
class Direction:
    """How pixels and the window move along one axis of the image."""

    window: int | None  # position among the axes of the window
    size: int
    stride: int
    dilation: int
    begin: int
    end: int

    def is_inside(self, pixel: int, tap: int) -> bool:
        """Whether a tap of the window at a pixel is inside of the image."""
        return self.begin <= pixel * self.stride + tap * self.dilation < self.end

    @classmethod
    def of(cls, problem: ConvProblem, pixel: Axis) -> Direction:
        """Describe an axis of pixels."""
        image = problem.image
        for axis, place in zip(image.axes, image.place, strict=True):
            atoms = image.sums.get(axis.var, {place: 1})
            if pixel.var not in atoms:
                continue
            end = constant(axis.extent) or 0
            begin, end = image.inside.get(axis.var, (0, end))
            for n, one in enumerate(problem.window):
                if one.var in atoms:
                    size = constant(one.extent) or 1
                    return cls(n, size, atoms[pixel.var], atoms[one.var], begin, end)
            return cls(None, 1, 1, 1, begin, end)
        return cls(None, 1, 1, 1, 0, 1)


class DepthwiseWindow:
    """Writes the loops over a window.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    ranges : Ranges
        Of the variables around.

    Attributes
    ----------
    rows, columns : Direction
        Of the window.
    """

    def __init__(self, problem: ConvProblem, ranges: Ranges) -> None:
        self._problem, self._ranges = problem, ranges
        self.rows = Direction.of(problem, problem.y)
        self.columns = Direction.of(problem, problem.x)

    def loops(self, place: dict, taps: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        """Write the loops around the taps of a row.

        Parameters
        ----------
        place : dict
            Batch axes and the row of pixels, by variable.
        taps : callable
            Writes the taps of a row at a place in the window, whose column is 0.
        """
        problem, rows = self._problem, self.rows
        y = place[problem.y.var]

        def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
            if depth == len(problem.window):
                return self._guarded({**place}, done, taps(done))
            if depth == self.columns.window:
                return level(depth + 1, [*done, index(0)])
            size = constant(problem.window[depth].extent) or 1
            begin, count = index(0), index(size)
            if depth == rows.window:
                begin, count = self._inside_rows(y)

            def one(i: ir.Expr) -> tirx.Stmt:
                if isinstance(i, ir.Var):
                    self._ranges.bind(i, size)
                return level(depth + 1, [*done, begin + i])

            if constant(count) == 1:
                return level(depth + 1, [*done, begin])
            return loop(f"w{depth}", count, one)

        return level(0, [])

    def _inside_rows(self, y: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Give the first row of the window that is inside of the image, and how many are."""
        rows, ranges = self.rows, self._ranges
        first = y * rows.stride

        def from_row(row: int) -> ir.Expr:
            """Give the first row of the window at or after a row of the image."""
            distance = index(row + rows.dilation - 1) - first
            return tirx.floordiv(distance, index(rows.dilation))

        begin = tirx.max(from_row(rows.begin), index(0))
        end = tirx.min(from_row(rows.end), index(rows.size))
        if ranges.holds(from_row(rows.begin) <= 0):
            begin = index(0)
        if ranges.holds(from_row(rows.end) >= rows.size):
            end = index(rows.size)
        return begin, ranges.index(tirx.max(end - begin, index(0)))

    def _guarded(self, place: dict, window: list[ir.Expr], body: tirx.Stmt) -> tirx.Stmt:
        """Leave out windows that other axes of the image do not have, such as planes."""
        problem, image = self._problem, self._problem.image
        here = {**place, **{a.var: w for a, w in zip(problem.window, window, strict=True)}}
        conditions = []
        for axis, place_ in zip(image.axes, image.place, strict=True):
            atoms = image.sums.get(axis.var, {place_: 1})
            own = {problem.x.var, problem.y.var}
            is_windowed = {a.var for a in problem.window} & set(atoms)
            if axis.var not in image.inside or (own & set(atoms) and is_windowed):
                continue
            at = substitute(place_, {problem.x.var: index(0), **here})
            begin, end = image.inside[axis.var]
            conditions += [at >= index(begin), at < index(end)]
        for condition in conditions:
            if not self._ranges.holds(condition):
                body = tirx.IfThenElse(condition, body, None)
        return body
