"""A that is computed of what is in memory: rows of a part in one pass, with its first panel.

    for pass over K, part of mc rows, panel:
      for tile of mr rows:
        first panel:  rows[mr][kc] = A, of mc: float32 of half types, a sum, a concatenation
        products                                           as of operands that lie in memory

Rows are in the level-1 cache then, and are written to the next one beside products.

A register tile reads an element of A once for a few products: what computes it would take as many
instructions as they do, and a choice between tensors breaks its vectors.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tvm import ir, tirx
from tvm.tirx import ForKind

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import is_expensive, load, loads
from .....core.tir.loops import constant, index, loop, over, sequence, substitute
from ....cpu.vector_loops import over_vectors
from ....index.address import conditional_loads, known_step
from ....index.estimate import operations
from ....index.index_ranges import Ranges
from ....math.vector_math import makes_vectors, vector_math
from ...problem.epilogue.cut_axis import cuts_of
from ...problem.gemm_view import GemmView
from .a import PADDING, DirectA, RowBlock
from .halves import is_half

WIDTH = 64  # elements of a vector expression


class Part(NamedTuple):
    """What A is where the last axis of K is within bounds; ``end`` is ``None`` of all of it."""

    begin: int
    end: int | None
    value: ir.Expr


def computed_parts(view: GemmView) -> list[Part]:
    """Cut a computed A along K into parts whose elements vectors compute without branches.

    Returns
    -------
    list of Part
        None where A lies in memory as it is, or is not contiguous along K.
    """
    axis = view.k_axes[-1]
    axes = [a.var for a in (*view.batch, *view.m_axes, *view.k_axes)]
    places = cuts_of(view.a, [axis]).get(axis.var, [])
    if not (places or is_half(view.a) or operations(view.a)) or is_expensive(view.a):
        return []
    found = [Part(0, None, view.a)]
    if places:
        bounds = [0, *places, constant(axis.extent) or 0]
        found = [_part(view, begin, end) for begin, end in pairwise(bounds)]
    for part in found:
        reads = loads(part.value)
        steps = [known_step(x.source, x.indices, axis.var, axes) for x in reads]
        if conditional_loads(part.value) or 1 not in steps or not set(steps) <= {0, 1}:
            return []
    return found


def _part(view: GemmView, begin: int, end: int) -> Part:
    """Take the choices that are known between two bounds."""
    axis = view.k_axes[-1]
    place = tirx.Var(axis.var.name, "int64")
    ranges = Ranges()
    ranges.bind(place, end - begin)
    for other in (*view.batch, *view.m_axes, *view.k_axes[:-1]):
        ranges.bind(other.var, other.extent)
    value = ranges.value(substitute(view.a, {axis.var: place + begin}))
    return Part(begin, end, substitute(value, {place: axis.var - begin}))


class ComputedA(DirectA):
    """Rows of a part of a task in one pass.

    Parameters
    ----------
    parts
        What A is along K.
    rows, depth
        Most rows of a part, and K of a pass.
    """

    def __init__(self, view: GemmView, parts: Sequence[Part], rows: int, depth: int) -> None:
        super().__init__(view)
        self._parts = parts
        outer = [index(a.extent) for a in view.k_axes[:-1]]
        shape = [index(rows), *outer, index(depth + PADDING)]
        self._buffer = declare(shape, str(view.a.ty.dtype), "rows", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the rows."""
        return [self._buffer]

    def begin_tile(self, rows: RowBlock, offset: ir.Expr, height: int) -> tirx.Stmt:
        """Compute the rows."""
        count = tirx.min(index(height), self.rows - rows.start - offset)

        def row(i: ir.Expr) -> tirx.Stmt:
            def line(outer: list[ir.Expr]) -> tirx.Stmt:
                lines = [self._line(part, rows, offset + i, outer) for part in self._parts]
                return sequence(lines)

            return over(self.view.k_axes[:-1], line)

        return loop("row", count, row)

    def _line(
        self, part: Part, rows: RowBlock, row: ir.Expr, outer: Sequence[ir.Expr]
    ) -> tirx.Stmt:
        """Compute what a row has of a part, and a pass of it."""
        first: ir.Expr = index(0)
        count: ir.Expr | int = rows.k
        if part.end is not None:
            first = tirx.max(index(part.begin) - rows.first_k, first)
            last = tirx.min(index(part.end) - rows.first_k, index(rows.k))
            count = tirx.max(last - first, index(0))
        value = vector_math(part.value)
        kind = ForKind.VECTORIZED if makes_vectors(value) else ForKind.SERIAL
        where = {**rows.place, **self.row_place(rows.start + row)}
        axes = [a.var for a in self.view.k_axes]

        def vector(start: ir.Expr, width: int) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                place = first + start + lane
                at = dict(zip(axes, [*outer, rows.first_k + place], strict=True))
                made = substitute(value, {**where, **at})
                return tirx.BufferStore(self._buffer, made, [row, *outer, place])

            return loop("lane", width, element, kind)

        return over_vectors(count, WIDTH, vector)

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read a computed element; rows beyond M have a place, too."""
        return load(self._buffer, [row, *reduced])
