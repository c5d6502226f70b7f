"""Replace a reduction over stacked tensors, as ONNX's Sum is imported, by binary operators."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from ..tensor_types import accumulation_dtype, dtype_of
from .engine import Scope, op_name, rewrite_pass

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
