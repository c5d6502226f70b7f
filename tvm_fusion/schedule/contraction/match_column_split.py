"""Find the column split that lets epilogues read C at several columns a fixed distance apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import tvm_ffi
from tvm import ir, tirx

from ...core.expressions import load, loads
from ...core.loops import constant, index
from ...program.program import Program
from ...program.stage import Axis, Stage
from ..index.address import conditional_loads
from .column_split import ELSEWHERE, ColumnSplit, analyzer_of, of_part
from .epilogue import Result, reads_of, reindexed

MAX_PARTS = 4


def with_column_split(
    program: Program, maps: Sequence[Stage], stage: Stage
) -> tuple[ColumnSplit, tuple[Result, ...]] | None:
    """Express epilogues that read a sum at several columns over a column split.

    Parameters
    ----------
    program : Program
        Where they come from.
    maps : sequence of Stage
        All maps, without internal ones.
    stage : Stage
        The sum.

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
    for one in maps:
        reads = reads_of(one, target)
        if not reads or len(one.targets) != 1:
            return None
        sometimes = conditional_loads(one.values[0])
        own = next((x for x in reads if not any(x.same_as(s) for s in sometimes)), reads[0])
        result = reindexed(one, stage, own)
        found = _distances(own, reads, one.axes)
        if result is None or found is None:
            return None
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
            return split, tuple(r for r in results if isinstance(r, Result))
    return None


def _distances(
    own: ir.TensorLoad, reads: Sequence[ir.TensorLoad], axes: Sequence[Axis]
) -> dict[int, set[int]] | None:
    """Give the distances of reads from ``own``, by dimension; ``None`` if they vary."""
    analyzer = analyzer_of(axes)
    found: dict[int, set[int]] = {}
    for read in reads:
        for dim, (a, b) in enumerate(zip(own.indices, read.indices, strict=True)):
            if loads(a) or loads(b):
                if not tvm_ffi.structural_equal(a, b):
                    return None
                continue
            step = constant(analyzer.simplify(b - a))
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
