"""The transformed image of a task of a Winograd convolution: ``V = B^T d B``.

for block of c:  for tile of the task:
  d[m + 2][m + 2] = elements of the image, zeros in its padding              where it has some
  for column:  t[:][column] = B^T d[:][column]                        vectors of a block of c
  for row:     V[row, :][block, tile] = B^T t[row][:]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence, substitute
from ...cpu.register_tile import in_vectors
from ...index.index_ranges import Ranges
from ...math.vector_math import makes_vectors, vector_math
from ..problem.problem import ConvProblem
from .choice import WinogradWindow
from .config import WinogradConfig
from .transforms import WINDOW, transform_input

Element = Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr]  # row, column, lane


class WinogradImage:
    """``V[f][block of c, tile][c in the block]``, f a place of the transformed window."""

    def __init__(
        self, problem: ConvProblem, window: WinogradWindow, config: WinogradConfig, ranges: Ranges
    ) -> None:
        self._problem, self._window = problem, window
        self._config, self._ranges = config, ranges
        self._side = config.m + WINDOW - 1
        self._value = vector_math(problem.image.value)
        self._channels = 1 if problem.c is None else constant(problem.c.extent) or 1
        blocks = math.ceil(self._channels / problem.block)
        # One vector more: places whose distance is a power of two would evict each other.
        shape = [config.places, blocks * config.tiles + 1, problem.block]
        self.buffer = declare([index(d) for d in shape], "float32", "transformed", "local")

    def at(self, place: ir.Expr, block: ir.Expr, tile: ir.Expr, c: ir.Expr) -> ir.Expr:
        """Read an element."""
        return load(self.buffer, [place, block * self._config.tiles + tile, c])

    def fill(self, task: dict, tiles: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """Transform the tiles of a task.

        Parameters
        ----------
        tiles
            Writes a loop over the tiles of the task around a body of number, row and column.
        """
        whole, rest = divmod(self._channels, self._problem.block)

        def blocks(n: ir.Expr, lanes: int) -> tirx.Stmt:
            body = lambda tile, y, x: self._tile(task, n, lanes, tile, y, x)  # noqa: E731
            return tiles(body)

        def one(n: ir.Expr) -> tirx.Stmt:
            self._ranges.bind(n, whole)
            return blocks(n, self._problem.block)

        stmts = [loop("block", whole, one)] if whole else []
        if rest:
            stmts.append(blocks(index(whole), rest))
        return sequence(stmts)

    def _tile(
        self, task: dict, n: ir.Expr, lanes: int, tile: ir.Expr, y: ir.Expr, x: ir.Expr
    ) -> tirx.Stmt:
        """Transform a block of channels of a tile."""
        problem, side, ranges = self._problem, self._side, self._ranges
        first = [p * self._config.m for p in (y, x)]

        def element(row: ir.Expr, column: ir.Expr, lane: ir.Expr) -> ir.Expr:
            where = {**task, **{a.var: index(0) for a in self._window.axes}}
            where |= {problem.y.var: first[0] + row, problem.x.var: first[1] + column}
            if problem.c is not None:
                where[problem.c.var] = n * problem.block + lane
            places = [substitute(p, where) for p in problem.image.place]
            there = dict(zip((a.var for a in problem.image.axes), places, strict=True))
            return ranges.value(substitute(self._value, there))

        def inside(axis: int, begin: ir.Expr, size: int) -> list[ir.Expr]:
            low, high = self._window.inside[axis]
            bounds = [begin >= index(low), begin + size <= index(high)]
            return [c for c in bounds if not ranges.holds(c)]

        patch = local("patch", [side * side, lanes], "float32")

        def fill(row: ir.Expr) -> tirx.Stmt:
            ranges.bind(row, side)

            def column(column: ir.Expr) -> tirx.Stmt:
                ranges.bind(column, side)
                at = row * side + column
                is_vector = makes_vectors(self._value)

                def store(value: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
                    def one(lane: ir.Expr) -> tirx.Stmt:
                        ranges.bind(lane, lanes)
                        return tirx.BufferStore(patch, value(lane), [at, lane])

                    return in_vectors(lanes, one) if is_vector else loop("lane", lanes, one)

                conditions = [*inside(0, first[0] + row, 1), *inside(1, first[1] + column, 1)]
                stored = store(lambda lane: element(row, column, lane))
                zero = store(lambda lane: tirx.const(0, "float32"))
                return _if(conditions, stored, zero)

            return loop("column", side, column)

        patched = sequence(
            [
                loop("row", side, fill),
                self._transform(n, lanes, tile, lambda r, c, v: load(patch, [r * side + c, v])),
            ]
        )
        patched = block("patch", patched, [patch])
        if not isinstance(problem.image.value, ir.TensorLoad):
            return patched
        conditions = [*inside(0, first[0], side), *inside(1, first[1], side)]
        return _if(conditions, self._transform(n, lanes, tile, element), patched)

    def _transform(self, n: ir.Expr, lanes: int, tile: ir.Expr, element: Element) -> tirx.Stmt:
        """Transform columns, then rows."""
        side, m = self._side, self._config.m
        half = local("half", [side * side, lanes], "float32")
        at = n * self._config.tiles + tile

        def columns(column: ir.Expr) -> tirx.Stmt:
            self._ranges.bind(column, side)

            def store(row: int) -> tirx.Stmt:
                def one(lane: ir.Expr) -> tirx.Stmt:
                    self._ranges.bind(lane, lanes)
                    d = [element(index(r), column, lane) for r in range(side)]
                    value = transform_input(m, d)[row]
                    return tirx.BufferStore(half, value, [row * side + column, lane])

                return in_vectors(lanes, one)

            return sequence([store(row) for row in range(side)])

        def rows(row: ir.Expr) -> tirx.Stmt:
            def store(column: int) -> tirx.Stmt:
                def one(lane: ir.Expr) -> tirx.Stmt:
                    t = [load(half, [row * side + c, lane]) for c in range(side)]
                    value = transform_input(m, t)[column]
                    return tirx.BufferStore(self.buffer, value, [row * side + column, at, lane])

                return in_vectors(lanes, one)

            return sequence([store(column) for column in range(side)])

        body = sequence([loop("column", side, columns), loop("row", side, rows)])
        return block("transform", body, [half])


def _if(conditions: Sequence[ir.Expr], then: tirx.Stmt, otherwise: tirx.Stmt) -> tirx.Stmt:
    """Choose by a conjunction, of which nothing may be left."""
    if not conditions:
        return then
    condition = conditions[0]
    for other in conditions[1:]:
        condition = tirx.And(condition, other)
    return tirx.IfThenElse(condition, then, otherwise)
