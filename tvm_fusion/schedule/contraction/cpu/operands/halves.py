"""B of a half type in a GEMM without an instruction for it, widened to float32 panels.

    for pass over K, part of mc rows:
      for panel:
        first tile of mr rows: columns[k][nr] = float32 of the packed B, before its products
        others                                                     as of float32 operands

In memory B stays half, as do the panels that are prefetched. A: ``computed_a``.
"""

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
    is_single : bool
        Whether tasks have one panel: all of their parts read it.
    """

    def __init__(self, view: GemmView, width: int, depth: int, is_single: bool) -> None:
        super().__init__(view, width)
        self.is_single = is_single
        outer = [index(a.extent) for a in view.k_axes[:-1]]
        self._wide = declare([*outer, index(depth), index(width)], "float32", "columns", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the panel."""
        return [self._wide]

    def fill(self, panel: Panel, count: ir.Expr) -> tirx.Stmt | None:
        """Convert the only panel."""
        return self.convert(panel) if self.is_single else None

    def begin_step(self, panel: Panel, reduced: Sequence[ir.Expr]) -> tirx.Stmt | None:
        """Convert a row of one of several panels."""
        return None if self.is_single else self._row(panel, reduced)

    def convert(self, panel: Panel) -> tirx.Stmt:
        """Convert a panel."""

        def line(outer: list[ir.Expr]) -> tirx.Stmt:
            return loop("k", panel.k, lambda k: self._row(panel, [*outer, k]))

        return over(self.view.k_axes[:-1], line)

    def _row(self, panel: Panel, reduced: Sequence[ir.Expr]) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            value = super(WidenedB, self).at(panel, reduced, lane)
            return tirx.BufferStore(self._wide, value, [*reduced, lane])

        return in_vectors(self.width, element)

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the converted panel."""
        return load(self._wide, [*reduced, lane])
