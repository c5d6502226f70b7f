"""B of a half type in a GEMM without an instruction for it, widened to float32 panels.

    for pass over K, part of mc rows:
      for panel:
        columns[kc][nr] = float32 of the packed B                  once for all tiles of the part
        tiles of mr rows                                           as of float32 operands

In memory B stays half, as do the panels that are prefetched. A: ``computed_a``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import index, loop, over
from ....cpu.register_tile import in_vectors
from ....math.half_math import HALF_TYPES
from ...problem.gemm_view import GemmView
from .b import Panel
from .packed_weights import PackedB


def is_half(operand: ir.Expr) -> bool:
    """Whether an operand is a number of a half type, cast to float32."""
    return (
        isinstance(operand, tirx.Cast)
        and str(operand.ty.dtype) == "float32"
        and str(operand.value.ty.dtype) in HALF_TYPES
    )


class WidenedB(PackedB):
    """Packed panels of a half type, each in float32 while the tiles of a part read it.

    Parameters
    ----------
    depth
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
