"""Packed weights of a GEMM on a CPU."""

import math
from collections.abc import Collection, Sequence

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load, loads, variables
from .....core.tir.loops import constant, index, substitute
from .....program.stage import Axis
from ...problem.functions.packing import packing_function
from ...problem.gemm_view import GemmView
from ...problem.sum_of_products import SumOfProducts
from .b import OperandB, Panel


class PackedB(OperandB):
    """Panels of a constant B, the only tensor that it reads, packed at compile time."""

    def __init__(self, view: GemmView, width: int) -> None:
        super().__init__(view, width)
        (self.source,) = {x.source for x in loads(view.b)}
        self._core = view.b
        self._casts: list[str] = []
        while isinstance(self._core, tirx.Cast):
            self._casts.append(str(self._core.ty.dtype))
            self._core = self._core.value
        self._around = (*view.batch, *view.n_axes[:-1])
        panels = math.ceil((constant(view.n_axes[-1].extent) or 1) / width)
        shape = [index(a.extent) for a in self._around] + [index(panels)]
        shape += [index(a.extent) for a in view.k_axes] + [index(width)]
        self.buffer = declare(shape, str(self._core.ty.dtype), f"{self.source.name}_packed")

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the packed constant."""
        around = [panel.place[a.var] for a in self._around]
        *outer, last = reduced
        where = [*around, panel.number, *outer, panel.first_k + last, lane]
        value: ir.Expr = load(self.buffer, where)
        for dtype in reversed(self._casts):
            value = tirx.Cast(dtype, value)
        return value

    def prefetch(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """Prefetch the next panel, a part of it in each tile, while tiles leave memory idle."""
        if tiles < 2:
            return None
        around = [panel.place[a.var] for a in self._around]
        outer = [index(0) for _ in self.view.k_axes[:-1]]
        offset = step * math.ceil(self.width / tiles)
        return load(self.buffer, [*around, panel.number + 1, *outer, panel.first_k, offset])

    def ahead(self, panel: Panel, element: ir.Expr) -> ir.Expr:
        """Return an element to prefetch of what follows a pass over K: the next one, or panel."""
        around = [panel.place[a.var] for a in self._around]
        outer = [index(0) for _ in self.view.k_axes[:-1]]
        return load(self.buffer, [*around, panel.number, *outer, panel.first_k + panel.k, element])

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs; the last panel is padded with zeros."""
        view = self.view
        column = view.n_axes[-1]
        number, lane = tirx.Var("panel", "int64"), tirx.Var("lane", "int64")
        panels = self.buffer.ty.shape[len(self._around)]
        axes = [*self._around, Axis(number, panels), *view.k_axes, Axis(lane, index(self.width))]
        position = number * self.width + lane
        value = substitute(self._core, {column.var: position})
        if (constant(column.extent) or 0) % self.width:
            zero = tirx.const(0, str(value.ty.dtype))
            value = tirx.if_then_else(position < index(column.extent), value, zero)
        return packing_function(self.source, self.buffer, axes, value)


def packable(
    contraction: SumOfProducts, view: GemmView, constants: Collection[ir.Var]
) -> ir.Var | None:
    """Return the constant that B is made of, if it reads nothing else."""
    sources = {x.source for x in loads(view.b)}
    axes = (*view.batch, *view.n_axes, *view.k_axes)
    static = all(constant(a.extent) is not None for a in axes)
    everywhere = {a.var for a in view.k_axes} <= variables(view.b)
    if len(sources) != 1 or not static or not everywhere:
        return None
    (source,) = sources
    others = [view.a, *(r.value for r in contraction.results)]
    is_shared = any(x.source.same_as(source) for e in others for x in loads(e))
    return source if source in constants and not is_shared else None
