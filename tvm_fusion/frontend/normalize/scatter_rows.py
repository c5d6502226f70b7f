"""Scatter whole slices where an index is the same for all elements of each."""

from typing import Any

from tvm import relax, tirx
from tvm.target import Target
from tvm_ffi import structural_equal

from .engine import Scope, op_name, rewrite_pass

op = relax.op


@rewrite_pass
def ScatterRows(value: Any, scope: Scope) -> Any:
    """``scatter_elements(x, broadcast(i), u, axis) = scatter_nd(x, i, u)``, on CPUs.

    Graph networks broadcast the numbers of nodes along the features. Slices need no number of each
    element, and are vectors. Indices out of range stay so: those from the end are counted here. It
    runs where the target is known, not at import.
    """
    target = Target.current(allow_none=True)
    if op_name(value) != "relax.scatter_elements" or target is None or target.kind.name != "llvm":
        return None
    data, index, updates = value.args
    if not all(isinstance(x.ty.shape, relax.ShapeExpr) for x in value.args):
        return None
    shape, rank = data.ty.shape.values, len(data.ty.shape.values)
    axis = int(value.attrs.axis) % max(rank, 1)
    others = [a for a in range(rank) if a != axis]
    behind = [index.ty.shape.values[a] for a in others]
    if not others or not all(isinstance(d, tirx.IntImm) for d in behind):
        return None
    if all(int(d) == 1 for d in behind) or not structural_equal(index.ty.shape, updates.ty.shape):
        return None
    if not all(structural_equal(shape[a], d) for a, d in zip(others, behind, strict=True)):
        return None
    places = _one_of_each_slice(index, axis, scope)
    if places is None:
        return None
    count = index.ty.shape.values[axis]
    places = scope.emit(op.astype(scope.emit(op.reshape(places, [count, 1])), "int64"))
    extent = shape[axis]
    size = (
        relax.const(int(extent), "int64")
        if isinstance(extent, tirx.IntImm)
        else relax.prim_value(extent)
    )
    is_negative = scope.emit(op.less(places, relax.const(0, "int64")))
    places = scope.emit(op.where(is_negative, scope.emit(op.add(places, size)), places))
    front = [axis, *others]
    if axis:
        data, updates = (scope.emit(op.permute_dims(x, front)) for x in (data, updates))
    written = op.scatter_nd(data, places, updates, str(value.attrs.reduction))
    if not axis:
        return written
    return op.permute_dims(scope.emit(written), sorted(range(rank), key=front.__getitem__))


def _one_of_each_slice(index: Any, axis: int, scope: Scope) -> Any:
    """Return what was repeated along all axes but one, or ``None``."""
    while (cast := scope.call(index, "relax.astype")) is not None:
        index = cast.args[0]
    repeated = scope.call(index, "relax.broadcast_to", "relax.tile")
    if repeated is None or not isinstance(repeated.args[0].ty.shape, relax.ShapeExpr):
        return None
    given, shape = repeated.args[0], repeated.ty.shape.values
    own = given.ty.shape.values
    own = [tirx.IntImm("int64", 1)] * (len(shape) - len(own)) + [*own]
    known = structural_equal(own[axis], shape[axis])
    rest = (d for a, d in enumerate(own) if a != axis)
    return (
        given if known and all(isinstance(d, tirx.IntImm) and int(d) == 1 for d in rest) else None
    )
