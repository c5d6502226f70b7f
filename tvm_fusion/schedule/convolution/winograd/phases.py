"""Both ends of Winograd's algorithm: tiles of the image are transformed, tiles of results back."""

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence, substitute
from ...cpu.register_tile import in_vectors
from ...index.index_ranges import Ranges
from ...math.vector_math import makes_vectors, vector_math
from ..dense.epilogue import ConvEpilogue
from ..problem.problem import ConvProblem
from .choice import WinogradWindow
from .config import WinogradConfig
from .transforms import WINDOW, transform_input, transform_output

# The transformed image of a task of a Winograd convolution: ``V = B^T d B``.
#
# for block of c:  for tile of the task:
#   d[m + 2][m + 2] = elements of the image, zeros in its padding              where it has some
#   for column:  t[:][column] = B^T d[:][column]                        vectors of a block of c
#   for row:     V[row, :][block, tile] = B^T t[row][:]


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

        stmts, done = [], 0
        block = self._problem.block
        for end, value in self._problem.image.parts or ((whole * block, self._value),):
            size, self._value = end // block - done, vector_math(value)

            def one(n: ir.Expr, done: int = done, size: int = size) -> tirx.Stmt:
                self._ranges.bind(n, size)
                return blocks(done + n if done else n, block)

            if size:
                stmts.append(loop("block", size, one))
            done += size
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
        if not isinstance(self._value, ir.TensorLoad):
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


# The results of a Winograd convolution: ``A^T P A`` of its products, and the epilogue.
#
# for vector of channels:  for tile of the task:
#   for column:  t[:][column] = A^T P[:, column][tile]
#   for row:     acc[row][:] = A^T t[row][:]                                          registers
#   results of acc, as many rows and columns as the image has         (dense/epilogue)


class WinogradResults:
    """Writes results.

    Parameters
    ----------
    products
        ``P[f][tile][channel]``.
    """

    def __init__(
        self, problem: ConvProblem, config: WinogradConfig, products: ir.Var, ranges: Ranges
    ) -> None:
        self._problem, self._config = problem, config
        self._products, self._ranges = products, ranges
        self._side = config.m + WINDOW - 1
        self._epilogue = ConvEpilogue(problem, config.lanes)

    def write(
        self,
        task: dict,
        first_k: ir.Expr,
        vectors: int,
        is_last: bool,
        over: Callable[..., tirx.Stmt],
    ) -> tirx.Stmt:
        """Write the results of the tiles of a task, of some vectors of channels.

        Parameters
        ----------
        first_k
            The first channel; a constant in the last tile of channels.
        is_last
            Whether channels may end before they do.
        over
            Writes a loop over the tiles of the task around a body of number, row and column.
        """
        lanes = self._config.lanes

        def body(tile: ir.Expr, y: ir.Expr, x: ir.Expr) -> tirx.Stmt:
            def vector(n: ir.Expr) -> tirx.Stmt:
                self._ranges.bind(n, vectors)
                return self._tile(task, tile, y, x, n * lanes, first_k, is_last)

            if is_last:  # whose vectors differ: some channels may not exist
                return sequence([vector(index(n)) for n in range(vectors)])
            return loop("vector", vectors, vector)

        return over(body)

    def _tile(
        self,
        task: dict,
        tile: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        lane: ir.Expr,
        first_k: ir.Expr,
        is_last: bool,
    ) -> tirx.Stmt:
        """Write a vector of channels of a tile, which the image may cut."""
        problem, m = self._problem, self._config.m
        cuts = [divmod(constant(a.extent) or 1, m) for a in (problem.y, problem.x)]

        def cut(axis: int, shape: list[int]) -> tirx.Stmt:
            if axis == 2:
                rows, columns = shape
                return self._shape(task, tile, y, x, lane, first_k, is_last, (rows, columns))
            full, rest = cuts[axis]
            if not rest:
                return cut(axis + 1, [*shape, m])
            if not full:
                return cut(axis + 1, [*shape, rest])
            whole, last = (cut(axis + 1, [*shape, n]) for n in (m, rest))
            return tirx.IfThenElse((y, x)[axis] < full, whole, last)

        return cut(0, [])

    def _shape(
        self,
        task: dict,
        tile: ir.Expr,
        y: ir.Expr,
        x: ir.Expr,
        lane: ir.Expr,
        first_k: ir.Expr,
        is_last: bool,
        shape: tuple[int, int],
    ) -> tirx.Stmt:
        """Write the results of a tile of so many rows and columns."""
        problem, side, m = self._problem, self._side, self._config.m
        lanes = self._config.lanes
        rows, columns = shape
        half = local("half", [rows * side, lanes], "float32")
        acc = local("acc", [rows * columns, lanes], "float32")

        def down(column: ir.Expr) -> tirx.Stmt:
            def store(row: int) -> tirx.Stmt:
                def one(v: ir.Expr) -> tirx.Stmt:
                    p = [
                        load(self._products, [r * side + column, tile, lane + v])
                        for r in range(side)
                    ]
                    value = transform_output(m, p)[row]
                    return tirx.BufferStore(half, value, [row * side + column, v])

                return in_vectors(lanes, one)

            return sequence([store(row) for row in range(rows)])

        def across(row: int) -> list[tirx.Stmt]:
            def store(column: int) -> tirx.Stmt:
                def one(v: ir.Expr) -> tirx.Stmt:
                    t = [load(half, [row * side + c, v]) for c in range(side)]
                    value = transform_output(m, t)[column]
                    return tirx.BufferStore(acc, value, [row * columns + column, v])

                return in_vectors(lanes, one)

            return [store(column) for column in range(columns)]

        def place(row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
            axes = {a.var: index(0) for a in problem.contraction.stage.axes}
            return {
                **axes,
                **task,
                problem.y.var: y * m + row,
                problem.x.var: x * m + column,
            }

        results, buffers = self._epilogue.tile(
            acc, shape, first_k + lane, is_last, place, self._ranges
        )
        stmts = [loop("column", side, down)]
        stmts += [s for row in range(rows) for s in across(row)]
        return block("results", sequence([*stmts, results]), [half, acc, *buffers])
