"""Padded and dilated operands, materialized before a convolution on a CPU reads them.

A = where(1 <= h + r <= H and 1 <= w + s <= W, x[c, h + r - 1, w + s - 1], 0)

for c, hr, ws:  padded[c, hr, ws] = where(1 <= hr <= H and 1 <= ws <= W, x[c, hr - 1, ws - 1], 0)
A              = padded[c, h + r, w + s]                     no condition in the convolution's loops
with a stride:   padded[c, hr, ws % stride, ws // stride]    so that columns are contiguous
"""

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import variables
from .....core.tir.loops import ceildiv, constant, index, substitute
from .....program.stage import Axis, Stage
from ....index.address import conditional_loads
from ..sum_of_products import SumOfProducts
from .prim_func import MaterializedOperand

_Atoms = dict[ir.Var, int]


@dataclass(frozen=True, eq=False)
class MergedOperand:
    """An operand over axes of which each sum of axes that it depends on is one."""

    axes: tuple[Axis, ...]  # new axes; an axis that was in no sum stands for itself
    place: tuple[ir.Expr, ...]  # each of them over the contraction's axes
    value: ir.Expr  # the operand, over ``axes``
    sums: dict[ir.Var, dict[ir.Var, int]]  # by new axis, the coefficients of the axes in its sum


def materialize_padded(
    contraction: SumOfProducts, name: str, operand: ir.Expr
) -> MaterializedOperand | None:
    """Materialize an operand with conditions over the positions that it reads.

    ``where(1 <= h + r <= H, x[c, h + r - 1], 0)`` depends on ``h + r`` alone, so it is an array
    over ``c`` and ``h + r``: the padded input. Every sum of axes in the operand becomes one axis.

    Returns
    -------
    MaterializedOperand or None
        None without conditions, or where axes appear outside of sums, too.
    """
    if not conditional_loads(operand):
        return None
    stage = contraction.stage
    merged = merge_sums(stage, operand)
    if merged is None or not merged.sums:
        return None
    axes, place, value = _interleaved(
        contraction, list(merged.axes), list(merged.place), merged.value
    )
    analyzer = sym.Analyzer()
    for axis in (*stage.axes, *stage.reduce, *axes):
        analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(axis.extent)))
    buffer = declare([index(a.extent) for a in axes], str(operand.ty.dtype), name)
    return MaterializedOperand(
        operand,
        buffer,
        tuple(axes),
        analyzer.simplify(value),
        tuple(analyzer.simplify(p) for p in place),
        is_padded=True,
    )


def merge_sums(stage: Stage, operand: ir.Expr) -> MergedOperand | None:
    """Express an operand over its sums of axes; ``None`` where axes appear outside of them, too."""
    extents = {a.var: a.extent for a in (*stage.axes, *stage.reduce)}
    sums: dict[frozenset, tuple[ir.Var, ir.Expr, ir.Expr]] = {}  # new axis, its sum, its minimum

    def merge(node: ir.Expr) -> ir.Expr:
        found = _linear(node, extents)
        if found is None or len(found[0]) < 2:
            return node
        atoms, rest = found
        by = math.gcd(*atoms.values())  # 2 * h + 2 * r moves as h + r does
        terms = [(v, count // by) for v, count in atoms.items()]
        key = frozenset(terms)
        if key not in sums:
            total, least, size = index(0), index(0), index(1)
            for var, count in terms:  # in order: a set's differs from process to process
                reach = (index(extents[var]) - 1) * count
                total = total + var * count
                size = size + (reach if count > 0 else -reach)
                least = least + (reach if count < 0 else 0)
            analyzer = sym.Analyzer()
            axis = tirx.Var("_".join(sorted(v.name for v, _ in key)), "int64")
            extents[axis] = analyzer.simplify(size)
            sums[key] = (axis, total, analyzer.simplify(least))
        axis, _, least = sums[key]
        return (axis + least) * by + rest

    kinds = (tirx.Add, tirx.Sub)
    value = tvm_ffi.structural_map(operand, (kinds, merge), order="post")
    summed = {v for _, total, _ in sums.values() for v in variables(total)}
    used = [v for v in extents if v in variables(value)]
    if summed & set(used):
        return None
    places: dict[ir.Var, ir.Expr] = {}
    for axis, total, least in sums.values():
        places[axis] = substitute(total, places) - least
    fresh = {v: tirx.Var(v.name, "int64") for v in used}
    return MergedOperand(
        tuple(Axis(fresh[v], extents[v]) for v in used),
        tuple(places.get(v, v) for v in used),
        substitute(value, fresh),
        {fresh[axis]: dict(key) for key, (axis, *_) in sums.items() if axis in fresh},
    )


def _interleaved(
    contraction: SumOfProducts, axes: list[Axis], place: list[ir.Expr], value: ir.Expr
) -> tuple[list[Axis], list[ir.Expr], ir.Expr]:
    """Split a last axis that columns stride over by the stride, so that they are contiguous."""
    column = contraction.stage.axes[-1].var if contraction.stage.axes else None
    found = _linear(place[-1], {column: 0}) if column is not None else None
    by = found[0].get(column, 0) if found is not None else 0
    if by < 2:
        return axes, place, value
    *outer, last = axes
    remainder, quotient = (tirx.Var(f"{last.var.name}_{part}", "int64") for part in "rq")
    position = quotient * by + remainder
    value = substitute(value, {last.var: position})
    size = constant(last.extent)
    if size is None or size % by:
        zero = tirx.const(0, str(value.ty.dtype))
        value = tirx.if_then_else(position < index(last.extent), value, zero)
    new = [*outer, Axis(remainder, index(by)), Axis(quotient, ceildiv(last.extent, by))]
    inside = place[-1]
    where = [*place[:-1], tirx.floormod(inside, index(by)), tirx.floordiv(inside, index(by))]
    return new, where, value


def _linear(expr: ir.Expr, axes) -> tuple[_Atoms, ir.Expr] | None:
    """Split a linear expression into axes' coefficients and a rest; ``None`` for anything else."""
    if not set(variables(expr)) & set(axes):
        return {}, expr
    if isinstance(expr, ir.Var):
        return {expr: 1}, index(0)
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        sign = 1 if isinstance(expr, tirx.Add) else -1
        a, b = _linear(expr.a, axes), _linear(expr.b, axes)
        if a is None or b is None:
            return None
        atoms = dict(a[0])
        for var, factor in b[0].items():
            atoms[var] = atoms.get(var, 0) + sign * factor
        rest = a[1] + b[1] if sign > 0 else a[1] - b[1]
        return {v: f for v, f in atoms.items() if f}, rest
    if isinstance(expr, tirx.Mul):
        for whole, by in ((expr.a, constant(expr.b)), (expr.b, constant(expr.a))):
            found = _linear(whole, axes) if by is not None else None
            if found is not None and by is not None:
                return {v: f * by for v, f in found[0].items()}, found[1] * by
    return None
