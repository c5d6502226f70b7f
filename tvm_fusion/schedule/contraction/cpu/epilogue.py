"""The epilogue of a register tile on a CPU: results are stored as vectors where possible."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import is_expensive, load, loads, variables
from ....core.tir.loops import constant, index, loop, sequence, substitute, when
from ...cpu.register_tile import each, in_vectors
from ...index.estimate import operations
from ...instructions.tiles import TILE_ROW_BYTES
from ...math.vector_math import vector_math
from ..problem.epilogue.fuse import is_vector_code, store_results
from ..problem.gemm_view import GemmView
from ..problem.sum_of_products import Result, SumOfProducts
from .operands.b import Panel

MOST_INLINE = 8  # operations of a result that are unrolled for every row of a tile

Place = Callable[[ir.Expr], dict[ir.Var, ir.Expr]]


class CpuTileEpilogue:
    """The epilogue of a GEMM's tiles.

    A tile is spilled to a small buffer first where its results are long (a loop over rows shares
    their code then), not vectorizable, or fewer than the tile's columns.
    """

    def __init__(self, contraction: SumOfProducts, view: GemmView, width: int) -> None:
        self._view, self._column = view, view.n_axes[-1].var
        self._parts = len(contraction.totals)
        self._width = width // self._parts  # positions of a tile, each with all parts of a split
        if contraction.column_split is not None:
            self._column = contraction.column_split.position.var
        self._is_short = all(
            operations(r.value) <= MOST_INLINE and not is_expensive(r.value)
            for r in contraction.results
        )
        results = (replace(r, value=vector_math(r.value)) for r in contraction.results)
        self._contraction = replace(contraction, results=tuple(results))
        self._spills: dict[ir.Var, ir.Var] = {}

    def buffers(self, sums: ir.Var) -> list[ir.Var]:
        """List the buffers of a tile's epilogue."""
        return [self._spills[sums]] if sums in self._spills else []

    def tile(
        self,
        sums: ir.Var,
        panel: Panel,
        rows: int,
        place: Place,
        inside: Callable[[ir.Expr], ir.Expr] | None,
        first: ir.Expr | None,
    ) -> tirx.Stmt:
        """Store the results of a tile.

        Parameters
        ----------
        place
            Gives the axes of M at a row of the tile.
        inside
            Whether a row is below M, for a tile that may exceed it.
        first
            The row of the tile's first sums in memory, where a loop over rows reads them.
        """

        def row(i: ir.Expr, tile: ir.Var, first: ir.Expr | None = None) -> tirx.Stmt:
            stmt = self.row(tile, panel, i if first is None else first + i, place(i))
            return stmt if inside is None else when(inside(i), stmt)

        if first is not None:
            return loop("i", rows, lambda i: row(i, sums, first))
        is_whole = panel.columns == int(sums.ty.shape[1])
        vectors = [self._is_vector(r) for r in self._contraction.results]
        if is_whole and all(vectors) and self._is_short and inside is None:
            return loop(
                "i",
                rows,
                lambda i: self._row(sums, panel, i, place(i), self._width_of(sums)),
                tirx.ForKind.UNROLLED,
            )
        spill = declare([index(d) for d in sums.ty.shape], self._contraction.dtype, "tile", "local")
        self._spills[sums] = spill
        copy = each(sums, lambda i, lane: tirx.BufferStore(spill, load(sums, [i, lane]), [i, lane]))
        return sequence([copy, loop("i", rows, lambda i: row(i, spill))])

    def row(self, tile: ir.Var, panel: Panel, i: ir.Expr, rows: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Store the results of a row of a tile in memory; ``rows`` are the axes of M there."""
        return self._row(tile, panel, i, rows, panel.columns)

    def lines(self, panel: Panel, rows: dict[ir.Var, ir.Expr]) -> list[tuple[ir.Expr, bool]]:
        """List an element of each cache line that a row of a tile reads or stores, and whether."""
        found: list[tuple[ir.Expr, bool]] = []

        def add(buffer: ir.Var, indices: Sequence[ir.Expr], is_write: bool) -> None:
            if any(map(loads, indices)):
                return  # an index that is read, beyond the last column maybe
            size = DataType(str(buffer.ty.dtype)).itemsize
            for lane in range(0, self._width, max(1, TILE_ROW_BYTES // size)):
                where = self._place(panel, rows, panel.number * self._width + lane)
                axes = dict(zip(self._axes, where, strict=True))
                found.append((load(buffer, [substitute(i, axes) for i in indices]), is_write))

        for result in self._contraction.results:
            for x in loads(result.value):
                # Other operands, such as a bias, are in the level-1 cache.
                if {self._column, *rows} <= variables(x):
                    add(x.source, x.indices, False)
            add(result.buffer, result.indices, True)
        return found

    def _width_of(self, sums: ir.Var) -> int:
        return int(sums.ty.shape[1])

    def _row(
        self,
        tile: ir.Var,
        panel: Panel,
        i: ir.Expr,
        rows: dict[ir.Var, ir.Expr],
        columns: int | None,
    ) -> tirx.Stmt:
        stmts = []
        columns = columns if columns is None else columns // self._parts
        first = panel.number * self._width
        for result in self._contraction.results:
            condition = result.condition
            if self._is_vector(result):
                result = replace(result, condition=None)
            one = replace(self._contraction, results=(result,))

            def store(lane: ir.Expr, one: SumOfProducts = one) -> tirx.Stmt:
                where = self._place(panel, rows, first + lane)
                slots = [lane + part * self._width for part in range(self._parts)]
                return store_results(one, where, *(load(tile, [i, slot]) for slot in slots))

            if columns is None:
                count = index(self._view.n_axes[-1].extent) - first
                stmt = loop("lane", count, store)
            elif self._is_vector(result):
                stmt = in_vectors(columns, store)
            else:
                stmt = loop("lane", columns, store)
            if condition is not None and result.condition is None:
                place = dict(zip(self._axes, self._place(panel, rows, first), strict=True))
                stmt = when(substitute(condition, place), stmt)
            stmts.append(stmt)
        return sequence(stmts)

    @property
    def _axes(self) -> list[ir.Var]:
        return [a.var for a in self._contraction.stage.axes]

    def _place(self, panel: Panel, rows: dict[ir.Var, ir.Expr], column: ir.Expr) -> list[ir.Expr]:
        known = {**panel.place, **rows, self._column: column}
        return [known.get(axis, index(0)) for axis in self._axes]

    def _is_vector(self, result: Result) -> bool:
        """Whether a vector of a result needs no branches between its lanes."""
        free = replace(result, condition=None)
        return all(is_vector_code(free, t) for t in self._contraction.totals) and self._is_uniform(
            result.condition
        )

    def _is_uniform(self, condition: ir.Expr | None) -> bool:
        """Whether a condition holds for all columns of a panel or for none."""
        if condition is None:
            return True
        if isinstance(condition, tirx.And):
            return self._is_uniform(condition.a) and self._is_uniform(condition.b)
        if self._column not in variables(condition):
            return True
        bound: int | None = None
        if isinstance(condition, tirx.LE) and condition.b.same_as(self._column):
            bound = constant(condition.a)
        if isinstance(condition, tirx.LT) and condition.a.same_as(self._column):
            bound = constant(condition.b)
        return bound is not None and bound % self._width == 0
