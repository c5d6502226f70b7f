"""The results of a Winograd convolution: ``A^T P A`` of its products, and the epilogue.

for vector of channels:  for tile of the task:
  for column:  t[:][column] = A^T P[:, column][tile]
  for row:     acc[row][:] = A^T t[row][:]                                          registers
  results of acc, as many rows and columns as the image has         (dense/epilogue)
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence
from ...cpu.register_tile import in_vectors
from ...index.index_ranges import Ranges
from ..dense.epilogue import ConvEpilogue
from ..problem.problem import ConvProblem
from .config import WinogradConfig
from .transforms import WINDOW, transform_output


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
