"""Half-type operands of a GEMM without an instruction for them, widened to float32 panels.

    for pass over K, part of mc rows:
      rows[mc][kc] = float32 of A                                  once for all panels of the task
      for panel:
        columns[kc][nr] = float32 of the packed B                  once for all tiles of the part
        tiles of mr rows                                           as of float32 operands

A register tile reads an element of A once for a few products: conversions there would take as many
instructions as the products. In memory both stay half, as do the panels that are prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.tirx import ForKind

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import load, loads
from ....core.tir.loops import index, loop, over
from ...cpu.register_tile import in_vectors
from ...cpu.vector_loops import over_vectors
from ...index.address import known_step
from ...math.half_math import HALF_TYPES
from ..problem.gemm_view import GemmView
from .operand_a import PADDING, DirectA, RowBlock
from .operand_b import Panel
from .packed_weights import PackedB

WIDTH = 64  # elements of a vector expression


def is_half(operand: ir.Expr) -> bool:
    """Whether an operand is a number of a half type, cast to float32."""
    return (
        isinstance(operand, tirx.Cast)
        and str(operand.ty.dtype) == "float32"
        and str(operand.value.ty.dtype) in HALF_TYPES
    )


def widens_a(view: GemmView) -> bool:
    """Whether A is of a half type and contiguous along K, so that vectors of it are converted."""
    axes = [a.var for a in (*view.batch, *view.m_axes, *view.k_axes)]
    along = view.k_axes[-1].var
    found = loads(view.a)
    steps = (known_step(x.source, x.indices, along, axes) for x in found)
    return is_half(view.a) and len(found) == 1 and all(step == 1 for step in steps)


class WidenedA(DirectA):
    """Rows of a part of a task in one pass, in float32.

    Parameters
    ----------
    rows, depth : int
        Most rows of a part, and K of a pass.
    """

    def __init__(self, view: GemmView, rows: int, depth: int) -> None:
        super().__init__(view)
        self._most = rows
        outer = [index(a.extent) for a in view.k_axes[:-1]]
        shape = [index(rows), *outer, index(depth + PADDING)]
        self._buffer = declare(shape, "float32", "rows", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the rows."""
        return [self._buffer]

    def begin_part(self, rows: RowBlock) -> tirx.Stmt:
        """Convert the rows."""
        count = tirx.min(index(self._most), self.rows - rows.start)

        def row(i: ir.Expr) -> tirx.Stmt:
            def line(outer: list[ir.Expr]) -> tirx.Stmt:
                def vector(start: ir.Expr, width: int) -> tirx.Stmt:
                    def element(lane: ir.Expr) -> tirx.Stmt:
                        place = [*outer, start + lane]
                        value = self.element(rows, i, place)
                        return tirx.BufferStore(self._buffer, value, [i, *place])

                    return loop("lane", width, element, ForKind.VECTORIZED)

                return over_vectors(rows.k, WIDTH, vector)

            return over(self.view.k_axes[:-1], line)

        return loop("row", count, row)

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read a converted element; rows beyond M have a place, too."""
        return load(self._buffer, [row, *reduced])


class WidenedB(PackedB):
    """Packed panels of a half type, each in float32 while the tiles of a part read it.

    Parameters
    ----------
    depth : int
        K of a pass.
    """

    def __init__(self, view: GemmView, width: int, depth: int) -> None:
        super().__init__(view, width)
        outer = [index(a.extent) for a in view.k_axes[:-1]]
        self._wide = declare([*outer, index(depth), index(width)], "float32", "columns", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the panel."""
        return [self._wide]

    def begin_panel(self, panel: Panel) -> tirx.Stmt:
        """Convert the panel."""

        def line(outer: list[ir.Expr]) -> tirx.Stmt:
            def row(k: ir.Expr) -> tirx.Stmt:
                def element(lane: ir.Expr) -> tirx.Stmt:
                    value = super(WidenedB, self).at(panel, [*outer, k], lane)
                    return tirx.BufferStore(self._wide, value, [*outer, k, lane])

                return in_vectors(self.width, element)

            return loop("k", panel.k, row)

        return over(self.view.k_axes[:-1], line)

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the converted panel."""
        return load(self._wide, [*reduced, lane])
