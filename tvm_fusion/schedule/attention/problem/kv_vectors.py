"""Vector loads of queries, keys and values: contiguous, aligned, and all or nothing of a vector."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import DataType, ir, sym, tirx

from ....core.expressions import loads, variables
from ....core.loops import constant, substitute
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


def has_uniform_conditions(load: ir.TensorLoad, operand: ir.Expr, along: Axis) -> bool:
    """Whether all elements of a vector are read, or none is."""
    try:
        conditions = conditions_of(load, operand)
    except ValueError:
        return False
    return not any(along.var in variables(c) or loads(c) for c in conditions)
