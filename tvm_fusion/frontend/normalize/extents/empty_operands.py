"""Compute the results of operators over empty tensors, as numpy and ONNX define them."""

import math
from typing import Any

import numpy as np
from tvm import relax

from ....core.constants.numpy_types import numpy_dtype
from ....errors import UserError
from ...tensor_types import dtype_of, static

# Elements are read, but there are none; numpy and PyTorch refuse these, too.
_READS = frozenset(
    {
        *("take", "gather_elements", "gather_nd", "index_tensor"),
        *("argmax", "argmin", "median", "topk", "image.resize2d", "image.resize3d"),
        *(f"nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
        *("vision.roi_align", "vision.roi_pool"),
    }
)
_UPDATES = {"scatter_elements": 2, "scatter_nd": 2, "slice_scatter": 1}  # operand of new values
_PLAIN_SUMS = ("matmul", "einsum", "sum", "collapse_sum_to", "collapse_sum_like", "size")
_MOMENTS = ("mean", "variance", "std")


def has_zero(ty: Any) -> bool:
    """Whether a type is a tensor's with an extent of zero."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    return 0 in map(static, ty.shape.values)


def fields(ty: Any) -> list[Any]:
    """List the types of a tuple's fields, or a tensor's type as the only one."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def result_of_empty(call: relax.Call) -> Any:
    """Return an expression for the result of an operator with an operand that has no elements.

    Parameters
    ----------
    call : tvm.relax.Call
        An operator with a result that may have elements.

    Returns
    -------
    tvm.relax.Expr or None
        None where only the operator itself knows, as a padded convolution does.

    Raises
    ------
    UserError
        Where there is no result: an element is read of a tensor that has none.
    """
    name = str(call.op.name).removeprefix("relax.")
    if name in _READS or (name == "image.grid_sample" and call.attrs.padding_mode != "zeros"):
        if has_zero(call.args[0].ty):
            raise _refusal(call, "has no element to read")
        return None
    if name in _UPDATES:
        return call.args[0] if has_zero(call.args[_UPDATES[name]].ty) else None
    if name == "index_put":
        return call.args[0] if any(map(has_zero, fields(call.args[1].ty))) else None
    if not isinstance(call.ty, relax.TensorType) or not isinstance(call.ty.shape, relax.ShapeExpr):
        return None
    number = _number(call, name)
    if number is None:
        return None
    dtype = dtype_of(call)
    array = np.array(number, numpy_dtype(dtype))
    return relax.op.full(call.ty.shape, relax.const(array, dtype), dtype)


def _number(call: relax.Call, name: str) -> float | int | bool | None:
    """Return the number that every element of the result is; None where it is not known."""
    dtype = numpy_dtype(call.ty.dtype.dtype)
    if name in _PLAIN_SUMS:
        return 0
    if name == "prod":
        return 1
    if name in ("max", "min"):
        return _identity(dtype, name == "max")
    if name in _MOMENTS:
        if dtype.kind not in "fV":
            raise _refusal(call, f"of {dtype} is not a number")
        return math.nan
    if name == "nn.pad":
        if str(call.attrs.pad_mode) != "constant":
            raise _refusal(call, "has no element to repeat")
        return float(call.attrs.pad_value)
    if name == "bucketize":
        return 0 if has_zero(call.args[1].ty) else None
    if name in ("nn.attention", "nn.attention_bias"):
        return 0 if static(call.args[1].ty.shape[1]) == 0 else None
    if name.startswith("nn.conv"):
        weight = call.args[1].ty  # of padding alone, a convolution knows the sums itself
        return 0 if has_zero(weight) or name.endswith("_transpose") else None
    if name in ("nn.cross_entropy_with_logits", "nn.nll_loss"):
        return _loss(call, name)
    return None


def _loss(call: relax.Call, name: str) -> float | None:
    """Return a sum over no rows, or over rows without classes, or its mean."""
    shape = call.args[0].ty.shape
    if name == "nn.nll_loss":
        if len(shape) == 1 or static(shape[0]) != 0:  # a class is read
            raise _refusal(call, "has no element to read")
        return math.nan if str(call.attrs.reduction) == "mean" else 0.0
    return math.nan if len(shape) > 1 and static(shape[0]) == 0 else 0.0


def _identity(dtype: np.dtype, largest: bool) -> float | int | bool:
    """Return the identity of maximum, or of minimum."""
    if dtype.kind == "b":
        return not largest
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min if largest else info.max)
    return -math.inf if largest else math.inf


def _refusal(call: relax.Call, what: str) -> UserError:
    name = str(call.op.name).removeprefix("relax.")
    shapes = [
        str(ty.shape).removeprefix("R.shape")
        for a in call.args
        for ty in fields(a.ty)
        if isinstance(ty, relax.TensorType) and ty.shape is not None
    ]
    return UserError(
        f"operator {name} on operands of shapes {', '.join(shapes)} {what}",
        "extents of at least one",
        "leave the operator out where its operand is empty",
    )
