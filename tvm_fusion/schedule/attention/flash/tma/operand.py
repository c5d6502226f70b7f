"""Operands of FlashAttention as tensor maps: rows of queries or keys that TMA copies in boxes.

    view[batch.., row, d]      of q, k or v, d contiguous; boxes of 64 elements times the rows of a
                               tile, one panel of shared memory each, zeros beyond either extent
    views                      of halves side by side, as rotary embeddings leave them: a view each

Along an axis of query heads of which several share a KV head (GQA), the view has the KV heads.
Addresses and strides are multiples of 16 bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tvm import ir, sym, tirx

from .....core.tir.expressions import int64, variables
from .....core.tir.loops import constant, find, index, substitute
from .....program.stage import Axis
from ....gpu.memory.tma import ALIGNMENT, MAX_RANK, PANEL, TensorMap
from ....gpu.memory.vector_loads import resolved
from ....index.address import offset
from ...problem.pattern import Pattern
from ...problem.query_group import QueryGroup
from ..problem import FlashProblem, Operand

LANES = ALIGNMENT // 2  # elements of a half type


@dataclass(frozen=True)
class TmaRows:
    """Rows of an operand."""

    # Boxes of one row: of each part, where rows are several tensors' side by side.
    tensor_maps: tuple[TensorMap, ...]
    # Axes of the batch that are dimensions of the views, in order, and how many neighbours along
    # each read the same rows.
    batch: tuple[tuple[ir.Var, int], ...]
    panels: tuple[tuple[int, int], ...]  # of the boxes that make up a row, the part and its element

    def with_rows(self, rows: int) -> list[TensorMap]:
        """Make the maps of boxes of so many rows."""
        box = (PANEL, rows, *(1 for _ in self.batch))
        return [replace(tensor_map, box=box) for tensor_map in self.tensor_maps]

    def boxes(
        self, where: Mapping[ir.Var, ir.Expr], first: ir.Expr
    ) -> list[tuple[int, list[ir.Expr]]]:
        """Return the map and the coordinates of each panel's box.

        Parameters
        ----------
        where
            The position along the batch.
        """
        behind = [tirx.floordiv(where[axis], index(count)) for axis, count in self.batch]
        return [(part, [index(element), first, *behind]) for part, element in self.panels]


def tma_operands(problem: FlashProblem) -> tuple[TmaRows, TmaRows, TmaRows] | None:
    """View q, k and v; ``None`` where TMA cannot copy one of them."""
    pattern = problem.pattern
    shared: dict[ir.Var, int] = {}
    group = QueryGroup.of(pattern)
    for axis, extent in () if group is None else group.batch:
        whole, own = constant(axis.extent), constant(extent)
        if whole is not None and own:
            shared[axis.var] = whole // own
    q = _rows(pattern, problem.q, problem.query, {})
    k = _rows(pattern, problem.k, pattern.key, shared)
    v = _rows(pattern, problem.v, pattern.key, shared)
    return None if q is None or k is None or v is None else (q, k, v)


def _rows(
    pattern: Pattern, operand: Operand, row: Axis, shared: Mapping[ir.Var, int]
) -> TmaRows | None:
    parts = _parts(operand)
    found = [_part(pattern, operand.along, part, row, shared) for part in parts]
    made = [one for one in found if one is not None]
    if not made or len(made) < len(parts) or any(batch != made[0][1] for _, batch in made):
        return None
    panels = [
        (number, i * PANEL)
        for number, part in enumerate(parts)
        for i in range(-(-part.extent // PANEL))
    ]
    return TmaRows(tuple(view for view, _ in made), made[0][1], tuple(panels))


class _Part(NamedTuple):
    """Elements of a row that are of one tensor: from some panel on."""

    load: ir.TensorLoad
    first: int
    extent: int


def _parts(operand: Operand) -> list[_Part]:
    """Split rows into the tensors that they are of; none where one ends within a panel."""
    if not operand.loads:
        return []
    along, lane = operand.along.var, tirx.Var("lane", "int64")
    found: list[_Part] = []
    for first in range(0, operand.extent, PANEL):
        analyzer, count = sym.Analyzer(), min(PANEL, operand.extent - first)
        analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(count)))
        element = resolved(substitute(operand.element, {along: lane + first}), analyzer)
        if not isinstance(element, ir.TensorLoad):
            return []
        load = next(x for x in operand.loads if x.source.same_as(element.source))
        if found and found[-1].load is load:
            found[-1] = found[-1]._replace(extent=found[-1].extent + count)
        else:
            found.append(_Part(load, first, count))
    if len({part.load.source for part in found}) < len(operand.loads):
        return []  # of one tensor at several places
    return found


def _part(
    pattern: Pattern, along: Axis, part: _Part, row: Axis, shared: Mapping[ir.Var, int]
) -> tuple[TensorMap, tuple[tuple[ir.Var, int], ...]] | None:
    """View a part; with the axes of the batch that are dimensions."""
    element = part.load
    place, analyzer = offset(element.source, element.indices), sym.Analyzer()
    axes: list[tuple[Axis, ir.Var, ir.Expr]] = []  # with a variable of its own, and its extent
    for axis in (along, row, *pattern.batch):
        count = shared.get(axis.var, 1)
        own = tirx.Var(axis.var.name, "int64")
        extent = index(axis.extent) if count == 1 else index(int(axis.extent) // count)
        extent = index(part.extent) if axis is along else extent
        analyzer.bind(own, ir.Range.from_min_extent(index(0), extent))
        place = substitute(place, {axis.var: own + part.first if axis is along else own * count})
        axes.append((axis, own, extent))
    place = analyzer.simplify(place)
    kept: list[tuple[Axis, ir.Expr, ir.Expr]] = []  # with extent and stride
    for axis, own, extent in axes:
        step = _step(place, own, [x for _, x, _ in axes], analyzer)
        if step is None or (axis is along and constant(step) != 1):
            return None
        if axis is not along and (axis is row or constant(step) != 0):
            kept.append((axis, extent, int64(step)))
    start = analyzer.simplify(substitute(place, {own: index(0) for _, own, _ in axes}))
    aligned = [start, *(step for _, _, step in kept)]
    if len(kept) >= MAX_RANK or any(constant(step) == 0 for _, _, step in kept):
        return None
    if not all(analyzer.can_prove_equal(tirx.floormod(x, index(LANES)), 0) for x in aligned):
        return None
    sizes = [index(part.extent), *(extent for _, extent, _ in kept)]
    # A tensor map has no extent of 0.
    sizes = [s if constant(s) is not None else tirx.max(s, index(1)) for s in sizes]
    box = (PANEL, 1, *(1 for _ in kept[1:]))
    strides = tuple(step for _, _, step in kept)
    view = TensorMap(element.source, start, tuple(sizes), strides, box)
    batch = tuple((axis.var, shared.get(axis.var, 1)) for axis, _, _ in kept[1:])
    return view, batch


def _step(
    place: ir.Expr, own: ir.Var, axes: list[ir.Var], analyzer: sym.Analyzer
) -> ir.Expr | None:
    """Return the stride along an axis; ``None`` where it is not the same everywhere."""
    step = analyzer.simplify(substitute(place, {own: own + 1}) - place)
    if variables(step) & set(axes) or find(step, ir.TensorLoad):
        return None
    return step
