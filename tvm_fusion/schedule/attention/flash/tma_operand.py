"""Operands of FlashAttention as tensor maps: rows of queries or keys that TMA copies in boxes.

    view[batch.., row, d]      of q, k or v, d contiguous; boxes of 64 elements times the rows of a
                               tile, one panel of shared memory each, zeros beyond either extent

Along an axis of query heads of which several share a KV head (GQA), the view has the KV heads.
Addresses and strides are multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm import ir, sym, tirx

from ....core.expressions import int64, variables
from ....core.loops import constant, find, index, substitute
from ....program.stage import Axis
from ...gpu.tma import ALIGNMENT, MAX_RANK, PANEL, TensorMap
from ...index.address import offset
from ..problem.pattern import Pattern
from ..problem.query_group import QueryGroup
from .problem import FlashProblem, Operand

LANES = ALIGNMENT // 2  # elements of a half type


@dataclass(frozen=True)
class TmaRows:
    """Rows of an operand.

    Attributes
    ----------
    tensor_map : TensorMap
        Boxes of one row.
    batch : tuple of (Var, int)
        Axes of the batch that are dimensions of the view, in order, and how many neighbours along
        each read the same rows.
    panels : int
        Boxes that make up a row.
    """

    tensor_map: TensorMap
    batch: tuple[tuple[ir.Var, int], ...]
    panels: int

    def with_rows(self, rows: int) -> TensorMap:
        """Make the map of boxes of so many rows."""
        return replace(self.tensor_map, box=(PANEL, rows, *(1 for _ in self.batch)))

    def boxes(self, where: Mapping[ir.Var, ir.Expr], first: ir.Expr) -> list[list[ir.Expr]]:
        """Return the coordinates of each panel's box.

        Parameters
        ----------
        where : mapping of Var to Expr
            The position along the batch.
        """
        behind = [tirx.floordiv(where[axis], index(count)) for axis, count in self.batch]
        return [[index(i * PANEL), first, *behind] for i in range(self.panels)]


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
    element = operand.element
    if not operand.loads or not isinstance(element, ir.TensorLoad):
        return None
    place, analyzer = offset(element.source, element.indices), sym.Analyzer()
    axes: list[tuple[Axis, ir.Var, ir.Expr]] = []  # with a variable of its own, and its extent
    for axis in (operand.along, row, *pattern.batch):
        count = shared.get(axis.var, 1)
        own = tirx.Var(axis.var.name, "int64")
        extent = index(axis.extent) if count == 1 else index(int(axis.extent) // count)
        analyzer.bind(own, ir.Range.from_min_extent(index(0), extent))
        place = substitute(place, {axis.var: own * count})
        axes.append((axis, own, extent))
    place = analyzer.simplify(place)
    kept: list[tuple[Axis, ir.Expr, ir.Expr]] = []  # with extent and stride
    for axis, own, extent in axes:
        step = _step(place, own, [x for _, x, _ in axes], analyzer)
        if step is None or (axis is operand.along and constant(step) != 1):
            return None
        if axis is not operand.along and (axis is row or constant(step) != 0):
            kept.append((axis, extent, int64(step)))
    start = analyzer.simplify(substitute(place, {own: index(0) for _, own, _ in axes}))
    aligned = [start, *(step for _, _, step in kept)]
    if len(kept) >= MAX_RANK or any(constant(step) == 0 for _, _, step in kept):
        return None
    if not all(analyzer.can_prove_equal(tirx.floormod(x, index(LANES)), 0) for x in aligned):
        return None
    sizes = [index(operand.extent), *(extent for _, extent, _ in kept)]
    # A tensor map has no extent of 0.
    sizes = [s if constant(s) is not None else tirx.max(s, index(1)) for s in sizes]
    box = (PANEL, 1, *(1 for _ in kept[1:]))
    strides = tuple(step for _, _, step in kept)
    view = TensorMap(element.source, start, tuple(sizes), strides, box)
    batch = tuple((axis.var, shared.get(axis.var, 1)) for axis, _, _ in kept[1:])
    return TmaRows(view, batch, -(-operand.extent // PANEL))


def _step(
    place: ir.Expr, own: ir.Var, axes: list[ir.Var], analyzer: sym.Analyzer
) -> ir.Expr | None:
    """Return the stride along an axis; ``None`` where it is not the same everywhere."""
    step = analyzer.simplify(substitute(place, {own: own + 1}) - place)
    if variables(step) & set(axes) or find(step, ir.TensorLoad):
        return None
    return step
