"""GQA query groups: the rows of an attention that share keys and values.

Queries of one head, and the query heads of a group (grouped-query attention), read the same keys
and values; so they are rows of one problem, and keys and values are loaded once for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ....core.tir.expressions import variables
from ....core.tir.loops import constant, coordinates, index, substitute
from ....program.stage import Axis
from .pattern import Pattern


@dataclass(frozen=True)
class QueryGroup:
    """The axes of the scores but for the keys, as pairs of a KV batch and a row."""

    # Axes that choose keys and values, with the number of different ones along them.
    batch: tuple[tuple[Axis, ir.Expr], ...]
    # Axes, or innermost parts of them, along which keys and values are the same. An axis of query
    # heads of which several share a KV head is in both.
    rows: tuple[tuple[Axis, int], ...]

    @classmethod
    def of(cls, pattern: Pattern) -> QueryGroup | None:
        """Find the rows of a group; ``None`` if their number is symbolic."""
        used = variables(pattern.k) | variables(pattern.v)
        batch: list[tuple[Axis, ir.Expr]] = []
        rows: list[tuple[Axis, int]] = []
        for axis in (*pattern.batch, *([pattern.query] if pattern.query else [])):
            extent = constant(axis.extent)
            if axis.var not in used:
                if extent is None:
                    return None
                rows.append((axis, extent))
                continue
            heads = _heads_of_a_group(pattern, axis)
            batch.append((axis, axis.extent if heads == 1 else index((extent or 0) // heads)))
            if heads > 1:
                rows.append((axis, heads))
        return cls(tuple(batch), tuple(rows))

    @property
    def extents(self) -> list[ir.Expr]:
        """Numbers of different keys and values along the axes of the batch."""
        return [extent for _, extent in self.batch]

    @property
    def size(self) -> int:
        """Rows that share keys and values."""
        return math.prod(extent for _, extent in self.rows)

    def place(self, batch: ir.Expr, row: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Return the position of a row of a KV batch along each axis."""
        found: dict[ir.Var, ir.Expr] = {}
        outer = coordinates(batch, self.extents)
        inner = coordinates(index(row), [extent for _, extent in self.rows])
        for (axis, _), position in zip(self.batch, outer, strict=True):
            found[axis.var] = position
        for (axis, extent), position in zip(self.rows, inner, strict=True):
            before = found.get(axis.var)
            found[axis.var] = position if before is None else before * extent + position
        return found


def _heads_of_a_group(pattern: Pattern, axis: Axis) -> int:
    """Count the neighbours along an axis that read the same keys and the same values."""
    extent = constant(axis.extent)
    for heads in range(extent or 1, 1, -1):
        if (extent or 1) % heads == 0 and _share_kv(pattern, axis, heads):
            return heads
    return 1


def _share_kv(pattern: Pattern, axis: Axis, heads: int) -> bool:
    group, member = tirx.Var("group", "int64"), tirx.Var("member", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(member, ir.Range.from_min_extent(index(0), index(heads)))
    extent = int(axis.extent) // heads
    analyzer.bind(group, ir.Range.from_min_extent(index(0), index(extent)))
    place = {axis.var: group * heads + member}
    return not any(
        member in variables(analyzer.simplify(substitute(operand, place)))
        for operand in (pattern.k, pattern.v)
    )
