"""How a tile reads its vectors: packed at compile time, copied by the task, or where they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.expressions import load, loads, variables
from ...fusion.program import Axis
from ..address import known_step
from ..loops import block, constant, index, loop, over, sequence, substitute
from ..register_tile import in_vectors
from .blocking import BUFFER
from .canonical import nest
from .operands import SumOfProducts
from .roles import Roles

LINE = 16  # terms of a cache line, which a transposing copy reads together


@dataclass(frozen=True)
class Panel:
    """A panel of columns in one pass over the terms.

    Attributes
    ----------
    place : Mapping
        Batch axes and outer columns, by variable.
    number : PrimExpr
        Which panel along the last column axis.
    first_term, terms : PrimExpr
        The pass, along the last reduction axis.
    columns : int or None
        How many there are, fewer than the width in the last panel; ``None`` if only the kernel
        will know.
    """

    place: dict[ir.Var, ir.Expr]
    number: ir.Expr
    first_term: ir.Expr
    terms: ir.Expr | int
    columns: int | None


class Vectors(ABC):
    """The right factor, a vector of neighbouring columns at a time."""

    #: Columns that may be read beyond the last one are whole vectors.
    pads = True

    def __init__(self, roles: Roles, width: int) -> None:
        self.roles, self.width = roles, width

    def buffers(self) -> list[ir.Var]:
        """Buffers of one task."""
        return []

    def fill(self, panel: Panel) -> tirx.Stmt | None:
        """Prepare a panel, before its tiles."""
        return None

    @abstractmethod
    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """One element; the last of ``reduced`` counts from the first term of the pass."""

    def ahead(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """One element to read ahead in a step of a panel, which are terms times tiles in all."""
        return None

    def element(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """One element where the factor has it."""
        roles = self.roles
        column = panel.number * self.width + lane
        where = {**panel.place, roles.columns[-1].var: column}
        *outer, last = reduced
        terms = [*outer, panel.first_term + last]
        where.update(zip((a.var for a in roles.reduce), terms, strict=True))
        return substitute(roles.right, where)


class Direct(Vectors):
    """Elements from where they are: for a single tile of rows, a copy would not pay."""

    pads = False

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the factor itself."""
        return self.element(panel, reduced, lane)


class Copied(Vectors):
    """Panels that a task copies before use, so that all tiles of rows read them in order."""

    def __init__(self, roles: Roles, width: int, terms: int) -> None:
        super().__init__(roles, width)
        self._outer = [constant(a.extent) or 1 for a in roles.reduce[:-1]]
        shape = [index(d) for d in (*self._outer, terms, width)]
        self._buffer = declare(shape, str(roles.right.ty.dtype), "panel", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the panel."""
        return [self._buffer]

    def fill(self, panel: Panel) -> tirx.Stmt:
        """Copy columns side by side; those that lie apart in memory line by line."""
        outer = self.roles.reduce[:-1]

        def copy(reduced: list[ir.Expr], lane: ir.Expr) -> tirx.Stmt:
            value = self.element(panel, reduced, lane)
            return tirx.BufferStore(self._buffer, value, [*reduced, lane])

        # Sums of what lies beyond the last column are never stored, but what lies there may be
        # denormal, and slow.
        nothing = tirx.const(0, str(self._buffer.ty.dtype))

        def zero(reduced: list[ir.Expr], lane: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._buffer, nothing, [*reduced, lane])

        def padding(around: list[ir.Expr], columns: int) -> tirx.Stmt:
            return loop(
                "k",
                panel.terms,
                lambda k: in_vectors(
                    self.width - columns, lambda lane: zero([*around, k], lane + columns)
                ),
            )

        def terms(around: list[ir.Expr]) -> tirx.Stmt:
            if panel.columns is None or panel.columns == self.width:
                return copies(around)
            return sequence([padding(around, panel.columns), copies(around)])

        def copies(around: list[ir.Expr]) -> tirx.Stmt:
            if panel.columns is None:  # a symbolic number, in the last panel
                count = index(self.roles.columns[-1].extent) - panel.number * self.width
                return loop(
                    "k",
                    panel.terms,
                    lambda k: sequence(
                        [
                            in_vectors(self.width, lambda lane: zero([*around, k], lane)),
                            loop("lane", count, lambda lane: copy([*around, k], lane)),
                        ]
                    ),
                )
            columns = panel.columns
            if not self._is_across():
                return loop(
                    "k",
                    panel.terms,
                    lambda k: in_vectors(columns, lambda lane: copy([*around, k], lane)),
                )
            size = constant(panel.terms)
            if size is None or size % LINE:
                return loop(
                    "lane",
                    columns,
                    lambda lane: loop("k", panel.terms, lambda k: copy([*around, k], lane)),
                )
            return loop(
                "line",
                size // LINE,
                lambda line: loop(
                    "lane",
                    columns,
                    lambda lane: loop(
                        "k",
                        LINE,
                        lambda k: copy([*around, line * LINE + k], lane),
                        tirx.ForKind.UNROLLED,
                    ),
                ),
            )

        return over(outer, terms)

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the copy."""
        return load(self._buffer, [*reduced, lane])

    def _is_across(self) -> bool:
        """Whether terms, not columns, lie side by side in memory."""
        roles = self.roles
        axes = [a.var for a in (*roles.batch, *roles.columns, *roles.reduce)]
        column, term = roles.columns[-1].var, roles.reduce[-1].var
        found = loads(roles.right)
        return any(known_step(x.source, x.indices, term, axes) == 1 for x in found) and not any(
            known_step(x.source, x.indices, column, axes) == 1 for x in found
        )


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
    return Copied(roles, width, terms)
