"""A register tile of a GEMM on a CPU: accumulators over a pass of K, then the epilogue.

    acc[mr][nr] = initial value, or the partial sums of the pass before
    for k of the pass:  acc += a[mr] * b[nr], or dot products of some k
    the last pass:  epilogue (epilogue_cpu.py)
    others:         partial sums, of a task

With offset bytes (VNNI of signed ones), initial values make up for the offset, by row.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load
from ...core.loops import block, constant, index, local, loop, over, sequence, simplified
from ..cpu.register_tile import accumulate, each, in_vectors
from .epilogue_cpu import CpuTileEpilogue
from .gemm_config_cpu import CpuGemmConfig
from .operand_a_cpu import OperandA, RowBlock
from .operand_b_cpu import OperandB, Panel
from .vnni_compensation import Compensation


class GemmTile:
    """Register tiles, and what a task keeps for them.

    Parameters
    ----------
    config : CpuGemmConfig
        The configuration.
    a, b : OperandA, OperandB
        How the operands are read.
    passes : Expr
        How many passes over K a task makes.

    Attributes
    ----------
    task_buffers : list of Var
        Buffers of a task.
    """

    def __init__(self, config: CpuGemmConfig, a: OperandA, b: OperandB, passes: ir.Expr) -> None:
        contraction, view, sizes, dot = config.contraction, config.view, config.sizes, config.dot
        self._contraction, self._view, self._sizes = contraction, view, sizes
        self._a, self._b, self._lanes, self._passes = a, b, config.lanes, passes
        self._accumulate = accumulate if dot is None else dot.accumulate
        self._compensation = (
            Compensation(dot, view, sizes.block_m) if dot is not None and dot.offset else None
        )
        self._partial = declare(
            [index(sizes.block_m), index(sizes.panels * sizes.nr)],
            contraction.dtype,
            "partial",
            "local",
        )
        self._finish = CpuTileEpilogue(contraction, view, sizes.nr)
        self.task_buffers = [] if constant(passes) == 1 else [self._partial]
        if self._compensation is not None:
            self.task_buffers.append(self._compensation.buffer)

    def begin_task(self, row_place: Callable[[ir.Expr], dict[ir.Var, ir.Expr]]) -> list[tirx.Stmt]:
        """Fill what a task keeps; ``row_place`` gives the axes at a row of it."""
        if self._compensation is None:
            return self._zeros()
        return [self._compensation.fill(row_place), *self._zeros()]

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
            (lambda i: rows.start + offset + i < self._a.rows) if clamp else None,
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
