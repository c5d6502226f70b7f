"""How a tile reads its vectors: from panels that the task copied, or from where they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.expressions import load, loads
from ..address import known_step
from ..loops import constant, index, loop, over, sequence, substitute
from ..register_tile import in_vectors
from .gemm_view import Roles

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
    slot : PrimExpr
        Which panel of the task.
    first_term, terms : PrimExpr
        The pass, along the last reduction axis.
    columns : int or None
        How many there are, fewer than the width in the last panel; ``None`` if only the kernel
        will know.
    """

    place: dict[ir.Var, ir.Expr]
    number: ir.Expr
    slot: ir.Expr
    first_term: ir.Expr
    terms: ir.Expr | int
    columns: int | None


def by_columns(
    roles: Roles, width: int, number: ir.Expr, body: Callable[[int | None], tirx.Stmt]
) -> tirx.Stmt:
    """Write ``body(columns)`` for a panel: the last one may be narrower, by an unknown number."""
    columns = index(roles.columns[-1].extent)
    size = constant(columns)
    full = tirx.floordiv(columns, index(width)) if size is None else index(size // width)
    rest = None if size is None else size % width
    if rest == 0:
        return body(width)
    if size is not None and size < width:
        return body(rest)
    return tirx.IfThenElse(number < full, body(width), body(rest))


class Vectors(ABC):
    """The right factor, a vector of neighbouring columns at a time."""

    #: Columns that may be read beyond the last one are whole vectors.
    pads = True

    def __init__(self, roles: Roles, width: int) -> None:
        self.roles, self.width = roles, width

    def buffers(self) -> list[ir.Var]:
        """Buffers of one task."""
        return []

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt | None:
        """Prepare the panels of a task in one pass."""
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

    def __init__(self, roles: Roles, width: int, terms: int, panels: int) -> None:
        super().__init__(roles, width)
        self._outer = [constant(a.extent) or 1 for a in roles.reduce[:-1]]
        shape = [index(d) for d in (panels, *self._outer, terms, width)]
        self._buffer = declare(shape, str(roles.right.ty.dtype), "panels", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the panels."""
        return [self._buffer]

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt:
        """Copy columns side by side for one term after the other; else a line of terms at once."""

        def panels(body: Callable[[Panel], tirx.Stmt]) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                panel = replace(first, number=first.number + n, slot=n)
                return by_columns(
                    self.roles, self.width, panel.number, lambda c: body(replace(panel, columns=c))
                )

            return loop("panel", count, one)

        def fill(around: list[ir.Expr]) -> tirx.Stmt:
            if self._is_across():
                return panels(lambda panel: self._lines(panel, around))
            return loop(
                "k", first.terms, lambda k: panels(lambda panel: self._row(panel, [*around, k]))
            )

        return over(self.roles.reduce[:-1], fill)

    def _row(self, panel: Panel, reduced: list[ir.Expr]) -> tirx.Stmt:
        """Copy the columns of one term."""

        def copy(lane: ir.Expr) -> tirx.Stmt:
            return self._copy(panel, reduced, lane)

        if panel.columns is not None:
            return sequence([in_vectors(panel.columns, copy), *self._padding(panel, reduced)])
        # A number that is known at run time only, in the last panel.
        count = index(self.roles.columns[-1].extent) - panel.number * self.width
        return sequence([*self._padding(panel, reduced), loop("lane", count, copy)])

    def _lines(self, panel: Panel, around: list[ir.Expr]) -> tirx.Stmt:
        """Copy columns that lie apart in memory, a cache line of each at a time."""
        count: ir.Expr | int = panel.columns or 0
        if panel.columns is None:
            count = index(self.roles.columns[-1].extent) - panel.number * self.width

        def line(start: ir.Expr, size: ir.Expr | int, kind: int) -> tirx.Stmt:
            return loop(
                "lane",
                count,
                lambda lane: loop(
                    "k", size, lambda k: self._copy(panel, [*around, start + k], lane), kind
                ),
            )

        stmts = []
        if panel.columns != self.width:
            zeros = lambda k: sequence(self._padding(panel, [*around, k]))  # noqa: E731
            stmts.append(loop("k", panel.terms, zeros))
        size = constant(panel.terms)
        if size is None or size % LINE:
            stmts.append(line(index(0), panel.terms, tirx.ForKind.SERIAL))
        else:
            unrolled = tirx.ForKind.UNROLLED
            stmts.append(loop("line", size // LINE, lambda n: line(n * LINE, LINE, unrolled)))
        return sequence(stmts)

    def _copy(self, panel: Panel, reduced: list[ir.Expr], lane: ir.Expr) -> tirx.Stmt:
        value = self.element(panel, reduced, lane)
        return tirx.BufferStore(self._buffer, value, [panel.slot, *reduced, lane])

    def _padding(self, panel: Panel, reduced: list[ir.Expr]) -> list[tirx.Stmt]:
        """Write zeros beyond the last column.

        Sums of what lies there are never stored, but it may be denormal, and slow.
        """
        columns = panel.columns or 0
        nothing = tirx.const(0, str(self._buffer.ty.dtype))

        def zero(lane: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._buffer, nothing, [panel.slot, *reduced, columns + lane])

        return [in_vectors(self.width - columns, zero)] if columns < self.width else []

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the copy."""
        return load(self._buffer, [panel.slot, *reduced, lane])

    def ahead(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """Read the next panel, which other panels may have displaced since it was copied."""
        if tiles < 2 or constant(self._buffer.ty.shape[0]) == 1:
            return None
        outer = [index(0) for _ in self._outer]
        offset = step * math.ceil(self.width / tiles)
        return load(self._buffer, [panel.slot + 1, *outer, index(0), offset])

    def _is_across(self) -> bool:
        """Whether terms, not columns, lie side by side in memory."""
        roles = self.roles
        axes = [a.var for a in (*roles.batch, *roles.columns, *roles.reduce)]
        column, term = roles.columns[-1].var, roles.reduce[-1].var
        found = loads(roles.right)
        return any(known_step(x.source, x.indices, term, axes) == 1 for x in found) and not any(
            known_step(x.source, x.indices, column, axes) == 1 for x in found
        )
