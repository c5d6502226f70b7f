"""Extents that are expressions get symbols of their own while a contraction is scheduled.

TVM's analysis of loops splits a fused loop by constants and by symbols: what it knows of
``i // n`` for ``i < 3 * n`` it does not know of ``i // (m + 2)`` for ``i < 3 * m + 6``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.program import Axis
from ..loops import constant, index
from .operands import SumOfProducts
from .prim_func import Apart


class Symbols:
    """Symbols of extents, alike for equal ones."""

    def __init__(self) -> None:
        self._known: list[tuple[ir.Var, ir.Expr]] = []

    def contraction(self, original: SumOfProducts) -> SumOfProducts:
        """Name the extents of a contraction."""
        stage = original.stage
        axes, reduce = self._axes(stage.axes), self._axes(stage.reduce)
        return replace(original, stage=replace(stage, axes=axes, reduce=reduce))

    def apart(self, original: Apart) -> Apart:
        """Name the extents of a factor that has a buffer of its own."""
        axes, old = self._axes(original.axes), original.buffer
        buffer = declare([index(a.extent) for a in axes], str(old.ty.dtype), old.name)
        return replace(original, axes=axes, buffer=buffer)

    def expand(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Put the extents back in place of the parameters that stand for them."""
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
