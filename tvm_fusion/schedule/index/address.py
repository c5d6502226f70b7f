"""Addresses of accesses: offsets, strides, contiguity, and the conditions of loads."""

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, sym, tirx

from ..._tvm.ir.structural import structural_map
from ...core.tir.expressions import call_name, variables
from ...core.tir.loops import constant, find, index, substitute
from ...program.stage import Axis

_VECTOR = 16  # elements of a vector, or a multiple of them


def offset(buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Return the row-major offset of an element, in elements."""
    total = index(0)
    for position, extent in zip(indices, buffer.ty.shape, strict=True):
        total = total * index(extent) + index(position)
    return total


def stride(position: ir.Expr, axis: ir.Var, axes: Sequence[ir.Var]) -> ir.Expr | None:
    """Return the stride along an axis; ``None`` where it is not the same everywhere."""
    if axis not in variables(position):
        return index(0)
    elements = find(position, ir.TensorLoad)
    if any(axis in variables(i) for element in elements for i in element.indices):
        return None
    moved = substitute(position, {axis: axis + 1})
    step = sym.Analyzer().simplify(moved - position)
    used = set(tirx.analysis.undefined_vars(step))
    return None if used & set(axes) or find(step, ir.TensorLoad) else step


def known_step(
    buffer: ir.Var, indices: Sequence[ir.Expr], axis: ir.Var, axes: Sequence[ir.Var]
) -> int | None:
    """Return the stride along an axis, if it is a constant."""
    plain = _plain_step(buffer, indices, axis)
    if plain is not None:
        return plain
    step = stride(offset(buffer, indices), axis, axes)
    return None if step is None else constant(step)


def _plain_step(buffer: ir.Var, indices: Sequence[ir.Expr], axis: ir.Var) -> int | None:
    """Return the stride where indices are variables and constants, as most are."""
    step = 0
    for position, extent in zip(indices, buffer.ty.shape, strict=True):
        if not isinstance(position, ir.Var | tirx.IntImm):
            return None
        if step:
            size = constant(extent)
            if size is None:
                return None
            step *= size
        step += isinstance(position, ir.Var) and position.same_as(axis)
    return step


def lies_along(
    buffer: ir.Var, indices: Sequence[ir.Expr], axis: Axis, width: int = _VECTOR
) -> bool:
    """Whether accesses are contiguous along an axis, in every aligned vector of it.

    So are the columns of attention heads: ``column // 64`` and ``column % 64`` are two dimensions,
    but no aligned vector of 16 crosses from one head to the next.
    """
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(width)))
    place = {axis.var: vector * width + lane}
    position = analyzer.simplify(substitute(offset(buffer, indices), place) - lane)
    return lane not in tirx.analysis.undefined_vars(position)


def is_aligned(place: ir.Expr, lanes: int, analyzer: sym.Analyzer) -> bool:
    """Whether a vector at an offset is always aligned to its length."""
    return analyzer.can_prove_equal(tirx.floormod(place, index(lanes)), 0)


def same(a: ir.TensorLoad, b: ir.TensorLoad) -> bool:
    """Whether two loads are of the same element."""
    return a.source.same_as(b.source) and all(
        tvm_ffi.structural_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True)
    )


def conditional_loads(expr: ir.Expr) -> list[ir.TensorLoad]:
    """List the loads that happen only where an ``if_then_else`` takes their branch."""
    choices = [c for c in find(expr, ir.Call) if call_name(c) == "if_then_else"]
    return [load for c in choices for branch in c.args[1:] for load in find(branch, ir.TensorLoad)]


def conditions_of(load: ir.TensorLoad, expr: ir.Expr) -> list[ir.Expr]:
    """List the conditions that must all hold where an expression loads an element.

    Raises
    ------
    ValueError
        If it loads that element in several places, possibly under different conditions.
    """

    def count(part: ir.Expr) -> int:
        return sum(same(x, load) for x in find(part, ir.TensorLoad))

    found: list[ir.Expr] = []
    if not any(same(x, load) for x in conditional_loads(expr)):
        return found
    if count(expr) != 1:
        raise ValueError(f"{load} is read {count(expr)} times")
    for condition, then, otherwise in (
        c.args for c in find(expr, ir.Call) if call_name(c) == "if_then_else"
    ):
        if count(then):
            found.append(condition)
        elif count(otherwise):
            found.append(tirx.Not(condition))
    return found


def without_loads(expr: ir.Expr) -> ir.Expr:
    """Replace every load by a variable, to find other uses of an axis."""
    return structural_map(
        expr,
        (ir.TensorLoad, lambda load: tirx.Var("element", str(load.ty.dtype))),
        order="post",
    )
