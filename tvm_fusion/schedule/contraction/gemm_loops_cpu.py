"""Loops of a GEMM on a CPU around a register tile (see gemm_cpu for the whole kernel).

A task makes some panels of columns of one block of rows. It passes over K in steps of kc, so that a
panel stays in the level-2 cache, and keeps partial sums between passes in a buffer of its own.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load
from ...core.loops import (
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
from ..cpu import PARALLEL_WORK
from ..register_tile import accumulate, each, in_vectors
from .epilogue_cpu import TileEpilogue
from .gemm_config_cpu import CpuGemmConfig
from .operand_a_cpu import OperandA, RowBlock
from .operand_b_cpu import OperandB, Panel, by_columns
from .vnni_compensation import Compensation


class GemmLoops:
    """The loops around a register tile, from tasks inwards.

    Parameters
    ----------
    config : CpuGemmConfig
        The configuration.
    a, b : OperandA, OperandB
        How the operands are read.
    """

    def __init__(self, config: CpuGemmConfig, a: OperandA, b: OperandB) -> None:
        contraction, view, sizes, dot = config.contraction, config.view, config.sizes, config.dot
        self._contraction, self._view, self._sizes = contraction, view, sizes
        self._a, self._b, self._lanes = a, b, config.lanes
        self._accumulate = accumulate if dot is None else dot.accumulate
        self._compensation = (
            Compensation(dot, view, sizes.block_m) if dot is not None and dot.offset else None
        )
        self._m = a.rows
        self._n = index(view.n_axes[-1].extent)
        self._k = index(view.k_axes[-1].extent)
        cut = len(view.k_axes) == 1 and constant(self._k) != sizes.kc
        self._passes = _passes(self._k, sizes.kc) if cut else index(1)
        self._partial = declare(
            [index(sizes.block_m), index(sizes.panels * sizes.nr)],
            contraction.dtype,
            "partial",
            "local",
        )
        self._finish = TileEpilogue(contraction, view, sizes.nr)

    def tasks(self) -> tirx.For:
        """Write the parallel loop; consecutive tasks share columns, so that a thread reuses B."""
        view, sizes = self._view, self._sizes
        around = (*view.batch, *view.n_axes[:-1])
        panels = ceildiv(self._n, sizes.nr)
        chunks = ceildiv(panels, sizes.panels)
        blocks = ceildiv(self._m, sizes.block_m)
        extents = [*(a.extent for a in around), chunks, blocks]

        def task(number: ir.Expr) -> tirx.Stmt:
            *place, chunk, row_block = coordinates(number, extents)
            where = dict(zip((a.var for a in around), place, strict=True))
            buffers = [*self._a.buffers(), *self._b.buffers()]
            if constant(self._passes) != 1:
                buffers = [*buffers, self._partial]
            first = chunk * sizes.panels
            count = _block_of(sizes.panels, panels, first)

            start = row_block * sizes.block_m
            whole = RowBlock(where, start, index(0), index(0), self._k)

            def one_pass(number: ir.Expr) -> tirx.Stmt:
                first_k = number * sizes.kc
                k = _block_of(sizes.kc, self._k, first_k)
                if constant(self._passes) == 1:
                    k = self._k
                panel = Panel(where, first, index(0), first_k, k, None)

                def part(n: ir.Expr) -> tirx.Stmt:
                    slot = n * sizes.mc
                    rows = RowBlock(where, start + slot, slot, first_k, k)
                    return loop("panel", count, lambda n: self._panel(rows, panel, n, number))

                parts = loop("part", sizes.block_m // sizes.mc, part)
                return _both(self._b.fill(panel, count), parts)

            begin = self._zeros()
            if self._compensation is not None:

                def row_place(i: ir.Expr) -> dict[ir.Var, ir.Expr]:
                    return {**where, **self._a.row_place(tirx.min(start + i, self._m - 1))}

                buffers = [*buffers, self._compensation.buffer]
                begin = [self._compensation.fill(row_place), *begin]
            body = sequence([*begin, loop("pass", self._passes, one_pass)])
            return block("task", _both(self._a.fill(whole), body), buffers)

        work = constant(product([*extents, sizes.block_m * sizes.nr, self._k]))
        return tasks(product(extents), task, work is None or work >= PARALLEL_WORK)

    def _zeros(self) -> list[tirx.Stmt]:
        """Clear partial sums; outside of the passes, where TVM then allocates the buffer, too."""
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
        """Give the initial value of the accumulators of a row of the task."""
        if self._compensation is None:
            return self._contraction.initial
        return load(self._compensation.buffer, [row])

    def _panel(self, rows: RowBlock, first: Panel, n: ir.Expr, pass_: ir.Expr) -> tirx.Stmt:
        """Write one panel; the last one may be narrower."""
        one = replace(first, number=first.number + n, slot=n)
        return by_columns(
            self._view,
            self._sizes.nr,
            one.number,
            lambda columns: self._tiles(rows, replace(one, columns=columns), pass_),
        )

    def _tiles(self, rows: RowBlock, panel: Panel, pass_: ir.Expr) -> tirx.Stmt:
        """Write all tiles of some rows; the last one may have fewer."""
        sizes = self._sizes
        size = constant(self._m)
        most = sizes.mc // sizes.mr
        first = simplified(tirx.floordiv(rows.start, index(sizes.mr)))
        full = tirx.floordiv(self._m, index(sizes.mr))
        full = full if size is None else index(size // sizes.mr)
        here = tirx.min(index(most), full - first)
        if size is not None and size % sizes.block_m == 0:
            here = index(most)  # no block has fewer

        def tile(number: ir.Expr, height: int, clamp: bool) -> tirx.Stmt:
            offset = number * sizes.mr
            return self._tile(rows, panel, offset, height, clamp, pass_)

        stmts: list[tirx.Stmt] = []
        if size is None or size >= sizes.mr:
            # Rows beyond the last full tile make the count negative: no trips.
            stmts.append(loop("tile", here, lambda n: tile(n, sizes.mr, False)))
        if size is None:
            last = full * sizes.mr - rows.start
            inside = tirx.And(last >= 0, last < sizes.mc)
            inside = tirx.And(inside, full * sizes.mr < self._m)
            stmts.append(when(inside, tile(tirx.floordiv(last, sizes.mr), sizes.mr, True)))
        elif size % sizes.mr:
            last = full - first
            rest = tile(last, size % sizes.mr, False)
            inside = tirx.And(last >= 0, last < most)
            if size <= sizes.mc:
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
        """Write one tile: clear or load partial sums, accumulate, epilogue or store them."""
        view, sizes = self._view, self._sizes
        width = sizes.nr
        if panel.columns is not None:
            narrow = panel.columns
            width = -(-narrow // self._lanes) * self._lanes if self._b.pads else narrow
        acc = local("acc", [height, width], self._contraction.dtype)

        def summing(around: list[ir.Expr]) -> tirx.Stmt:
            def prefetched(k: ir.Expr) -> ir.Expr | None:
                step = simplified(tirx.floordiv(offset, index(sizes.mr)))
                for axis, i in zip(view.k_axes, [*around, k], strict=True):
                    step = step * (panel.k if i is k else axis.extent) + i
                return self._b.prefetch(panel, step, sizes.mc // sizes.mr)

            return self._accumulate(
                acc,
                panel.k,
                lambda i, k: self._a.at(rows, offset + i, [*around, k], clamp),
                lambda k, lane: self._b.at(panel, [*around, k], lane),
                prefetched,
            )

        summed = over(view.k_axes[:-1], summing)

        def kept(i: ir.Expr, lane: ir.Expr) -> list[ir.Expr]:
            return [rows.slot + offset + i, panel.slot * sizes.nr + lane]

        begin = each(
            acc,
            lambda i, lane: tirx.BufferStore(acc, self._initial(rows.slot + offset + i), [i, lane]),
        )
        finish = self._finish.tile(
            acc,
            panel,
            height,
            lambda i: self._a.row_place(rows.start + offset + i),
            (lambda i: rows.start + offset + i < self._m) if clamp else None,
        )
        if constant(self._passes) != 1:
            begin = each(
                acc,
                lambda i, lane: tirx.BufferStore(
                    acc, load(self._partial, kept(i, lane)), [i, lane]
                ),
            )
            keep = each(
                acc,
                lambda i, lane: tirx.BufferStore(
                    self._partial, load(acc, [i, lane]), kept(i, lane)
                ),
            )
            finish = tirx.IfThenElse(pass_ < self._passes - 1, keep, finish)
        return block("tile", sequence([begin, summed, finish]), [acc, *self._finish.buffers(acc)])


def _both(first: tirx.Stmt | None, second: tirx.Stmt) -> tirx.Stmt:
    return second if first is None else sequence([first, second])


def _passes(k: ir.Expr, kc: int) -> ir.Expr:
    """Count the passes over K; where K is empty, one pass stores the zeros."""
    count = ceildiv(k, kc)
    return count if constant(count) is not None else tirx.max(count, index(1))


def _block_of(size: int, extent: ir.Expr, start: ir.Expr) -> ir.Expr:
    """Give the length of a block of an axis: the last one may be shorter."""
    whole = constant(extent)
    if whole is not None and whole % size == 0:
        return index(size)
    if whole is not None and whole < size:
        return index(whole)
    return tirx.min(index(size), extent - start)
