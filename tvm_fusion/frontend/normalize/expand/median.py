"""Expand median into sort and take."""

from typing import Any

from tvm import relax, tirx

from ..engine import Scope, op_name, rewrite_pass


@rewrite_pass
def ExpandMedian(value: Any, scope: Scope) -> Any:
    """``median(x) = x[argsort(x)[(n - 1) // 2]]`` along one axis, or over the flattened tensor.

    TVM's own legalization gathers the whole sorted tensor, and calls a sort that only CPUs have.
    """
    if op_name(value) != "relax.median":
        return None
    x, axes, keepdims = value.args[0], value.attrs.axis, bool(value.attrs.keepdims)
    if not isinstance(x.ty, relax.TensorType) or not isinstance(x.ty.shape, relax.ShapeExpr):
        return None
    if axes is not None and len(axes) == 1:
        values, positions = _middle(x, int(axes[0]) % x.ty.ndim, keepdims, scope)
        return relax.Tuple([values, positions])
    if axes is not None and len(axes) > 1:
        return None
    size = tirx.const(1, "int64")
    for extent in x.ty.shape.values:
        size = size * extent
    flat = scope.emit(relax.op.reshape(x, [size]))
    return _middle(flat, 0, keepdims, scope)[0]


def _middle(x: Any, axis: int, keepdims: bool, scope: Scope) -> tuple[Any, Any]:
    """Sort along an axis and take the element in the middle: values and positions."""
    at = tirx.floordiv(x.ty.shape.values[axis] - 1, tirx.IntImm("int64", 2))
    order = scope.emit(relax.op.argsort(x, axis, dtype="int64"))
    one = scope.emit(relax.op.take(order, relax.prim_value(at), axis))
    one = scope.emit(relax.op.expand_dims(one, axis))
    found = scope.emit(relax.op.gather_elements(x, one, axis))
    if keepdims:
        return found, one
    return scope.emit(relax.op.squeeze(found, [axis])), scope.emit(relax.op.squeeze(one, [axis]))
