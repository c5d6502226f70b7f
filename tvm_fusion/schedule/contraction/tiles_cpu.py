"""Matrix products on a CPU: tiles of sums in registers, over panels of packed columns.

A task computes some panels of columns for one block of rows. It passes over the terms as long as a
panel stays in the level-2 cache, and keeps sums between two passes in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvm import ir, tirx
from tvm.target import Target

from ..._tvm_buffer import declare
from ...device import parse
from ...foreign import SCHEDULED
from ...fusion.expressions import load
from ...fusion.program import Program
from ..cpu import PARALLEL_WORK
from ..loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    local,
    loop,
    over,
    product,
    sequence,
    substitute,
    tasks,
    when,
)
from ..register_tile import VectorUnit, accumulate, each, in_vectors
from .blocking import COPYING_ROWS, MOST_VECTORS, ROWS, Blocking, blocking
from .dot_products import DotProduct, RowSums, dot_product
from .finish import Finish
from .operands import SumOfProducts
from .panels import Packed, Panel, Vectors, packable, vectors
from .roles import Roles, side_by_side


def tiles_cpu(
    program: Program,
    contraction: SumOfProducts,
    roles: Roles,
    constants: Collection[ir.Var],
    target: Target,
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the functions that pack constants, by position among the inputs.

    Parameters
    ----------
    program : Program
        Where the contraction comes from.
    contraction : SumOfProducts
        What to make.
    roles : Roles
        Of its axes.
    constants : collection of Var
        Inputs that are known at compile time.
    target : Target
        What to make it for.
    """
    unit = VectorUnit.of(target).of_bits(tirx.const(0, contraction.dtype).ty.dtype.bits)
    is_packed = packable(contraction, roles, constants) is not None
    dot = dot_product(contraction, roles, is_packed, target)
    if dot is not None:
        roles = dot.groups(roles)
    pieces, widths = contraction.pieces, list(range(1, MOST_VECTORS + 1))
    original = roles
    if pieces is not None:
        roles = side_by_side(original, pieces, unit.lanes)
        fitting = (v for v in widths if pieces.width % (v * unit.lanes) == 0)
        widths = [pieces.count * v for v in fitting if pieces.count * v <= MOST_VECTORS]
    sizes = blocking(
        _extent(roles.rows),
        constant(roles.columns[-1].extent),
        constant(roles.reduce[-1].extent),
        _extent((*roles.batch, *roles.columns[:-1])),
        unit,
        parse(target).device.cores,
        len(roles.reduce) > 1,
        widths,
        ROWS if is_packed else COPYING_ROWS,
    )
    if pieces is not None:
        roles = side_by_side(original, pieces, sizes.width // pieces.count)
    height = _extent(roles.rows)
    is_single = height is not None and height <= sizes.height and dot is None
    right = vectors(contraction, roles, sizes.width, sizes.terms, is_single, constants)
    body = _Tiles(contraction, roles, sizes, right, unit.lanes, dot).tasks()
    body = body if dot is None else dot.around(body)
    swap = {right.source: right.buffer} if isinstance(right, Packed) else {}
    inputs = [swap.get(b, b) for b in program.inputs]
    func = tirx.PrimFunc([*inputs, *program.scalars, *program.outputs], block("root", body))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    packing = {}
    if isinstance(right, Packed):
        packing[program.inputs.index(right.source)] = right.packing()
    return func, packing


def _extent(axes) -> int | None:
    return constant(product([a.extent for a in axes]))


class _Tiles:
    """The loops around a tile, from tasks inwards."""

    def __init__(
        self,
        contraction: SumOfProducts,
        roles: Roles,
        sizes: Blocking,
        right: Vectors,
        lanes: int,
        dot: DotProduct | None,
    ) -> None:
        self._contraction, self._roles, self._sizes = contraction, roles, sizes
        self._right, self._lanes = right, lanes
        self._accumulate = accumulate if dot is None else dot.accumulate
        self._row_sums = (
            RowSums(dot, roles, sizes.block) if dot is not None and dot.offset else None
        )
        self._rows = product([a.extent for a in roles.rows])
        self._columns = index(roles.columns[-1].extent)
        self._terms = index(roles.reduce[-1].extent)
        cut = len(roles.reduce) == 1 and constant(self._terms) != sizes.terms
        self._passes = ceildiv(self._terms, sizes.terms) if cut else index(1)
        self._partial = declare(
            [index(sizes.block), index(sizes.panels * sizes.width)],
            contraction.dtype,
            "partial",
            "local",
        )
        self._finish = Finish(contraction, roles, sizes.width)

    def tasks(self) -> tirx.Stmt:
        """One parallel loop; consecutive tasks share columns, so that a thread reads its own."""
        roles, sizes = self._roles, self._sizes
        around = (*roles.batch, *roles.columns[:-1])
        panels = ceildiv(self._columns, sizes.width)
        chunks = ceildiv(panels, sizes.panels)
        blocks = ceildiv(self._rows, sizes.block)
        extents = [*(a.extent for a in around), chunks, blocks]

        def task(number: ir.Expr) -> tirx.Stmt:
            *place, chunk, row_block = coordinates(number, extents)
            where = dict(zip((a.var for a in around), place, strict=True))
            buffers = self._right.buffers()
            if constant(self._passes) != 1:
                buffers = [*buffers, self._partial]
            first = chunk * sizes.panels
            count = _piece(sizes.panels, panels, first)

            def place_of(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
                return self._row_place(tirx.min(row_block * sizes.block + i, self._rows - 1))

            def one_pass(number: ir.Expr) -> tirx.Stmt:
                return loop(
                    "panel",
                    count,
                    lambda n: self._panel(where, first + n, n, row_block, number),
                )

            body = loop("pass", self._passes, one_pass)
            begin = self._zeros()
            if self._row_sums is not None:
                buffers = [*buffers, self._row_sums.buffer]
                begin = [self._row_sums.fill(lambda i: {**where, **place_of(i)}), *begin]
            return block("task", sequence([*begin, body]), buffers)

        work = constant(product([*extents, sizes.block * sizes.width, self._terms]))
        return tasks(product(extents), task, work is None or work >= PARALLEL_WORK)

    def _zeros(self) -> list[tirx.Stmt]:
        """Begin partial sums; outside of the passes, where TVM then keeps the buffer, too."""
        if constant(self._passes) == 1:
            return []
        rows, columns = (int(d) for d in self._partial.ty.shape)
        partial = self._partial

        def row(i: ir.Expr) -> tirx.Stmt:
            return in_vectors(
                columns, lambda lane: tirx.BufferStore(partial, self._initial(i), [i, lane])
            )

        return [loop("i", rows, row)]

    def _initial(self, row: ir.Expr) -> ir.Expr:
        """Tell what the sums of a row of the block start from."""
        if self._row_sums is None:
            return self._contraction.initial
        return load(self._row_sums.buffer, [row])

    def _panel(
        self,
        where: Mapping[ir.Var, ir.Expr],
        number: ir.Expr,
        slot: ir.Expr,
        row_block: ir.Expr,
        pass_: ir.Expr,
    ) -> tirx.Stmt:
        """One panel of columns, the last of which may be narrower."""
        width = self._sizes.width
        first_term = pass_ * self._sizes.terms
        terms = _piece(self._sizes.terms, self._terms, first_term)
        if constant(self._passes) == 1:
            terms = self._terms

        def panel(columns: int | None) -> tirx.Stmt:
            one = Panel(dict(where), number, first_term, terms, columns)
            stmts = [self._right.fill(one), self._tiles(one, slot, row_block, pass_)]
            return sequence([s for s in stmts if s is not None])

        size = constant(self._columns)
        full = tirx.floordiv(self._columns, index(width)) if size is None else index(size // width)
        rest = None if size is None else size % width
        if rest == 0:
            return panel(width)
        if size is not None and size < width:
            return panel(rest)
        return tirx.IfThenElse(number < full, panel(width), panel(rest))

    def _tiles(self, panel: Panel, slot: ir.Expr, row_block: ir.Expr, pass_: ir.Expr) -> tirx.Stmt:
        """All tiles of a block of rows; the last one may be lower."""
        sizes = self._sizes
        size = constant(self._rows)
        start = row_block * sizes.block
        full = tirx.floordiv(self._rows, index(sizes.height))
        full = full if size is None else index(size // sizes.height)
        most = sizes.block // sizes.height
        here = tirx.min(index(most), full - row_block * most)
        blocks = constant(ceildiv(self._rows, sizes.block))
        if size is not None and blocks is not None and size // sizes.height == blocks * most:
            here = index(most)  # no block has fewer

        def tile(number: ir.Expr, rows: int, clamp: bool) -> tirx.Stmt:
            return self._tile(panel, slot, start, number * sizes.height, rows, clamp, pass_)

        stmts: list[tirx.Stmt] = []
        if size is None or size >= sizes.height:
            # Rows beyond the last full tile make the piece negative: no trips.
            stmts.append(loop("tile", here, lambda n: tile(n, sizes.height, False)))
        if size is None:
            last = full * sizes.height - start
            inside = tirx.And(last >= 0, last < sizes.block)
            inside = tirx.And(inside, full * sizes.height < self._rows)
            stmts.append(when(inside, tile(tirx.floordiv(last, sizes.height), sizes.height, True)))
        elif size % sizes.height:
            last = full - row_block * most
            rest = tile(last, size % sizes.height, False)
            is_last = tirx.EQ(row_block, ceildiv(self._rows, sizes.block) - 1)
            stmts.append(when(is_last, rest))
        return sequence(stmts)

    def _tile(
        self,
        panel: Panel,
        slot: ir.Expr,
        start: ir.Expr,
        offset: ir.Expr,
        rows: int,
        clamp: bool,
        pass_: ir.Expr,
    ) -> tirx.Stmt:
        """One tile: start or go on, sum, finish or keep."""
        roles, sizes = self._roles, self._sizes
        width = sizes.width
        if panel.columns is not None:
            narrow = panel.columns
            width = -(-narrow // self._lanes) * self._lanes if self._right.pads else narrow
        sums = local("sums", [rows, width], self._contraction.dtype)

        def row(i: ir.Expr) -> ir.Expr:
            number = start + offset + i
            return tirx.min(number, self._rows - 1) if clamp else number

        def left(i: ir.Expr, reduced: list[ir.Expr]) -> ir.Expr:
            *outer, last = reduced
            where = dict(panel.place)
            where.update(self._row_place(row(i)))
            terms = [*outer, panel.first_term + last]
            where.update(zip((a.var for a in roles.reduce), terms, strict=True))
            return substitute(roles.left, where)

        summed = over(
            roles.reduce[:-1],
            lambda around: self._accumulate(
                sums,
                panel.terms,
                lambda i, k: left(i, [*around, k]),
                lambda k, lane: self._right.at(panel, [*around, k], lane),
            ),
        )

        def kept(i: ir.Expr, lane: ir.Expr) -> list[ir.Expr]:
            return [offset + i, slot * sizes.width + lane]

        begin = each(
            sums, lambda i, lane: tirx.BufferStore(sums, self._initial(offset + i), [i, lane])
        )
        finish = self._finish.tile(
            sums,
            panel,
            rows,
            lambda i: self._row_place(start + offset + i),
            (lambda i: start + offset + i < self._rows) if clamp else None,
        )
        if constant(self._passes) != 1:
            begin = each(
                sums,
                lambda i, lane: tirx.BufferStore(
                    sums, load(self._partial, kept(i, lane)), [i, lane]
                ),
            )
            keep = each(
                sums,
                lambda i, lane: tirx.BufferStore(
                    self._partial, load(sums, [i, lane]), kept(i, lane)
                ),
            )
            finish = tirx.IfThenElse(pass_ < self._passes - 1, keep, finish)
        return block("tile", sequence([begin, summed, finish]), [sums, *self._finish.buffers(sums)])

    def _row_place(self, number: ir.Expr) -> dict[ir.Var, ir.Expr]:
        axes = self._roles.rows
        place = coordinates(number, [a.extent for a in axes])
        return dict(zip((a.var for a in axes), place, strict=True))


def _piece(size: int, extent: ir.Expr, start: ir.Expr) -> ir.Expr:
    """Length of a piece of an axis: the last one may be shorter."""
    whole = constant(extent)
    if whole is not None and whole % size == 0:
        return index(size)
    if whole is not None and whole < size:
        return index(whole)
    return tirx.min(index(size), extent - start)
