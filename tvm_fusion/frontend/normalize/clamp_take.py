"""Clamp the indices of take, so that none is read out of bounds."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax, tirx

from .engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ClampTake(value: Any, _scope: Scope) -> Any:
    """``take(x, i, mode="fast") = take(x, i, mode="clip")``.

    The importer's mode reads whatever memory an index beyond the table points at, and warns of that
    at every lookup. A token id that is out of range must not end the process; clamping it costs two
    integer operators a row. For all indices in range nothing changes. One index that is known to be
    in range becomes part of the operator, so that what reads the slice knows where it lies.
    """
    if op_name(value) != "relax.take" or str(value.attrs.mode) != "fast":
        return None
    table, indices = value.args
    axis = None if value.attrs.axis is None else int(value.attrs.axis)
    one = _known_index(table, indices, axis)
    if one is not None:
        return relax.op.take(table, relax.prim_value(one), axis)
    return relax.op.take(table, indices, axis=axis, mode="clip")


def _known_index(table: relax.Expr, indices: relax.Expr, axis: int | None) -> int | None:
    """Return the only index, if it is a constant in a static range."""
    if axis is None or not isinstance(indices, ir.GenericConst) or indices.ty.ndim != 0:
        return None
    found, extent = int(indices.value.numpy()), table.ty.shape.values[axis]
    inside = isinstance(extent, tirx.IntImm) and 0 <= found < int(extent)
    return found if inside else None
