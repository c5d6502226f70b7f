"""Sums over groups of adjacent columns of a GEMM's result, written next to it.

    mean[m, t] = sum over j < 64 of C[m, 64 t + j] / 64
    square[m, t] = sum over j < 64 of (C[m, 64 t + j] - mean[m, t])^2

These are what the next norm over rows of C needs: a few numbers of each row, instead of the row.
The second sum is of deviations from the group's own mean, so that nothing cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from .....core.contract.template import Refusal
from .....core.tir.expressions import load, loads, map_loads, variables
from .....core.tir.loops import constant, index, substitute
from .....program.contractions import term_of
from .....program.stage import Stage
from ..results import Result, axes_at, result_of
from ..sum_of_products import SumOfProducts

WIDTH = 64  # columns of a group: tiles have several of them


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Sums over groups of adjacent columns of a result."""

    result: int
    element: ir.Var  # stands for an element of it in terms
    width: int  # columns of a group
    # Targets (float32) and terms, over ``element`` and loads of targets before.
    sums: tuple[tuple[ir.Var, ir.Expr], ...]
    stores: tuple[Result, ...]  # outputs of groups: of loads of targets, over the product's axes


def with_group_sums(
    contraction: SumOfProducts,
    sums: Sequence[Stage],
    ends: Sequence[Stage],
    outputs: Sequence[ir.Var],
) -> SumOfProducts | Refusal:
    """Add sums over groups of columns.

    Parameters
    ----------
    contraction
        The product with its other results.
    sums
        Reductions over an expression of the product's sum.

    Returns
    -------
    SumOfProducts or Refusal
        With ``group_sums``.
    """
    found = _read(contraction, sums, ends, outputs)
    if found is None:
        names = ", ".join(dict.fromkeys(s.title for s in sums))
        return Refusal(
            "no_group_sum",
            f"The results of {names} are not the sums of groups of {WIDTH} adjacent columns of a "
            f"result of {contraction.stage.title}.",
        )
    return replace(contraction, group_sums=found)


def _read(
    contraction: SumOfProducts,
    stages: Sequence[Stage],
    ends: Sequence[Stage],
    outputs: Sequence[ir.Var],
) -> GroupSums | None:
    column = contraction.stage.axes[-1]
    extent, widths = constant(column.extent), {group_width(s) for s in stages}
    width = widths.pop() if len(widths) == 1 else None
    if extent is None or width is None or extent % width:
        return None
    analyzer = sym.Analyzer()
    for axis in contraction.stage.axes:
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    group = tirx.floordiv(column.var, index(width))  # of extent 1 where groups have an axis
    element, number = None, None
    sums: list[tuple[ir.Var, ir.Expr]] = []
    places: dict[ir.Var, tuple[ir.Expr, ...]] = {}
    for stage in stages:
        term, target = term_of(stage), stage.targets[0]
        if term is None or str(target.ty.dtype) != "float32":
            return None
        flat = replace(
            stage, axes=(*stage.axes, *stage.reduce), reduce=(), values=(term,), init=None
        )
        own = result_of(flat, contraction.stage, contraction.total)
        if isinstance(own, Refusal) or own.condition is not None:
            return None
        value = _simplified(own.value, analyzer)
        place = tuple(analyzer.simplify(i) for i in own.indices)
        if any(
            column.var in variables(i) and not tvm_ffi.structural_equal(i, group) for i in place
        ):
            return None
        if number is None:
            number = _matching(contraction.results, value, analyzer)
            if number is None:
                return None
            element = tirx.Var("element", str(contraction.results[number].buffer.ty.dtype))
        value = _replaced(value, _simplified(contraction.results[number].value, analyzer), element)
        others = [x.source for x in loads(value)]
        if contraction.total in variables(value) or any(x not in places for x in others):
            return None
        places[target] = place
        sums.append((target, value))
    stores = [Result(t, places[t], load(t, places[t]), None) for t, _ in sums if t in outputs]
    for end in ends:
        read = loads(end.values[0])[0]
        if any(x.source not in places for x in loads(end.values[0])):
            return None
        where = axes_at(end, read.indices, places[read.source])
        indices = tuple(substitute(i, where) for i in end.indices[0])
        stores.append(Result(end.targets[0], indices, substitute(end.values[0], where), None))
    if element is None or number is None or not stores:
        return None
    return GroupSums(number, element, width, tuple(sums), tuple(stores))


def group_width(stage: Stage) -> int | None:
    """Return the number of terms of a group sum; ``None`` for widths that no tile has."""
    sizes = [constant(a.extent) for a in stage.reduce if constant(a.extent) != 1]
    return WIDTH if sizes == [WIDTH] else None


def _simplified(expr: ir.Expr, analyzer: sym.Analyzer) -> ir.Expr:
    """Simplify indices, so that loads of one element are equal."""
    return map_loads(expr, lambda x: load(x.source, [analyzer.simplify(i) for i in x.indices]))


def _matching(results: Sequence[Result], value: ir.Expr, analyzer: sym.Analyzer) -> int | None:
    """Find the result whose value an expression holds."""
    for number, result in enumerate(results):
        probe = tirx.Var("probe", str(result.value.ty.dtype))
        if result.condition is None and probe in variables(
            _replaced(value, _simplified(result.value, analyzer), probe)
        ):
            return number
    return None


def _replaced(expr: ir.Expr, part: ir.Expr, by: ir.Expr) -> ir.Expr:
    """Replace a part of an expression wherever it stands."""

    def swap(node: ir.Expr) -> ir.Expr:
        return by if tvm_ffi.structural_equal(node, part) else node

    return tvm_ffi.structural_map(expr, (type(part), swap), order="post")
