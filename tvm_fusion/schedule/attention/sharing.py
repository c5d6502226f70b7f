"""Which rows of an attention share keys and values: queries of a head, heads of a group."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...core.expressions import variables
from ...core.loops import constant, coordinates, index, substitute
from ...program.stage import Axis
from .pattern import Pattern


@dataclass(frozen=True)
class Sharing:
    """The axes of the scores but for the keys, as pairs of a batch and a row.

    Attributes
    ----------
    batch : tuple of (Axis, PrimExpr)
        Axes that choose keys and values, with the number of different ones along them.
    rows : tuple of (Axis, int)
        Axes, or innermost parts of them, along which keys and values are the same. An axis of heads
        of which several share theirs is in both.
    """

    batch: tuple[tuple[Axis, ir.Expr], ...]
    rows: tuple[tuple[Axis, int], ...]

    @classmethod
    def of(cls, pattern: Pattern) -> Sharing | None:
        """Find the rows; ``None`` if their number is not known at compile time."""
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
            same = _heads_of_a_group(pattern, axis)
            batch.append((axis, axis.extent if same == 1 else index((extent or 0) // same)))
            if same > 1:
                rows.append((axis, same))
        return cls(tuple(batch), tuple(rows))

    @property
    def extents(self) -> list[ir.Expr]:
        """Numbers of different keys and values along the axes of the batch."""
        return [extent for _, extent in self.batch]

    @property
    def count(self) -> int:
        """Number of rows that share keys and values."""
        total = 1
        for _, extent in self.rows:
            total *= extent
        return total

    def place(self, number: ir.Expr, row: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Say where along each axis a row of a pair of keys and values is."""
        found: dict[ir.Var, ir.Expr] = {}
        outer = coordinates(number, self.extents)
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
    for same in range(extent or 1, 1, -1):
        if (extent or 1) % same == 0 and _are_same(pattern, axis, same):
            return same
    return 1


def _are_same(pattern: Pattern, axis: Axis, same: int) -> bool:
    group, member = tirx.Var("group", "int64"), tirx.Var("member", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(member, ir.Range.from_min_extent(index(0), index(same)))
    extent = int(axis.extent) // same
    analyzer.bind(group, ir.Range.from_min_extent(index(0), index(extent)))
    place = {axis.var: group * same + member}
    return not any(
        member in variables(analyzer.simplify(substitute(operand, place)))
        for operand in (pattern.k, pattern.v)
    )
