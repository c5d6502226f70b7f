"""Convert sorting and searching: top k, medians, buckets, membership."""

from __future__ import annotations

import math
from typing import Any

import torch
from tvm import ir, relax

from ..registry import Unsupported
from ..tensor_types import dtype_of, is_float
from .call import Call, is_empty
from .reductions import keeps_dims
from .registry import register

op = relax.op


@register("sort", "sort.stable", "argsort", "argsort.stable")
def sort(call: Call) -> Any:
    """Sort along an axis; equal values stay in their order."""
    if "stable" in call:
        call.raw("stable")
    x, axis, falls = call.tensor("self"), call["dim"], call["descending"]
    is_tuple = isinstance(call.out, list | tuple)
    if not call.meta("self").shape:
        places = relax.const(0, "int64")
        return (x, places) if is_tuple else places
    key = call.cast(x, "int8") if dtype_of(x) == "bool" else x
    if _is_places(call, x):  # numbers of experts, say: of 32 bits they are compared at once
        key = call.cast(x, "int32")
    places = call.emit(op.argsort(key, axis, falls, dtype="int64"))
    if not is_tuple:
        return places
    return call.emit(op.gather_elements(x, places, axis=axis)), places


def _is_places(call: Call, x: Any) -> bool:
    """Whether numbers are places of a sort, in any shape: none is as large as 2^31."""
    find, bound = call.importer.block_builder.lookup_binding, x
    while isinstance(bound, relax.Var):
        bound = find(bound)
        if isinstance(bound, relax.Call) and bound.op == ir.Op.get("relax.reshape"):
            bound = bound.args[0]
    if isinstance(bound, relax.TupleGetItem) and bound.index == 1:
        bound = find(bound.tuple_value)
        return isinstance(bound, relax.Call) and bound.op == ir.Op.get("relax.topk")
    return isinstance(bound, relax.Call) and bound.op == ir.Op.get("relax.argsort")


@register("topk")
def topk(call: Call) -> Any:
    """Find the k largest or smallest; they come sorted, asked for or not."""
    call.raw("sorted")
    x, k, axis, largest = call.tensor("self"), call["k"], call["dim"], call["largest"]
    if not call.meta("self").shape:
        return x, relax.const(0, "int64")
    if not isinstance(k, int) or k == 0:
        raise Unsupported(f"of k={k}", "give k as a number of at least 1")
    both = call.emit(op.topk(x, k=k, axis=axis, largest=largest, ret_type="both", dtype="int64"))
    return call.emit(both[0]), call.emit(both[1])


@register("kthvalue")
def kth_value(call: Call) -> Any:
    """Find the k-th smallest value along an axis."""
    x, axis, k = call.tensor("self"), call["dim"], call["k"]
    keeps = keeps_dims(call)
    if not call.meta("self").shape:
        return x, relax.const(0, "int64")
    order = call.emit(op.argsort(x, axis, False, dtype="int64"))
    place = call.emit(op.take(order, relax.const(k - 1, "int64"), axis))
    place = call.emit(op.expand_dims(place, axis % x.ty.ndim))
    return _picked(call, x, place, axis, keeps)


@register("median.dim", "median", "nanmedian.dim", "nanmedian")
def median(call: Call) -> Any:
    """Find the lower median along an axis, or of all elements: NaN, if there is one.

    NaN is sorted behind the numbers, which ``nanmedian`` counts alone.
    """
    fake, x = call.meta("self"), call.tensor("self")
    has_axis, skips = "dim" in call, call.node.target.__name__.startswith("nan")
    axis, keeps = (call["dim"], keeps_dims(call)) if has_axis else (0, False)
    if is_empty(fake) or not fake.shape:
        return (x, relax.const(0, "int64")) if has_axis else x
    if not has_axis:
        x = call.emit(op.reshape(x, [math.prod(call.shape(fake))]))
    one, two = relax.const(1, "int64"), relax.const(2, "int64")

    def count(condition: Any) -> Any:
        flags = op.astype(call.emit(condition), "int64")
        return call.emit(op.sum(call.emit(flags), [axis], keepdims=True))

    order = call.emit(op.argsort(x, axis, False, dtype="int64"))
    numbers = count(op.equal(x, x))
    place = op.floor_divide(op.subtract(op.maximum(numbers, one), one), two)
    if not skips and is_float(dtype_of(x)):
        has_nan = op.greater(count(op.not_equal(x, x)), relax.const(0, "int64"))
        place = op.where(has_nan, numbers, place)
    place = call.emit(op.gather_elements(order, call.emit(place), axis))
    if has_axis:
        return _picked(call, x, place, axis, keeps)
    return op.reshape(call.emit(op.gather_elements(x, place, axis)), [])


def _picked(call: Call, x: Any, place: Any, axis: int, keeps: bool) -> Any:
    """Return the element of each line at a place, and the place."""
    value = call.emit(op.gather_elements(x, place, axis))
    if keeps:
        return value, place
    return call.emit(op.squeeze(value, [axis])), call.emit(op.squeeze(place, [axis]))


@register("bucketize.Tensor")
def bucketize(call: Call) -> Any:
    """Count the boundaries below each value."""
    first, second = "self", "boundaries"
    bounds, right = call.meta(second), call["right"]
    call.raw("out_int32")
    dtype = str(torch.result_type(call.meta(first), bounds)).removeprefix("torch.")
    x = call.emit(op.expand_dims(call.tensor(first, dtype), -1))
    passes = (op.less_equal if right else op.less)(call.tensor(second, dtype), x)
    count = op.sum(op.astype(passes, "int32"), [-1])
    return call.cast(call.emit(count), call.dtype)


@register("isin.Tensor_Tensor")
def isin(call: Call) -> Any:
    """Test whether each value is among others."""
    call.raw("assume_unique")
    inverts = call["invert"]
    x, y = call.meta("elements"), call.meta("test_elements")
    dtype = str(torch.result_type(x, y)).removeprefix("torch.")
    each = call.emit(op.expand_dims(call.tensor("elements", dtype), -1))
    others = call.emit(op.reshape(call.tensor("test_elements", dtype), [-1]))
    hits = op.max(op.astype(op.equal(each, others), "int8"), [-1])
    found = call.cast(call.emit(hits), "bool")
    return op.logical_not(found) if inverts else found
