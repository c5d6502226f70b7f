"""Clamp the indices of take, so that none is read out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm_ffi import structural_equal

from ...core.tir.loops import constant
from .engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ClampTake(value: Any, scope: Scope) -> Any:
    """``take(x, i, mode="fast") = take(x, i, mode="clip")``.

    The importer's mode reads whatever memory an index beyond the table points at, and warns of that
    at every lookup. A token id that is out of range must not end the process; clamping it costs two
    integer operators a row. For all indices in range nothing changes. One index that is known to be
    in range becomes part of the operator, so that what reads the slice knows where it lies; all
    indices of an axis in order take the table itself.
    """
    if op_name(value) != "relax.take":
        return None
    table, indices = value.args
    axis = None if value.attrs.axis is None else int(value.attrs.axis)
    is_known = axis is not None and isinstance(table.ty.shape, relax.ShapeExpr)
    if is_known and _are_all(scope.value(indices), table.ty.shape.values[axis]):
        return table
    if str(value.attrs.mode) != "fast":
        return None
    one = _known_index(table, indices, axis)
    if one is not None:
        return relax.op.take(table, relax.prim_value(one), axis)
    return relax.op.take(table, indices, axis=axis, mode="clip")


def _are_all(indices: relax.Expr, extent: ir.Expr) -> bool:
    """Whether indices count from zero up to an extent."""
    if isinstance(indices, ir.GenericConst):
        size = constant(extent)
        return size is not None and np.array_equal(indices.value.numpy(), np.arange(size))
    if op_name(indices) != "relax.arange":
        return False
    start, end, step = indices.args
    return constant(start) == 0 and constant(step) == 1 and structural_equal(end, extent)


def _known_index(table: relax.Expr, indices: relax.Expr, axis: int | None) -> int | None:
    """Return the only index, if it is a constant in a static range."""
    if axis is None or not isinstance(indices, ir.GenericConst) or indices.ty.ndim != 0:
        return None
    found, extent = int(indices.value.numpy()), table.ty.shape.values[axis]
    inside = isinstance(extent, tirx.IntImm) and 0 <= found < int(extent)
    return found if inside else None
