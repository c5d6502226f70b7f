"""Convert reductions, sorts and the k largest."""

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import ir, relax

from ...registry import Unsupported
from ...tensor_types import dtype_of, is_float
from ..call import Call, is_empty, is_zero
from ..registry import register

op = relax.op


def axes_of(call: Call) -> list[int]:
    """Return the axes a call reduces, counted from the first; all where none is named."""
    rank = len(call.meta("self").shape)
    dim = call.get("dim", None)
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted({d % rank if rank else 0 for d in dims}) if rank else []


def keeps_dims(call: Call) -> bool:
    """Whether reduced axes stay, of one element."""
    return bool(call["keepdim"]) if "keepdim" in call else False


def _reduce(call: Call, function: Callable[..., Any], x: Any, axes: list[int]) -> Any:
    if not axes:
        return x
    return call.emit(function(x, axes, keepdims=keeps_dims(call)))


def _is_empty(call: Call, axes: list[int]) -> bool:
    return any(is_zero(call.meta("self").shape[a]) for a in axes)


@register("sum", "sum.dim_IntList", "prod", "prod.dim_int", "mean", "mean.dim")
def sum_or_mean(call: Call) -> Any:
    """Add, multiply or average; an argument is cast before, as torch does."""
    name = call.node.target.__name__.split(".")[0]
    call.raw("dtype")
    x, axes = call.tensor("self", call.dtype if call.dtype != "bool" else "int8"), axes_of(call)
    if _is_empty(call, axes):
        empty = {"sum": 0.0, "prod": 1.0, "mean": math.nan}[name]
        return op.full(call.shape(), relax.const(empty, call.dtype), call.dtype)
    keeps_dims(call)
    return call.cast(_reduce(call, getattr(op, name), x, axes), call.dtype)


@register("amax", "amin", "max", "min")
def extreme(call: Call) -> Any:
    """Take the largest or smallest value."""
    function = op.max if "max" in call.node.target.__name__ else op.min
    x, axes = call.tensor("self"), axes_of(call)
    keeps_dims(call)
    if dtype_of(x) == "bool":
        x = call.cast(x, "int8")
    return call.cast(_reduce(call, function, x, axes), call.dtype)


@register("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def any_or_all(call: Call) -> Any:
    """Test whether any or all values are true."""
    is_any = call.node.target.__name__.startswith("any")
    axes = axes_of(call)
    if _is_empty(call, axes):
        keeps_dims(call)
        return op.full(call.shape(), relax.const(not is_any, call.dtype), call.dtype)
    x = call.cast(call.tensor("self", "bool"), "uint8")
    keeps_dims(call)
    reduced = _reduce(call, op.max if is_any else op.min, x, axes)
    # Zeros and ones: rewriting knows a plain cast back, as around the rows of attention.
    reduced = call.emit(op.astype(reduced, "bool"))
    return call.cast(reduced, call.dtype)


@register("max.dim", "min.dim")
def extreme_and_place(call: Call) -> Any:
    """Take the largest or smallest value along an axis, and where it is."""
    is_max = call.node.target.__name__.startswith("max")
    x, axis, keeps = call.tensor("self"), call["dim"], call["keepdim"]
    if not call.out[0].shape and not call.meta("self").shape:
        return x, relax.const(0, "int64")
    dtype = dtype_of(x)
    if dtype == "bool":
        x = call.cast(x, "int8")
    value = call.emit((op.max if is_max else op.min)(x, axis, keeps))
    place = _place(call, op.argmax if is_max else op.argmin, x, axis, keeps)
    return call.cast(value, dtype), place


@register("argmax", "argmin")
def place_of_extreme(call: Call) -> Any:
    """Find the largest or smallest value; the first of equal ones."""
    function = getattr(op, call.node.target.__name__.split(".")[0])
    x, axis, keeps = call.tensor("self"), call["dim"], call["keepdim"]
    rank = len(call.meta("self").shape)
    if rank == 0:
        return relax.const(0, "int64")
    if dtype_of(x) == "bool":
        x = call.cast(x, "int8")
    if axis is None and rank > 1:
        x = call.emit(op.reshape(x, [-1]))
        place = _place(call, function, x, 0, False)
        return op.reshape(place, call.shape()) if keeps else place
    return _place(call, function, x, 0 if axis is None else axis, keeps)


def _place(call: Call, function: Callable[..., Any], x: Any, axis: int, keeps: bool) -> Any:
    return call.cast(call.emit(function(x, axis, keeps)), "int64")


@register("var.correction", "std.correction", "var_mean.correction")
def variance(call: Call) -> Any:
    """Take the variance or its root, divided by the count less a correction."""
    name = call.node.target.__name__
    out = call.out[0] if isinstance(call.out, list | tuple) else call.out
    x, axes = call.tensor("self"), axes_of(call)
    correction = 1 if call["correction"] is None else call["correction"]
    keeps = keeps_dims(call)
    count = math.prod(call.extent(call.meta("self").shape[a]) for a in axes)
    dtype = dtype_of(x)
    wide = call.wide(x)
    if not axes:  # A single value: reduced over nothing, it keeps its shape.
        value = call.emit(op.subtract(wide, wide))
    elif is_zero(count):
        value = call.emit(op.full(call.shape(out), relax.const(math.nan, "float32"), "float32"))
        value = call.cast(value, dtype_of(wide))
    else:
        value = call.emit(op.variance(wide, axes, keeps))
    if correction != 0 and not isinstance(count, int):
        many = call.as_tensor(count, dtype_of(wide))
        divisor = op.subtract(many, relax.const(correction, dtype_of(wide)))
        divisor = op.maximum(divisor, relax.const(0, dtype_of(wide)))
        value = call.emit(op.multiply(value, call.emit(op.divide(many, divisor))))
    elif correction != 0:  # Torch divides by no less than zero.
        divisor = max(0, count - correction)
        if divisor:
            value = call.emit(op.multiply(value, relax.const(count / divisor, dtype_of(wide))))
        else:
            value = call.emit(op.multiply(value, relax.const(math.inf, dtype_of(wide))))
    if name.startswith("std"):
        value = call.emit(op.sqrt(value))
    value = call.cast(value, dtype)
    if name.startswith("var_mean"):
        if is_zero(count):
            mean = op.full(call.shape(out), relax.const(math.nan, dtype), dtype)
            return value, call.emit(mean)
        return value, call.emit(op.mean(x, axes, keeps)) if axes else x
    return value


@register("linalg_vector_norm")
def vector_norm(call: Call) -> Any:
    """Take a norm of vectors of any order."""
    call.raw("dtype")
    order, axes, keeps = call["ord"], axes_of(call), keeps_dims(call)
    x = call.tensor("self", call.dtype)
    wide = call.wide(x)
    dtype = dtype_of(wide)
    size = call.emit(op.abs(wide))
    if not axes:
        return call.cast(call.cast(size, "bool") if order == 0 else size, call.dtype)
    if _is_empty(call, axes):
        if order < 0 or order == math.inf:
            raise Unsupported("of no values", "leave the operator out")
        return op.full(call.shape(), relax.const(0, call.dtype), call.dtype)
    if order in (math.inf, -math.inf):
        result = (op.max if order > 0 else op.min)(size, axes, keeps)
    elif order == 0:
        result = op.sum(call.cast(call.cast(size, "bool"), dtype), axes, keeps)
    elif order == 1:
        result = op.sum(size, axes, keeps)
    elif order == 2:
        result = op.sqrt(op.sum(op.multiply(size, size), axes, keeps))
    else:
        powers = op.sum(op.power(size, relax.const(order, dtype)), axes, keeps)
        result = op.power(powers, relax.const(1 / order, dtype))
    return call.cast(call.emit(result), call.dtype)


@register("cumsum", "cumprod")
def running(call: Call) -> Any:
    """Add or multiply along an axis, keeping every partial result."""
    call.raw("dtype")
    dtype, axis = call.dtype, call["dim"]
    if dtype == "bool":
        raise Unsupported("of truth values kept as such", "leave the dtype out")
    x = call.tensor("self", dtype)
    if not call.out.shape or is_empty(call.out):
        return x
    name, axis = call.node.target.__name__.split(".")[0], axis % len(call.out.shape)
    if name != "cumsum" or axis < len(call.out.shape) - 1:
        x = call.wide(x)  # along rows legalization does, in one kernel
    return call.cast(call.emit(getattr(op, name)(x, axis)), dtype)


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
    """Count the boundaries that are not above each value: all of them for NaN."""
    first, second = "self", "boundaries"
    bounds, right = call.meta(second), call["right"]
    call.raw("out_int32")
    dtype = str(torch.result_type(call.meta(first), bounds)).removeprefix("torch.")
    x = call.emit(op.expand_dims(call.tensor(first, dtype), -1))
    is_above = (op.greater if right else op.greater_equal)(call.tensor(second, dtype), x)
    # One less a flag: TVM makes ``<`` of a negated ``>=``.
    others = op.subtract(relax.const(1, "int32"), op.astype(call.emit(is_above), "int32"))
    count = op.sum(call.emit(others), [-1])
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
