"""Vector loads of queries, keys and values: contiguous, aligned, and all or nothing of a vector."""

from collections.abc import Sequence

from tvm import DataType, ir, sym, tirx

from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, index, substitute
from ....program.stage import Axis
from ...gpu.launch import VECTOR_BYTES
from ...index.address import conditions_of, is_aligned, offset, same, stride
from .pattern import Pattern


def contiguous_loads(pattern: Pattern, operand: ir.Expr, along: Axis) -> tuple[ir.TensorLoad, ...]:
    """List the different loads, all contiguous along an axis; none if one is not."""
    axes = [a.var for a in (*pattern.batch, pattern.key, along)]
    found: list[ir.TensorLoad] = []
    for x in loads(operand):
        if along.var not in variables(x) or any(same(x, y) for y in found):
            continue
        step = stride(offset(x.source, x.indices), along.var, axes)
        if step is None or constant(step) != 1:
            return ()
        found.append(x)
    return tuple(found)


def vector_width(loads: Sequence[tuple[ir.TensorLoad, Axis]]) -> int | None:
    """Choose the elements of a vector: the widest that is always aligned."""
    size = max(DataType(str(x.ty.dtype)).itemsize for x, _ in loads)
    vector, analyzer = tirx.Var("vector", "int64"), sym.Analyzer()

    def fits(width: int) -> bool:
        return all(
            int(axis.extent) % width == 0
            and is_aligned(
                substitute(offset(x.source, x.indices), {axis.var: vector * width}), width, analyzer
            )
            for x, axis in loads
        )

    return next((n for n in (8, 4, 2) if n * size <= VECTOR_BYTES and fits(n)), None)


def has_uniform_conditions(load: ir.TensorLoad, operand: ir.Expr, along: Axis, width: int) -> bool:
    """Whether all elements of an aligned vector of ``width`` are read, or none is.

    As of halves that are concatenated, where the first one ends between two vectors.
    """
    try:
        conditions = conditions_of(load, operand)
    except ValueError:
        return False
    return not any(loads(c) or not _is_uniform(c, along.var, width) for c in conditions)


def _is_uniform(condition: ir.Expr, along: ir.Var, width: int) -> bool:
    """Whether a condition is the same for all elements of an aligned vector along an axis."""
    if along not in variables(condition):
        return True
    if isinstance(condition, tirx.And | tirx.Or):
        return all(_is_uniform(c, along, width) for c in (condition.a, condition.b))
    if isinstance(condition, tirx.Not):
        return _is_uniform(condition.a, along, width)
    if isinstance(condition, tirx.LE | tirx.LT):
        least = condition.b - condition.a - int(isinstance(condition, tirx.LT))
    elif isinstance(condition, tirx.GE | tirx.GT):
        least = condition.a - condition.b - int(isinstance(condition, tirx.GT))
    else:
        return False
    # least >= 0, or else -least - 1 >= 0: the quotient by the width has the same sign.
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(width)))
    place = {along: vector * width + lane}
    found = (tirx.floordiv(substitute(x, place), index(width)) for x in (least, -1 - least))
    return any(lane not in variables(analyzer.simplify(x)) for x in found)
