"""Prefix sums as one PrimFunc: along the last axis on any target, along any axis on a CPU.

TVM's own way on a GPU is a kernel over matrices of unknown size with a workspace and a second
launch for each factor of 512 in a row, between reshapes; its serial form leaves the schedule open.
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
    ty, axis = call.args[0].ty, call.attrs.axis
    if ty.ndim < 1 or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in ty.shape.values):
        return False
    dtypes = {str(t.dtype.dtype) for t in (ty, call.ty)}
    target = Target.current(allow_none=True)
    # AMD's threads exchange words of 32 bits.
    is_narrow = target is None or target.kind.name != "rocm" or "int64" not in dtypes
    is_cpu = target is not None and target.kind.name == "llvm"
    along = is_last(axis, ty.ndim) or (is_cpu and axis is not None)
    return along and dtypes <= _TYPES and is_narrow


def is_last(axis: int | None, rank: int) -> bool:
    """Whether an axis is a tensor's last one; without an axis, a tensor is a single row."""
    return rank == 1 if axis is None else int(axis) in (-1, rank - 1)
