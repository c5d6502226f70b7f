"""B of a GEMM on a CPU: read where it is, or from panels that the task copies."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load, loads
from .....core.tir.loops import constant, index, loop, over, sequence, substitute
from ....cpu.register_tile import in_vectors
from ....index.address import known_step
from ...problem.gemm_view import GemmView

LINE = 16  # k of a cache line, which a transposing copy reads together


@dataclass(frozen=True)
class Panel:
    """A panel of nr columns in one pass over K."""

    place: dict[ir.Var, ir.Expr]  # batch axes and outer columns, by variable
    number: ir.Expr  # the panel's number along the last axis of N
    slot: ir.Expr  # its number in the task
    # The range of the pass along the last axis of K.
    first_k: ir.Expr
    k: ir.Expr | int
    # Its columns, fewer than nr in the last panel; ``None`` if known at run time only.
    columns: int | None


def by_columns(
    view: GemmView, width: int, number: ir.Expr, body: Callable[[int | None], tirx.Stmt]
) -> tirx.Stmt:
    """Write ``body(columns)`` for a panel; the last one may be narrower, or of unknown width."""
    columns = index(view.n_axes[-1].extent)
    size = constant(columns)
    full = tirx.floordiv(columns, index(width)) if size is None else index(size // width)
    rest = None if size is None else size % width
    if rest == 0:
        return body(width)
    if size is not None and size < width:
        return body(rest)
    return tirx.IfThenElse(number < full, body(width), body(rest))


class OperandB(ABC):
    """B, a vector of adjacent columns at a time."""

    #: Whether vectors may be read beyond the last column.
    pads = True

    def __init__(self, view: GemmView, width: int) -> None:
        self.view, self.width = view, width

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return []

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt | None:
        """Prepare the panels of a task for one pass."""
        return None

    def begin_panel(self, panel: Panel) -> tirx.Stmt | None:
        """Prepare a panel for the tiles of a part of the rows."""
        return None

    def begin_step(self, panel: Panel, reduced: Sequence[ir.Expr]) -> tirx.Stmt | None:
        """Prepare what a step of K reads of a panel, in the first tile that reads it."""
        return None

    @abstractmethod
    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read an element; the last of ``reduced`` is relative to the pass."""

    def prefetch(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """Return an element to prefetch in a step of a panel; there are ``k * tiles`` steps."""
        return None

    def ahead(self, panel: Panel, element: ir.Expr) -> ir.Expr | None:
        """Return an element to prefetch of the pass over K that comes next."""
        return None

    def element(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read an element of B in place."""
        view = self.view
        column = panel.number * self.width + lane
        where = {**panel.place, view.n_axes[-1].var: column}
        *outer, last = reduced
        k = [*outer, panel.first_k + last]
        where.update(zip((a.var for a in view.k_axes), k, strict=True))
        return substitute(view.b, where)


class DirectB(OperandB):
    """B, read in place: for a single tile of rows, a copy would not pay."""

    pads = False

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read B itself."""
        return self.element(panel, reduced, lane)


class CopiedB(OperandB):
    """Panels that a task copies before use, so that all its tiles read contiguous memory."""

    def __init__(self, view: GemmView, width: int, kc: int, panels: int) -> None:
        super().__init__(view, width)
        self._outer = [constant(a.extent) or 1 for a in view.k_axes[:-1]]
        shape = [index(d) for d in (panels, *self._outer, kc, width)]
        self._buffer = declare(shape, str(view.b.ty.dtype), "panels", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the panels."""
        return [self._buffer]

    def fill(self, first: Panel, count: ir.Expr) -> tirx.Stmt:
        """Copy the panels: row by row of B, or transposing a cache line of K at a time."""

        def panels(body: Callable[[Panel], tirx.Stmt]) -> tirx.Stmt:
            def one(n: ir.Expr) -> tirx.Stmt:
                panel = replace(first, number=first.number + n, slot=n)
                return by_columns(
                    self.view, self.width, panel.number, lambda c: body(replace(panel, columns=c))
                )

            return loop("panel", count, one)

        def fill(around: list[ir.Expr]) -> tirx.Stmt:
            if self._is_k_contiguous():
                return panels(lambda panel: self._lines(panel, around))
            return loop(
                "k", first.k, lambda k: panels(lambda panel: self._row(panel, [*around, k]))
            )

        return over(self.view.k_axes[:-1], fill)

    def _row(self, panel: Panel, reduced: list[ir.Expr]) -> tirx.Stmt:
        """Copy the columns at one k."""

        def copy(lane: ir.Expr) -> tirx.Stmt:
            return self._copy(panel, reduced, lane)

        if panel.columns is not None:
            return sequence([in_vectors(panel.columns, copy), *self._padding(panel, reduced)])
        # The last panel's width is known at run time only.
        count = index(self.view.n_axes[-1].extent) - panel.number * self.width
        return sequence([*self._padding(panel, reduced), loop("lane", count, copy)])

    def _lines(self, panel: Panel, around: list[ir.Expr]) -> tirx.Stmt:
        """Copy columns that are contiguous along K, a cache line of each at a time."""
        count: ir.Expr | int = panel.columns or 0
        if panel.columns is None:
            count = index(self.view.n_axes[-1].extent) - panel.number * self.width

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
            stmts.append(loop("k", panel.k, zeros))
        size = constant(panel.k)
        if size is None or size % LINE:
            stmts.append(line(index(0), panel.k, tirx.ForKind.SERIAL))
        else:
            unrolled = tirx.ForKind.UNROLLED
            stmts.append(loop("line", size // LINE, lambda n: line(n * LINE, LINE, unrolled)))
        return sequence(stmts)

    def _copy(self, panel: Panel, reduced: list[ir.Expr], lane: ir.Expr) -> tirx.Stmt:
        value = self.element(panel, reduced, lane)
        return tirx.BufferStore(self._buffer, value, [panel.slot, *reduced, lane])

    def _padding(self, panel: Panel, reduced: list[ir.Expr]) -> list[tirx.Stmt]:
        """Write zeros beyond the last column.

        Sums of what is there are never stored, but it may be denormal, and slow.
        """
        columns = panel.columns or 0
        nothing = tirx.const(0, str(self._buffer.ty.dtype))

        def zero(lane: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._buffer, nothing, [panel.slot, *reduced, columns + lane])

        return [in_vectors(self.width - columns, zero)] if columns < self.width else []

    def at(self, panel: Panel, reduced: Sequence[ir.Expr], lane: ir.Expr) -> ir.Expr:
        """Read the copy."""
        return load(self._buffer, [panel.slot, *reduced, lane])

    def prefetch(self, panel: Panel, step: ir.Expr, tiles: int) -> ir.Expr | None:
        """Prefetch the next panel, which others may have evicted since it was copied."""
        if tiles < 2 or constant(self._buffer.ty.shape[0]) == 1:
            return None
        outer = [index(0) for _ in self._outer]
        offset = step * math.ceil(self.width / tiles)
        return load(self._buffer, [panel.slot + 1, *outer, index(0), offset])

    def _is_k_contiguous(self) -> bool:
        """Whether B is contiguous along K, not N."""
        view = self.view
        axes = [a.var for a in (*view.batch, *view.n_axes, *view.k_axes)]
        column, term = view.n_axes[-1].var, view.k_axes[-1].var
        found = loads(view.b)
        return any(known_step(x.source, x.indices, term, axes) == 1 for x in found) and not any(
            known_step(x.source, x.indices, column, axes) == 1 for x in found
        )
