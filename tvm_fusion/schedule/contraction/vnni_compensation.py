"""Compensation of the sign bits flipped for VNNI: multiples of the sums of A's rows."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load
from ...core.loops import index, loop, sequence, substitute
from .dot_products import DotProduct
from .gemm_view import GemmView


class Compensation:
    """The compensation of flipped sign bits: a multiple of the sums of A's rows, by task.

    Parameters
    ----------
    dot : DotProduct
        With an offset.
    view : GemmView
        The GEMM.
    rows : int
        Rows of a task.
    """

    def __init__(self, dot: DotProduct, view: GemmView, rows: int) -> None:
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
