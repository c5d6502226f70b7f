"""Matrix products on a CPU: tiles of sums in registers, over panels of packed columns.

A task computes some panels of columns for one block of rows. It passes over the terms as long as a
panel stays in the level-2 cache, and keeps sums between two passes in a buffer of its own.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.expressions import load
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
    simplified,
    tasks,
    when,
)
from ..register_tile import accumulate, each, in_vectors
from .blocking import Blocking
from .dot_products import DotProduct, RowSums
from .epilogue_cpu import Finish
from .gemm_view import Roles
from .operand_a_cpu import Left, RowBlock
from .operand_b_cpu import Panel, Vectors, by_columns
from .operands import SumOfProducts


class TileLoops:
    """The loops around a tile, from tasks inwards.

    Parameters
    ----------
    contraction : SumOfProducts
        What is summed, and its results.
    roles : Roles
        Of its axes.
    sizes : Blocking
        Of tiles and blocks.
    left, right : Left, Vectors
        How the factors are read.
    lanes : int
        Of a vector of sums.
    dot : DotProduct or None
        The instruction that adds several terms at once.
    """

    def __init__(
        self,
        contraction: SumOfProducts,
        roles: Roles,
        sizes: Blocking,
        left: Left,
        right: Vectors,
        lanes: int,
        dot: DotProduct | None,
    ) -> None:
        self._contraction, self._roles, self._sizes = contraction, roles, sizes
        self._left, self._right, self._lanes = left, right, lanes
        self._accumulate = accumulate if dot is None else dot.accumulate
        self._row_sums = (
            RowSums(dot, roles, sizes.block) if dot is not None and dot.offset else None
        )
        self._rows = left.rows
        self._columns = index(roles.columns[-1].extent)
        self._terms = index(roles.reduce[-1].extent)
        cut = len(roles.reduce) == 1 and constant(self._terms) != sizes.terms
        self._passes = _passes(self._terms, sizes.terms) if cut else index(1)
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
            buffers = [*self._left.buffers(), *self._right.buffers()]
            if constant(self._passes) != 1:
                buffers = [*buffers, self._partial]
            first = chunk * sizes.panels
            count = _piece(sizes.panels, panels, first)

            start = row_block * sizes.block
            whole = RowBlock(where, start, index(0), index(0), self._terms)

            def one_pass(number: ir.Expr) -> tirx.Stmt:
                first_term = number * sizes.terms
                terms = _piece(sizes.terms, self._terms, first_term)
                if constant(self._passes) == 1:
                    terms = self._terms
                panel = Panel(where, first, index(0), first_term, terms, None)

                def part(n: ir.Expr) -> tirx.Stmt:
                    slot = n * sizes.rows
                    rows = RowBlock(where, start + slot, slot, first_term, terms)
                    return loop("panel", count, lambda n: self._panel(rows, panel, n, number))

                parts = loop("part", sizes.block // sizes.rows, part)
                return _both(self._right.fill(panel, count), parts)

            begin = self._zeros()
            if self._row_sums is not None:

                def row_place(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
                    return {**where, **self._left.row_place(tirx.min(start + i, self._rows - 1))}

                buffers = [*buffers, self._row_sums.buffer]
                begin = [self._row_sums.fill(row_place), *begin]
            body = sequence([*begin, loop("pass", self._passes, one_pass)])
            return block("task", _both(self._left.fill(whole), body), buffers)

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
        """Tell what the sums of a row of the task start from."""
        if self._row_sums is None:
            return self._contraction.initial
        return load(self._row_sums.buffer, [row])

    def _panel(self, rows: RowBlock, first: Panel, n: ir.Expr, pass_: ir.Expr) -> tirx.Stmt:
        """One panel of columns, the last of which may be narrower."""
        one = replace(first, number=first.number + n, slot=n)
        return by_columns(
            self._roles,
            self._sizes.width,
            one.number,
            lambda columns: self._tiles(rows, replace(one, columns=columns), pass_),
        )

    def _tiles(self, rows: RowBlock, panel: Panel, pass_: ir.Expr) -> tirx.Stmt:
        """All tiles of some rows; the last one may be lower."""
        sizes = self._sizes
        size = constant(self._rows)
        most = sizes.rows // sizes.height
        first = simplified(tirx.floordiv(rows.start, index(sizes.height)))
        full = tirx.floordiv(self._rows, index(sizes.height))
        full = full if size is None else index(size // sizes.height)
        here = tirx.min(index(most), full - first)
        if size is not None and size % sizes.block == 0:
            here = index(most)  # no block has fewer

        def tile(number: ir.Expr, height: int, clamp: bool) -> tirx.Stmt:
            offset = number * sizes.height
            return self._tile(rows, panel, offset, height, clamp, pass_)

        stmts: list[tirx.Stmt] = []
        if size is None or size >= sizes.height:
            # Rows beyond the last full tile make the piece negative: no trips.
            stmts.append(loop("tile", here, lambda n: tile(n, sizes.height, False)))
        if size is None:
            last = full * sizes.height - rows.start
            inside = tirx.And(last >= 0, last < sizes.rows)
            inside = tirx.And(inside, full * sizes.height < self._rows)
            stmts.append(when(inside, tile(tirx.floordiv(last, sizes.height), sizes.height, True)))
        elif size % sizes.height:
            last = full - first
            rest = tile(last, size % sizes.height, False)
            inside = tirx.And(last >= 0, last < most)
            if size <= sizes.rows:
                inside = tirx.const(True)
            stmts.append(when(inside, rest))
        return sequence(stmts)

    def _tile(
        self,
        rows: RowBlock,
        panel: Panel,
        offset: ir.Expr,
        height: int,
        clamp: bool,
        pass_: ir.Expr,
    ) -> tirx.Stmt:
        """One tile: start or go on, sum, finish or keep."""
        roles, sizes = self._roles, self._sizes
        width = sizes.width
        if panel.columns is not None:
            narrow = panel.columns
            width = -(-narrow // self._lanes) * self._lanes if self._right.pads else narrow
        sums = local("sums", [height, width], self._contraction.dtype)

        def summing(around: list[ir.Expr]) -> tirx.Stmt:
            def next_panel(k: ir.Expr) -> ir.Expr | None:
                step = simplified(tirx.floordiv(offset, index(sizes.height)))
                for axis, i in zip(roles.reduce, [*around, k], strict=True):
                    step = step * (panel.terms if i is k else axis.extent) + i
                return self._right.ahead(panel, step, sizes.rows // sizes.height)

            return self._accumulate(
                sums,
                panel.terms,
                lambda i, k: self._left.at(rows, offset + i, [*around, k], clamp),
                lambda k, lane: self._right.at(panel, [*around, k], lane),
                next_panel,
            )

        summed = over(roles.reduce[:-1], summing)

        def kept(i: ir.Expr, lane: ir.Expr) -> list[ir.Expr]:
            return [rows.slot + offset + i, panel.slot * sizes.width + lane]

        begin = each(
            sums,
            lambda i, lane: tirx.BufferStore(
                sums, self._initial(rows.slot + offset + i), [i, lane]
            ),
        )
        finish = self._finish.tile(
            sums,
            panel,
            height,
            lambda i: self._left.row_place(rows.start + offset + i),
            (lambda i: rows.start + offset + i < self._rows) if clamp else None,
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


def _both(first: tirx.Stmt | None, second: tirx.Stmt) -> tirx.Stmt:
    return second if first is None else sequence([first, second])


def _passes(terms: ir.Expr, at_once: int) -> ir.Expr:
    """Count the passes over the terms; one that finds none stores the sums, which are zeros."""
    count = ceildiv(terms, at_once)
    return count if constant(count) is not None else tirx.max(count, index(1))


def _piece(size: int, extent: ir.Expr, start: ir.Expr) -> ir.Expr:
    """Length of a piece of an axis: the last one may be shorter."""
    whole = constant(extent)
    if whole is not None and whole % size == 0:
        return index(size)
    if whole is not None and whole < size:
        return index(whole)
    return tirx.min(index(size), extent - start)
