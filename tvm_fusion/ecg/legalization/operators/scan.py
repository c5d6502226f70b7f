"""Prefix sums as one PrimFunc: along the last axis on any target, along any axis on a CPU.

TVM's own way on a GPU is a kernel over matrices of unknown size with a workspace and a second
launch for each factor of 512 in a row, between reshapes; its serial form leaves the schedule open.
Along other axes its threads read sums that others of their block write with no barrier between (the
interpreter of AMD code finds it), so that a GPU transposes, sums along rows and transposes back.
"""

from __future__ import annotations

from tvm import relax, te, tirx, topi
from tvm.target import Target

NAME = "relax.cumsum"
_TYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64"})


def cumsum(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Compute the inclusive or exclusive prefix sum along an axis."""
    attrs = call.attrs

    def compute(x: te.Tensor) -> te.Tensor:
        axis = len(x.shape) - 1 if attrs.axis is None else int(attrs.axis) % len(x.shape)
        return topi.cumsum(x, axis, str(call.ty.dtype.dtype), bool(attrs.exclusive))

    return bb.call_te(compute, call.args[0], primfunc_name_hint="cumsum")


def has_kernel(call: relax.Call) -> bool:
    """Whether a running sum goes along an axis and over types that kernels of the target know."""
    target = Target.current(allow_none=True)
    is_cpu = target is not None and target.kind.name == "llvm"
    axis, rank = call.attrs.axis, call.args[0].ty.ndim
    return (is_last(axis, rank) or (is_cpu and axis is not None)) and _is_known(call, target)


def runs_across(call: relax.Call) -> bool:
    """Tell whether a call sums across rows, where kernels of the target sum along them."""
    target = Target.current(allow_none=True)
    if str(call.op.name) != NAME or target is None or "gpu" not in target.keys:
        return False
    return not is_last(call.attrs.axis, call.args[0].ty.ndim) and _is_known(call, target)


def _is_known(call: relax.Call, target: Target | None) -> bool:
    ty = call.args[0].ty
    if ty.ndim < 1 or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in ty.shape.values):
        return False
    dtypes = {str(t.dtype.dtype) for t in (ty, call.ty)}
    # AMD's threads exchange words of 32 bits.
    is_narrow = target is None or target.kind.name != "rocm" or "int64" not in dtypes
    return dtypes <= _TYPES and is_narrow


def summed_along_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Transpose, sum along rows and transpose back; without an axis, a tensor is flattened."""
    x = call.args[0]
    if call.attrs.axis is None:
        return _along_rows(builder.emit(relax.op.flatten(x)), call)
    axis = int(call.attrs.axis) % x.ty.ndim
    order = [*(i for i in range(x.ty.ndim) if i != axis), axis]
    rows = builder.emit(relax.op.permute_dims(x, order))
    back = [order.index(i) for i in range(x.ty.ndim)]
    return relax.op.permute_dims(builder.emit(_along_rows(rows, call)), back)


def _along_rows(x: relax.Expr, call: relax.Call) -> relax.Call:
    return relax.op.cumsum(x, -1, str(call.ty.dtype.dtype), bool(call.attrs.exclusive))


def is_last(axis: int | None, rank: int) -> bool:
    """Whether an axis is a tensor's last one; without an axis, a tensor is a single row."""
    return rank == 1 if axis is None else int(axis) in (-1, rank - 1)
