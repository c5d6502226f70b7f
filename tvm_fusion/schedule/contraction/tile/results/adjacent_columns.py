"""Adjacent columns of a product that results read together, such as pairs that are rotated.

    result[.., n] = value of part n // width % count, of the sums of all parts around column n

A column split whose period is a part of a vector is none for a tile: columns lie as in memory, and
a vector's lanes are the sums of all parts. Results of one output are joined again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ....._tvm.ir.structural import structural_map
from .....core.tir.loops import index, substitute
from .....program.contractions import operands_of
from .....program.stage import Stage
from ...problem.column_split import ColumnSplit, analyzer_of
from ...problem.results import Result
from ...problem.sum_of_products import SumOfProducts

WIDEST = 8  # elements of a vector of results
LEAST_WIDTH = 8  # of vectors that such results are stored in, so that they have whole periods


@dataclass(frozen=True)
class AdjacentColumns(SumOfProducts):
    """A product whose results read several adjacent sums."""

    # Each stands for the sum of one part of a period.
    columns: tuple[ir.Var, ...] = field(kw_only=True)
    width: int = field(kw_only=True)  # columns of a part

    @property
    def totals(self) -> tuple[ir.Var, ...]:
        """The variables of the sums in results."""
        return self.columns

    @property
    def period(self) -> int:
        """Columns that are read together."""
        return self.width * len(self.columns)

    def place_of(self, part: int, lane: int) -> tuple[int, int]:
        """Return the lane of the vector that has the sum."""
        first = lane // self.period * self.period
        return 0, first + part * self.width + lane % self.width


def adjacent_columns(contraction: SumOfProducts) -> AdjacentColumns | None:
    """Join the parts of a split that lie in a vector; ``None`` where others do not."""
    split = contraction.column_split
    if split is None or WIDEST % (split.count * split.width):
        return None
    stage = _joined(contraction.stage, split)
    analyzer = analyzer_of(stage.axes)
    by_output: dict[ir.Var, list[Result]] = {}
    for result in contraction.results:
        by_output.setdefault(result.buffer, []).append(result)
    results = []
    for some in by_output.values():
        for start in range(0, len(some), split.count):
            whole = _whole(some[start : start + split.count], split, analyzer)
            if whole is None:
                return None
            results.append(whole)
    operands = operands_of(stage)
    if operands is None:
        return None
    given = replace(contraction, column_split=None, results=tuple(results), stage=stage)
    return AdjacentColumns(
        **{**vars(given), "left": operands[0], "right": operands[1]},
        columns=split.totals,
        width=split.width,
    )


def _places(split: ColumnSplit) -> dict[ir.Var, ir.Expr]:
    """Return the split's axes at a column."""
    column = split.axis.var
    found: dict[ir.Var, ir.Expr] = {
        split.part.var: _part(split),
        split.position.var: tirx.floormod(column, index(split.width)),
    }
    if split.period is not None:
        found[split.period.var] = tirx.floordiv(column, index(split.width * split.count))
    return found


def _part(split: ColumnSplit) -> ir.Expr:
    within = tirx.floordiv(split.axis.var, index(split.width))
    return tirx.floormod(within, index(split.count))


def _joined(stage: Stage, split: ColumnSplit) -> Stage:
    """Undo the split of a stage's axis."""
    first, *others = split.axes
    axes = tuple(split.axis if a is first else a for a in stage.axes if a not in others)
    analyzer, places = analyzer_of((*axes, *stage.reduce)), _places(split)
    return replace(
        stage,
        axes=axes,
        indices=tuple(
            tuple(analyzer.simplify(substitute(i, places)) for i in w) for w in stage.indices
        ),
        values=tuple(_simplified(substitute(v, places), analyzer) for v in stage.values),
    )


def _simplified(value: ir.Expr, analyzer: sym.Analyzer) -> ir.Expr:
    def simple(node: ir.TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(node.source, [analyzer.simplify(index(i)) for i in node.indices])

    return structural_map(value, (ir.TensorLoad, simple), order="post")


def _whole(parts: Sequence[Result], split: ColumnSplit, analyzer: sym.Analyzer) -> Result | None:
    """Join what the parts have of one output; ``None`` where it is not adjacent there."""
    first = parts[0]
    if [r.part for r in parts] != [*range(split.count)]:
        return None
    *outer, last = first.indices
    for result in parts[1:]:
        assert result.part is not None
        if not tvm_ffi.structural_equal(result.condition, first.condition):
            return None
        *others, own = result.indices
        pairs = [*zip(others, outer, strict=True), (own, last + result.part * split.width)]
        if not all(_is_same(a, b, split) for a, b in pairs):
            return None
    places = _places(split)

    def at(expr: ir.Expr) -> ir.Expr:
        return analyzer.simplify(substitute(expr, places))

    value = parts[-1].value
    for result in reversed(parts[:-1]):
        value = tirx.Select(tirx.EQ(_part(split), index(result.part)), result.value, value)
    return replace(
        first,
        indices=(*map(at, outer), at(last + _part(split) * split.width)),
        value=_simplified(substitute(value, places), analyzer),
        condition=None if first.condition is None else at(first.condition),
        part=None,
    )


def _is_same(a: ir.Expr, b: ir.Expr, split: ColumnSplit) -> bool:
    return bool(analyzer_of(split.axes).can_prove_equal(index(a), index(b)))
