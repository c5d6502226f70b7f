"""A register tile of a GEMM on a CPU: accumulators over a pass of K, then the epilogue.

    acc[mr][nr] = initial value, or the partial sums of the pass before
    for k of the pass:  acc += a[mr] * b[nr], or dot products of some k
    the last pass:  epilogue (below)
    others:         partial sums, of a task

With offset bytes (VNNI of signed ones), initial values make up for the offset, by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import is_expensive, load, variables
from ....core.tir.loops import block, constant, index, loop, sequence, substitute, when
from ...cpu.register_tile import each, in_vectors
from ...cpu.tile_block import TileBlock, heights_of
from ...index.estimate import operations
from ...instructions.tiles import TILE_ROWS, configure, keep_extents, release, tile_config
from ...math.vector_math import vector_math
from ..problem.epilogue.fuse import is_vector_code, store_results
from ..problem.gemm_view import GemmView
from ..problem.sum_of_products import Result, SumOfProducts
from .accumulators import Accumulators, TileAccumulators, TilePlace, VectorAccumulators
from .config import CpuGemmConfig
from .dot_products import DotProduct, WordProduct
from .operands.a import OperandA, RowBlock
from .operands.b import OperandB, Panel
from .operands.tiles import TileRows
from .tile_product import TileProduct


class GemmTile:
    """Register tiles, and what a task keeps for them.

    Parameters
    ----------
    a, b : OperandA, OperandB
        How the operands are read.
    passes : Expr
        How many passes over K a task makes.
    """

    def __init__(self, config: CpuGemmConfig, a: OperandA, b: OperandB, passes: ir.Expr) -> None:
        contraction, view, sizes, dot = config.contraction, config.view, config.sizes, config.dot
        self._contraction, self._view, self._sizes = contraction, view, sizes
        self._a, self._b, self._lanes, self._passes = a, b, config.lanes, passes
        self._dot, self._config, self._tiles = dot, tile_config(), _tiles(config)
        self._blocks = config.blocks
        self._compensation = (
            Compensation(dot, view, sizes.block_m) if dot is not None and dot.offset else None
        )
        panels = sizes.panels if self._tiles is None else 1
        self._partial = declare(
            [index(sizes.block_m), index(panels * sizes.nr)],
            contraction.dtype,
            "partial",
            "local" if self._tiles is None else "",
        )
        # Not on the stack, which TVM aligns to 16 bytes: rows of tiles would cross cache lines.
        shape = [index(2 * TILE_ROWS * len(heights_of(sizes.mr))), index(sizes.nr)]
        self._stored = declare(shape, contraction.dtype, "sums")
        self._finish = CpuTileEpilogue(contraction, view, sizes.nr)
        self.task_buffers = [] if constant(passes) == 1 else [self._partial]
        if self._compensation is not None:
            self.task_buffers.append(self._compensation.buffer)
        if self._tiles is not None:
            self.task_buffers += [self._config, self._stored]

    def begin_task(self, row_place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]]) -> list[tirx.Stmt]:
        """Fill what a task keeps; ``row_place`` gives the axes at a row of it."""
        stmts = self._zeros()
        if self._compensation is not None:
            stmts.insert(0, self._compensation.fill(row_place))
        if self._tiles is not None:
            stmts.append(configure(self._config, self._tiles.shapes()))
            stmts += [keep_extents(b) for b in self.task_buffers if b is not self._config]
        return stmts

    def end_task(self) -> list[tirx.Stmt]:
        """Give up what a task holds."""
        return [] if self._tiles is None else [release()]

    def _zeros(self) -> list[tirx.Stmt]:
        """Clear partial sums; outside of the passes, where TVM then allocates the buffer, too."""
        if constant(self._passes) == 1 or self._tiles is not None:
            return []
        rows, columns = (int(d) for d in self._partial.ty.shape)
        partial = self._partial

        def row(i: ir.Expr) -> tirx.Stmt:
            return in_vectors(
                columns, lambda lane: tirx.BufferStore(partial, self._initial(i), [i, lane])
            )

        return [loop("i", rows, row)]

    def _initial(self, row: ir.Expr) -> ir.Expr:
        """Return the initial value of the accumulators of a row of the task."""
        if self._compensation is None:
            return self._contraction.initial
        return load(self._compensation.buffer, [row])

    def stmt(
        self,
        rows: RowBlock,
        panel: Panel,
        offset: ir.Expr,
        height: int,
        clamp: bool,
        pass_: ir.Expr,
    ) -> tirx.Stmt:
        """Write one tile: clear or load partial sums, accumulate, epilogue or store them."""
        sizes = self._sizes
        width = sizes.nr
        if panel.columns is not None:
            narrow = panel.columns
            width = -(-narrow // self._lanes) * self._lanes if self._b.pads else narrow
        sums = self._accumulators(TilePlace(rows, panel, offset, height, width, clamp, sizes))

        def kept(i: ir.Expr, lane: ir.Expr) -> ir.TensorLoad:
            place = [rows.slot + offset + i, panel.slot * sizes.nr + lane]
            return load(self._partial, place)

        begin = sums.clear(lambda i: self._initial(rows.slot + offset + i))
        finish = self._finish.tile(
            sums.buffer,
            panel,
            height,
            lambda i: self._a.row_place(rows.start + offset + i),
            (lambda i: rows.start + offset + i < self._a.rows) if clamp else None,
            sums.first,
        )
        finish = sums.finish(finish)
        if constant(self._passes) != 1:
            begin = self._begin(pass_, begin, sums.load(kept))
            finish = tirx.IfThenElse(pass_ < self._passes - 1, sums.store(kept), finish)
        body = sums.around(sequence([begin, sums.accumulate(), finish]))
        return block("tile", body, [*sums.buffers, *self._finish.buffers(sums.buffer)])

    def _begin(self, pass_: ir.Expr, first: tirx.Stmt, later: tirx.Stmt) -> tirx.Stmt:
        """Begin a tile of several passes."""
        return later if self._tiles is None else tirx.IfThenElse(pass_.equal(0), first, later)

    def _accumulators(self, place: TilePlace) -> Accumulators:
        """Choose where the sums of a tile are while they are computed."""
        dtype, operands = self._contraction.dtype, (self._a, self._b)
        if self._blocks is not None:
            return self._blocks.accumulators(self._view, place, self._a, self._b)
        if self._tiles is None:
            dot = self._dot if isinstance(self._dot, DotProduct) else None
            return VectorAccumulators(self._view, place, dtype, operands, dot)
        assert isinstance(self._a, TileRows)
        operands = self._a, self._b
        return TileAccumulators(
            self._view, place, operands, self._tiles, self._config, self._stored
        )


def _tiles(config: CpuGemmConfig) -> TileBlock | None:
    """Shape the tile registers of a task; ``None`` where it uses vectors."""
    product, sizes = config.dot, config.sizes
    if not isinstance(product, TileProduct):
        return None
    heights, columns = heights_of(sizes.mr), sizes.nr // config.lanes
    return TileBlock(product.row, heights, columns, product.words)


# Compensation of the sign bits flipped for VNNI: multiples of the sums of A's rows.
class Compensation:
    """The compensation of flipped sign bits: a multiple of the sums of A's rows, by task."""

    def __init__(self, dot: WordProduct, view: GemmView, rows: int) -> None:
        self._dot, self._reduce, self._rows = dot, (*view.k_axes[:-1], dot.axis), rows
        self.buffer = declare([index(max(rows, 2))], "int32", "row_sums", "local")

    def fill(self, place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]]) -> tirx.Stmt:
        """Sum up the rows; ``place`` gives the axes of M at a row."""
        buffer, a = self.buffer, self._dot.a

        def add(i: ir.Expr, reduced: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
            value = substitute(a, {**place(i), **reduced}) * self._dot.offset
            return tirx.BufferStore(buffer, load(buffer, [i]) + value, [i])

        def axes(i: ir.Expr, depth: int, reduced: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
            if depth == len(self._reduce):
                return add(i, reduced)
            axis = self._reduce[depth]
            return loop(
                axis.var.name,
                axis.extent,
                lambda k: axes(i, depth + 1, {**reduced, axis.var: k}),
            )

        def row(i: ir.Expr) -> tirx.Stmt:
            zero = tirx.BufferStore(buffer, tirx.const(0, "int32"), [i])
            return sequence([zero, axes(i, 0, {})])

        return loop("i", self._rows, row)


# The epilogue of a register tile on a CPU: results are stored as vectors where possible.
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
        place : callable
            Gives the axes of M at a row of the tile.
        inside : callable or None
            Whether a row is below M, for a tile that may exceed it.
        first : Expr or None
            The row of the tile's first sums in memory, where a loop over rows reads them.
        """

        def row(i: ir.Expr, tile: ir.Var, first: ir.Expr | None = None) -> tirx.Stmt:
            at = i if first is None else first + i
            stmt = self._row(tile, panel, at, place(i), panel.columns)
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
