"""Operators written otherwise, as cheaper ones or by none."""

from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import derived
from ...core.tir.loops import constant
from ..tensor_types import HALF, accumulation_dtype, dtype_of
from .engine import Scope, op_name, rewrite_pass

# Equal types mean equal tensors for these.
_BY_TYPE = ("relax.astype", "relax.reshape", "relax.broadcast_to", "relax.squeeze", "relax.flatten")


@rewrite_pass
def RemoveIdentities(value: Any, scope: Scope) -> Any:
    """Drop casts, reshapes and broadcasts to the type a tensor has already, and dropout."""
    if isinstance(value, relax.TupleGetItem) and value.index == 0:
        dropout = scope.call(value.tuple_value, "relax.nn.dropout")
        return None if dropout is None else dropout.args[0]
    name = op_name(value)
    if name == "relax.permute_dims":
        axes = value.attrs.axes
        if axes is not None and [int(axis) for axis in axes] == list(range(len(axes))):
            return value.args[0]
    elif name in _BY_TYPE and structural_equal(value.args[0].ty, value.ty):
        return value.args[0]
    return None


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


_BINARY = {
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}


@rewrite_pass
def UnstackSum(value: Any, scope: Scope) -> Any:
    """``sum(stack([a, b, ...], axis=0), axis=0) = a + b + ...``; likewise mean, max and min.

    The importer writes ONNX's Sum, Mean, Max and Min so, each operand broadcast to the common shape
    first. The broadcasts go too: the binary operators broadcast by themselves.
    """
    binary = _BINARY.get(op_name(value))
    if binary is None or value.attrs.keepdims or value.attrs.axis is None:
        return None
    if [int(axis) for axis in value.attrs.axis] != [0]:
        return None
    stack = scope.call(value.args[0], "relax.stack")
    if stack is None or int(stack.attrs.axis or 0) != 0 or scope.uses(value.args[0]) != 1:
        return None
    operands = scope.value(stack.args[0])
    dtype = dtype_of(value)
    if not isinstance(operands, relax.Tuple):
        return None
    if op_name(value) == "relax.mean" and not dtype.startswith(("float", "bfloat")):
        return None
    fields = [_before_broadcast(field, scope) for field in operands.fields]
    wide = accumulation_dtype(dtype)
    is_sum = op_name(value) in ("relax.sum", "relax.mean")
    if wide != dtype and is_sum and len(fields) > 1:
        # It is one operator, whose partial sums are not rounded.
        fields = [scope.emit(relax.op.astype(field, wide)) for field in fields]
    result = reduce(lambda a, b: scope.emit(binary(a, b)), fields)
    if op_name(value) == "relax.mean":
        result = relax.op.multiply(result, relax.const(1.0 / len(fields), dtype_of(result)))
    if dtype_of(fields[0]) != dtype:
        result = relax.op.astype(scope.emit(result), dtype)
    if op_name(value) == "relax.mean" or dtype_of(fields[0]) != dtype:
        return result
    if not structural_equal(result.ty, value.ty):  # one operand, broadcast
        return relax.op.broadcast_to(result, value.ty.shape)
    return result


def _before_broadcast(field: Any, scope: Scope) -> Any:
    call = scope.call(field, "relax.broadcast_to")
    return field if call is None else call.args[0]


_PRODUCTS = frozenset(
    {
        "relax.matmul",
        *(f"relax.nn.conv{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3)),
    }
)
_VIEWS = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")


@rewrite_pass
def MultiplyHalves(value: Any, scope: Scope) -> Any:
    """``matmul(float32(a), float32(b)) = matmul(a, b, out_dtype=float32)``; convolutions as well.

    For a and b of one half type, views between them and the casts included: float32 holds each
    product of theirs, and their sums are taken in it either way. So matrix units multiply them, and
    weights are stored in their own type.
    """
    if op_name(value) not in _PRODUCTS or dtype_of(value) != "float32":
        return None
    sources = [_source(arg, scope) for arg in value.args[:2]]
    dtypes = {dtype_of(source[0]) for source in sources if source is not None}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    sources = [
        found if found is not None else _exact(arg, dtype)
        for found, arg in zip(sources, value.args[:2], strict=True)
    ]
    if None in sources:
        return None
    operands = [_viewed(source, views, scope) for source, views in sources]
    info = type(value.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(value.attrs, field.name) for field in info.fields}
    attrs = tvm.ir.make_node(info.type_key, **fields | {"out_dtype": "float32"})
    return relax.Call(value.op, [*operands, *value.args[2:]], attrs, value.ty_args)


def _source(arg: Any, scope: Scope) -> Any:
    """Return what of a half type is cast behind ``arg``, and the views of it, the last first."""
    views: list[relax.Call] = []
    while True:
        cast = scope.call(arg, "relax.astype")
        if cast is not None:
            return (cast.args[0], views) if dtype_of(cast.args[0]) in HALF else None
        view = scope.call(arg, *_VIEWS)
        if view is None:
            return None
        views.append(view)
        arg = view.args[0]


def _exact(arg: Any, dtype: str) -> Any:
    """Return a constant whose elements are all numbers of a half type, in that type."""
    if not isinstance(arg, GenericConst):
        return None
    wide = arg.value.numpy()
    with np.errstate(over="ignore"):
        narrow = wide.astype(numpy_dtype(dtype))
    if not np.array_equal(narrow.astype(wide.dtype), wide):
        return None
    return derived(relax.const(narrow, dtype), "half", [arg]), []


def _viewed(source: Any, views: list[relax.Call], scope: Scope) -> Any:
    for view in reversed(views):
        args = [source, *view.args[1:]]
        source = scope.emit(relax.Call(view.op, args, view.attrs, view.ty_args))
    return source
