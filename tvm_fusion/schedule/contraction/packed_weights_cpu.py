"""Panels of a constant, packed at compile time, and the choice how a tile reads its vectors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.expressions import load, loads, variables
from ...fusion.program import Axis
from ..loops import block, constant, index, substitute
from .blocking import BUFFER
from .gemm_view import Roles
from .operand_b_cpu import Copied, Direct, Panel, Vectors
from .operands import SumOfProducts
from .prim_func import nest


class Packed(Vectors):
    """Panels of a constant, packed at compile time: memory is read once, in order."""

    def __init__(self, roles: Roles, width: int, source: ir.Var) -> None:
        super().__init__(roles, width)
        self.source = source
        self._core = roles.right
        self._casts: list[str] = []
        while isinstance(self._core, tirx.Cast):
            self._casts.append(str(self._core.ty.dtype))
            self._core = self._core.value
        self._around = (*roles.batch, *roles.columns[:-1])
        panels = math.ceil((constant(roles.columns[-1].extent) or 1) / width)
        shape = [index(a.extent) for a in self._around] + [index(panels)]
        shape += [index(a.extent) for a in roles.reduce] + [index(width)]
        self.buffer = declare(shape, str(self._core.ty.dtype), f"{source.name}_packed")

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the packed constant."""
        around = [panel.place[a.var] for a in self._around]
        *outer, last = reduced
        where = [*around, panel.number, *outer, panel.first_term + last, lane]
        value: ir.Expr = load(self.buffer, where)
        for dtype in reversed(self._casts):
            value = tirx.Cast(dtype, value)
        return value

    def ahead(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """Read the next panel, a piece in each tile, while the tiles keep memory idle."""
        if tiles < 2:
            return None
        around = [panel.place[a.var] for a in self._around]
        outer = [index(0) for _ in self.roles.reduce[:-1]]
        offset = step * math.ceil(self.width / tiles)
        return load(self.buffer, [*around, panel.number + 1, *outer, panel.first_term, offset])

    def packing(self) -> tirx.PrimFunc:
        """Write the function that packs: zeros fill the last panel."""
        roles = self.roles
        column = roles.columns[-1]
        number, lane = tirx.Var("panel", "int64"), tirx.Var("lane", "int64")
        panels = self.buffer.ty.shape[len(self._around)]
        axes = [*self._around, Axis(number, panels), *roles.reduce, Axis(lane, index(self.width))]
        position = number * self.width + lane
        value = substitute(self._core, {column.var: position})
        if (constant(column.extent) or 0) % self.width:
            zero = tirx.const(0, str(value.ty.dtype))
            value = tirx.if_then_else(position < index(column.extent), value, zero)
        body = nest("packed", axes, [], self.buffer, value)
        return tirx.PrimFunc([self.source, self.buffer], block("root", body)).with_attrs(
            {"s_tir": True, "tirx.noalias": True, "global_symbol": "pack"}
        )


def packable(
    contraction: SumOfProducts, roles: Roles, constants: Collection[ir.Var]
) -> ir.Var | None:
    """Return the constant that the right factor is made of, if nothing else is read there."""
    sources = {x.source for x in loads(roles.right)}
    axes = (*roles.batch, *roles.columns, *roles.reduce)
    static = all(constant(a.extent) is not None for a in axes)
    everywhere = {a.var for a in roles.reduce} <= variables(roles.right)
    if len(sources) != 1 or not static or not everywhere:
        return None
    (source,) = sources
    others = [roles.left, *(r.value for r in contraction.results)]
    is_shared = any(x.source.same_as(source) for e in others for x in loads(e))
    return source if source in constants and not is_shared else None


def vectors(
    contraction: SumOfProducts,
    roles: Roles,
    width: int,
    terms: int,
    panels: int,
    is_single_tile: bool,
    constants: Collection[ir.Var],
) -> Vectors:
    """Choose how vectors are read."""
    source = packable(contraction, roles, constants)
    if source is not None:
        return Packed(roles, width, source)
    columns = constant(roles.columns[-1].extent)
    outer = [constant(a.extent) for a in roles.reduce[:-1]]
    fits = None not in outer and math.prod(d or 1 for d in outer) * terms * width <= BUFFER
    if columns is not None and (is_single_tile or not fits):
        return Direct(roles, width)
    return Copied(roles, width, terms, panels)
