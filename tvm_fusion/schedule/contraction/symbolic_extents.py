"""Replace extents that are expressions by symbols while TVM schedules a contraction.

TVM's loop analysis splits a fused loop by constants and by symbols: what it proves of
``i // n`` for ``i < 3 * n`` it does not prove of ``i // (m + 2)`` for ``i < 3 * m + 6``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ..._tvm.buffer import declare
from ...core.loops import constant, index
from ...program.stage import Axis
from .operands import SumOfProducts
from .prim_func import MaterializedOperand


class SymbolicExtents:
    """Symbols of extents; equal extents share one."""

    def __init__(self) -> None:
        self._known: list[tuple[ir.Var, ir.Expr]] = []

    def contraction(self, original: SumOfProducts) -> SumOfProducts:
        """Replace the extents of a contraction by symbols."""
        stage = original.stage
        axes, reduce = self._axes(stage.axes), self._axes(stage.reduce)
        return replace(original, stage=replace(stage, axes=axes, reduce=reduce))

    def operand(self, original: MaterializedOperand) -> MaterializedOperand:
        """Replace the extents of a materialized operand by symbols."""
        axes, old = self._axes(original.axes), original.buffer
        buffer = declare([index(a.extent) for a in axes], str(old.ty.dtype), old.name)
        return replace(original, axes=axes, buffer=buffer)

    def expand(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Substitute the extents for the symbols."""
        used = set(func.params)
        return func.specialize({symbol: e for symbol, e in self._known if symbol in used})

    def _axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(a.var, self._symbol(a.extent)) for a in axes)

    def _symbol(self, extent: ir.Expr) -> ir.Expr:
        if constant(extent) is not None or isinstance(extent, ir.Var):
            return extent
        for symbol, known in self._known:
            if tvm_ffi.structural_equal(known, extent, map_free_vars=False):
                return symbol
        self._known.append((tirx.Var(f"extent{len(self._known)}", "int64"), index(extent)))
        return self._known[-1][0]
