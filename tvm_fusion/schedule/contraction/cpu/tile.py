"""A register tile of a GEMM on a CPU: accumulators over a pass of K, then the epilogue.

    acc[mr][nr] = initial value, or the partial sums of the pass before
    for k of the pass:  acc += a[mr] * b[nr], or dot products of some k
    the last pass:  epilogue                               (epilogue)
    others:         partial sums, of a task

With offset bytes (VNNI of signed ones), initial values make up for the offset, by row.
"""

from collections.abc import Callable

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    index,
    loop,
    prefetch,
    product,
    sequence,
    simplified,
    substitute,
    when,
)
from ...cpu.register_tile import in_vectors
from ...cpu.tile_block import TileBlock, heights_of
from ...instructions.tiles import TILE_ROWS, configure, keep_extents, release, tile_config
from ..problem.gemm_view import GemmView
from .accumulators import Accumulators, TileAccumulators, TilePlace, VectorAccumulators, first_of
from .config import CpuGemmConfig
from .dot_products import DotProduct, WordProduct
from .epilogue import CpuTileEpilogue
from .operands.a import OperandA, RowBlock
from .operands.b import OperandB, Panel
from .operands.halves import WidenedB
from .operands.tiles import TileRows
from .tile_product import TileProduct


class GemmTile:
    """Register tiles, and what a task keeps for them.

    Parameters
    ----------
    a, b : OperandA, OperandB
        How the operands are read.
    passes
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

    def whole(self, rows: RowBlock, panel: Panel, count: ir.Expr, pass_: ir.Expr) -> tirx.Stmt:
        """Write the loop over the tiles that have all rows.

        Tile registers are stored, and the epilogue of a tile is done among the products of the
        next one: the units of tiles and of vectors work at once, and the results' cache lines are
        asked for meanwhile.
        """
        mr = self._sizes.mr
        has_steps = bool(constant(product([a.extent for a in self._view.k_axes])))
        is_late = self._tiles is not None and self._sizes.mc > mr and has_steps

        def tile(number: ir.Expr) -> tirx.Stmt:
            return self.stmt(rows, panel, number * mr, mr, False, pass_, is_late)

        if isinstance(self._b, WidenedB) and not self._b.is_single:
            return self._converting(rows, panel, count, pass_, self._b)
        tiles = loop("tile", count, tile)
        if not is_late:
            return tiles
        last = (count - 1) * mr
        row = self._late_row(rows, panel, last)
        there = tirx.And(count > 0, pass_.equal(self._passes - 1))
        return sequence([tiles, when(there, loop("i", mr, row))])

    def _converting(
        self, rows: RowBlock, panel: Panel, count: ir.Expr, pass_: ir.Expr, b: WidenedB
    ) -> tirx.Stmt:
        """Write the same of a panel that the first tile converts, or its own loop."""
        mr = self._sizes.mr
        first = self.stmt(rows, panel, index(0), mr, False, pass_, is_first=True)

        def tile(number: ir.Expr) -> tirx.Stmt:
            return self.stmt(rows, panel, (number + 1) * mr, mr, False, pass_)

        tiles = sequence([first, loop("tile", simplified(count - 1), tile)])
        known = constant(count)
        return tiles if known else tirx.IfThenElse(count > 0, tiles, b.convert(panel))

    def stmt(
        self,
        rows: RowBlock,
        panel: Panel,
        offset: ir.Expr,
        height: int,
        clamp: bool,
        pass_: ir.Expr,
        is_late: bool = False,
        is_first: bool = False,
    ) -> tirx.Stmt:
        """Write one tile: clear or load partial sums, accumulate, epilogue or store them.

        Parameters
        ----------
        is_late
            Whether its epilogue comes later, and that of the tile before it is done beside it.
        is_first : bool
            Whether its steps prepare what they read of the panel.
        """
        place = TilePlace(rows, panel, offset, height, self._width(panel), clamp, self._sizes)
        sums = self._accumulators(place, is_first)

        def kept(i: ir.Expr, lane: ir.Expr) -> ir.TensorLoad:
            place = [rows.slot + offset + i, panel.slot * self._sizes.nr + lane]
            return load(self._partial, place)

        begin = sums.clear(lambda i: self._initial(rows.slot + offset + i))
        if is_late:
            assert isinstance(sums, TileAccumulators)
            finish, products = sums.keep(), sums.accumulate(self._beside(sums, place, pass_))
        else:
            products = sums.accumulate()
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
        body = sums.around(sequence([begin, products, finish]))
        if (prepared := self._a.begin_tile(rows, offset, height)) is not None:
            body = sequence([when(panel.slot.equal(0), prepared), body])
        return block("tile", body, [*sums.buffers, *self._finish.buffers(sums.buffer)])

    def _width(self, panel: Panel) -> int:
        """Count the columns of a panel that are computed."""
        if panel.columns is None:
            return self._sizes.nr
        narrow = panel.columns
        return -(-narrow // self._lanes) * self._lanes if self._b.pads else narrow

    def _beside(
        self, sums: TileAccumulators, place: TilePlace, pass_: ir.Expr
    ) -> Callable[[ir.Expr], tirx.Stmt]:
        """Write what a step of K does of the epilogue, in the last pass: some rows."""
        rows, panel, offset, mr = place.rows, place.panel, place.offset, self._sizes.mr
        steps = sums.steps
        known = constant(steps)
        count = simplified(ceildiv(index(mr), steps))
        late = self._late_row(rows, panel, offset - mr)

        def step(number: ir.Expr) -> tirx.Stmt:
            def row(n: ir.Expr) -> tirx.Stmt:
                i = number * count + n
                ahead = self._finish.lines(panel, self._a.row_place(rows.start + offset + i))
                asked = [prefetch(x, 1, is_write) for x, is_write in ahead]
                stmt = sequence([*asked, when(offset > 0, late(i))])
                whole = known is not None and mr % known == 0
                return stmt if whole else when(i < mr, stmt)

            return when(pass_.equal(self._passes - 1), loop("row", count, row))

        return step

    def _late_row(
        self, rows: RowBlock, panel: Panel, offset: ir.Expr
    ) -> Callable[[ir.Expr], tirx.Stmt]:
        """Write the epilogue of a row of a tile that is in memory."""
        first = first_of(self._stored, offset, self._sizes)

        def row(i: ir.Expr) -> tirx.Stmt:
            place = self._a.row_place(rows.start + offset + i)
            return self._finish.row(self._stored, panel, first + i, place)

        return row

    def _begin(self, pass_: ir.Expr, first: tirx.Stmt, later: tirx.Stmt) -> tirx.Stmt:
        """Begin a tile of several passes."""
        return later if self._tiles is None else tirx.IfThenElse(pass_.equal(0), first, later)

    def _accumulators(self, place: TilePlace, is_first: bool) -> Accumulators:
        """Choose where the sums of a tile are while they are computed."""
        dtype, operands = self._contraction.dtype, (self._a, self._b)
        if self._blocks is not None:
            return self._blocks.accumulators(self._view, place, self._a, self._b)
        if self._tiles is None:
            dot = self._dot if isinstance(self._dot, DotProduct) else None
            return VectorAccumulators(self._view, place, dtype, operands, dot, is_first)
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
