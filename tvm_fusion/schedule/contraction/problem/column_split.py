"""Column split of a joined GEMM: gate and up of a gated layer, Q, K and V, halves of a rotation.

Where an epilogue reads C at several columns that are a fixed distance apart, N is split into
(period, part, position). Whoever has the accumulators of all parts at one position can compute it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ....core.tir.expressions import call_name, load, loads, variables
from ....core.tir.loops import constant, index, substitute
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...index.address import conditional_loads
from .results import Result, reads_of, reindexed


@dataclass(frozen=True)
class ColumnSplit:
    """An axis of N split into ``(period * count + part) * width + position``."""

    axis: Axis
    width: int  # columns of a part
    period: Axis | None  # ``None`` if there is one period
    # The new axes.
    part: Axis
    position: Axis
    totals: tuple[ir.Var, ...]  # each stands for the accumulator of one part
    # Whether a result reads now the column before and now the one behind, as pairs that are rotated
    # do.
    is_of_pairs: bool = False

    @property
    def count(self) -> int:
        """Parts in a period."""
        return len(self.totals)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that replace it, outermost first."""
        around = () if self.period is None else (self.period,)
        return (*around, self.part, self.position)

    def column(self, part: ir.Expr | int) -> ir.Expr:
        """Return the column at a position of a part."""
        period = index(0) if self.period is None else self.period.var
        return (period * self.count + part) * self.width + self.position.var

    def apply(self, stage: Stage) -> Stage:
        """Reindex a stage by the new axes."""
        place = {self.axis.var: self.column(self.part.var)}
        return replace(
            stage,
            axes=tuple(new for a in stage.axes for new in (self.axes if a is self.axis else (a,))),
            indices=tuple(tuple(substitute(i, place) for i in w) for w in stage.indices),
            values=tuple(substitute(v, place) for v in stage.values),
        )


ELSEWHERE = "elsewhere"  # of a result that reads the sum at other columns than those of parts


def of_part(result: Result, stage: Stage, split: ColumnSplit, part: int) -> Result | str | None:
    """Restrict a result to the columns of one part; ``None`` where it has none of them."""
    result = replace(result, part=part)
    analyzer = analyzer_of((*(a for a in stage.axes if a is not split.axis), *split.axes))
    place = {split.axis.var: split.column(part)}
    if result.condition is None:
        return _with_totals(result, stage, split, place, analyzer)
    condition = _of_period(analyzer, substitute(result.condition, place), split)
    holds = _verdict(analyzer, condition)
    if holds is not None:
        free = replace(result, condition=None)
        return _with_totals(free, stage, split, place, analyzer) if holds else None
    with analyzer.constraint_scope(condition):
        limited = replace(result, condition=condition)
        return _with_totals(limited, stage, split, place, analyzer)


def _with_totals(
    result: Result,
    stage: Stage,
    split: ColumnSplit,
    place: Mapping[ir.Var, ir.Expr],
    analyzer: sym.Analyzer,
) -> Result | str:
    """Replace loads of the sum by accumulators, once choices that the part decides are gone."""
    period = _only_period(analyzer, split)

    def at(expr: ir.Expr, columns: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
        return substitute(substitute(expr, columns), period)

    def choose(node: ir.Expr) -> ir.Expr:
        if isinstance(node, tirx.Select):
            asked, yes, no = node.condition, node.true_value, node.false_value
        elif call_name(node) == "if_then_else":
            asked, yes, no = node.args
        else:
            return node
        decided = _verdict(analyzer, asked)
        return node if decided is None else (yes if decided else no)

    own = stage.indices[0]
    columns = [{split.axis.var: split.column(number)} for number in range(split.count)]
    others = [[at(i, column) for i in own] for column in columns]
    lost = False

    def swap(node: ir.TensorLoad) -> ir.Expr:
        nonlocal lost
        if not node.source.same_as(stage.targets[0]):
            return load(node.source, [_simple(analyzer, i) for i in node.indices])
        for total, other in zip(split.totals, others, strict=True):
            if all(map(analyzer.can_prove_equal, node.indices, other)):
                return total
        lost = True
        return node

    value = at(result.value, place)
    value = tvm_ffi.structural_map(value, ((ir.Call, tirx.Select), choose), order="post")
    value = substitute(value, {}, swap)
    indices = tuple(_simple(analyzer, at(i, place)) for i in result.indices)
    return ELSEWHERE if lost else replace(result, indices=indices, value=value)


def _only_period(analyzer: sym.Analyzer, split: ColumnSplit) -> dict[ir.Var, ir.Expr]:
    """Return the period if a condition leaves only one."""
    if split.period is None:
        return {}
    bound = analyzer.const_int_bound(split.period.var)
    one = bound.min_value == bound.max_value
    return {split.period.var: index(bound.min_value)} if one else {}


def _simple(analyzer: sym.Analyzer, where: ir.Expr) -> ir.Expr:
    """Simplify an index; quotients that are the same at all positions become constants."""

    def settle(node: ir.Expr) -> ir.Expr:
        bound = analyzer.const_int_bound(node)
        return index(bound.min_value) if bound.min_value == bound.max_value else node

    kinds = (tirx.FloorDiv, tirx.FloorMod)
    where = tvm_ffi.structural_map(analyzer.simplify(where), (kinds, settle), order="post")
    return analyzer.simplify(where)


def _of_period(analyzer: sym.Analyzer, condition: ir.Expr, split: ColumnSplit) -> ir.Expr:
    """Simplify comparisons of columns; one that starts or ends with a part compares periods."""
    if isinstance(condition, tirx.And):
        a, b = (_of_period(analyzer, c, split) for c in (condition.a, condition.b))
        return analyzer.simplify(tirx.And(a, b))
    ends = [
        analyzer.simplify(substitute(condition, {split.position.var: index(at)}))
        for at in (0, split.width - 1)
    ]
    if isinstance(condition, (tirx.LE, tirx.LT)) and tvm_ffi.structural_equal(*ends):
        return ends[0]  # monotone: equal at both ends, equal between
    return analyzer.simplify(condition)


def _verdict(analyzer: sym.Analyzer, condition: ir.Expr) -> bool | None:
    """Whether a condition always holds or never does; ``None`` if neither is known."""
    if loads(condition):
        return None
    if analyzer.can_prove(condition):
        return True
    return False if analyzer.can_prove(tirx.Not(condition)) else None


def analyzer_of(axes: Sequence[Axis]) -> sym.Analyzer:
    """Return an analyzer that knows the ranges of axes."""
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    return analyzer


# Find the column split that lets epilogues read C at several columns a fixed distance apart.
MAX_PARTS = 4


def with_column_split(
    program: Program, maps: Sequence[Stage], stage: Stage, takes_pairs: bool = False
) -> tuple[ColumnSplit, tuple[Result, ...]] | None:
    """Express epilogues that read a sum at several columns over a column split.

    Parameters
    ----------
    maps
        All maps, without internal ones.
    takes_pairs
        Whether columns may be read a distance apart that the column decides.

    Returns
    -------
    tuple or None
        ``None`` where one of the maps does not read the sum, or not a fixed number of columns
        apart, or where no split of the columns serves all.
    """
    target = stage.targets[0]
    whole: list[Result] = []
    distances: set[int] = set()
    axes: set[ir.Var] = set()
    is_of_pairs = False
    for one in maps:
        reads = reads_of(one, target)
        if not reads or len(one.targets) != 1:
            return None
        sometimes = conditional_loads(one.values[0])
        own = next((x for x in reads if not any(x.same_as(s) for s in sometimes)), reads[0])
        candidates = [own, *(_within_pair(x, one) for x in reads if takes_pairs)]
        for own in candidates:
            result = reindexed(one, stage, own)
            found = _distances(own, reads, one.axes, takes_pairs)
            if result is not None and found is not None:
                break
        if result is None or found is None:
            return None
        is_of_pairs |= takes_pairs and _distances(own, reads, one.axes, False) is None
        for dim, steps in found.items():
            distances |= steps
            axes.add(stage.indices[0][dim])
        whole.append(result)
    if target in program.outputs:
        own = load(target, stage.indices[0])
        whole.append(Result(target, stage.indices[0], own, None))
    if len(axes) != 1:
        return None
    column = next((a for a in stage.axes if a.var in axes), None)
    for split in _splits(column, distances, str(target.ty.dtype)) if column is not None else ():
        results = [of_part(r, stage, split, p) for r in whole for p in range(split.count)]
        if all(r is not ELSEWHERE for r in results):
            split = replace(split, is_of_pairs=is_of_pairs)
            return split, tuple(r for r in results if isinstance(r, Result))
    return None


def _within_pair(read: ir.TensorLoad, part: Stage) -> ir.TensorLoad:
    """Move a read of a pair's first element to the one at the place of the map's last axis."""
    analyzer, last = analyzer_of(part.axes), part.axes[-1].var
    indices = [
        analyzer.simplify(i + tirx.floormod(last, index(2))) if last in variables(i) else i
        for i in read.indices
    ]
    return load(read.source, indices)


def _distances(
    own: ir.TensorLoad, reads: Sequence[ir.TensorLoad], axes: Sequence[Axis], takes_pairs: bool
) -> dict[int, set[int]] | None:
    """Return the distances of reads from ``own``, by dimension; ``None`` if they vary.

    Of pairs, those of both columns from each other.
    """
    analyzer = analyzer_of(axes)
    found: dict[int, set[int]] = {}
    for read in reads:
        for dim, (a, b) in enumerate(zip(own.indices, read.indices, strict=True)):
            if loads(a) or loads(b):
                if not tvm_ffi.structural_equal(a, b):
                    return None
                continue
            step = constant(analyzer.simplify(b - a))
            if step is None and takes_pairs:
                bound = analyzer.const_int_bound(analyzer.simplify(b - a))
                step = 1 if bound.min_value >= -1 and bound.max_value <= 1 else None
            if step is None:
                return None
            if step:
                found.setdefault(dim, set()).add(step)
    return found


def _splits(axis: Axis, distances: set[int], dtype: str) -> Iterator[ColumnSplit]:
    """Yield the splits of an axis where columns at these distances are parts of one period."""
    width, extent = math.gcd(*distances), constant(axis.extent)
    if extent is None:
        return
    name = axis.var.name
    for count in range(2, MAX_PARTS + 1):
        periods, rest = divmod(extent, count * width)
        if rest or not periods or max(map(abs, distances)) >= count * width:
            continue
        sizes = {"period": periods, "part": count, "position": width}
        period, part, position = (
            Axis(tirx.Var(f"{name}_{own}", "int64"), index(size)) for own, size in sizes.items()
        )
        totals = tuple(tirx.Var(f"total_{number}", dtype) for number in range(count))
        yield ColumnSplit(axis, width, period if periods > 1 else None, part, position, totals)
