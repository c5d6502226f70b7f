"""Convert operators by decompositions that torch lacks."""

import math
from typing import Any

import numpy as np
from tvm import relax

from ...tensor_types import accumulation_dtype, dtype_of, is_float
from ..call import Call, is_empty, static
from ..registry import register
from .arithmetic import operands

op = relax.op


@register("fmax", "fmin")
def extreme_of_numbers(call: Call) -> Any:
    """Take the larger or smaller of two, of which one may be no number."""
    function = op.maximum if "fmax" in call.node.target.__name__ else op.minimum
    if call.dtype == "bool":
        x, y = operands(call, "int8")
        return call.cast(call.emit(function(x, y)), "bool")
    x, y = operands(call, call.dtype)
    if not is_float(call.dtype):
        return function(x, y)
    x, y = _both(call, x, y)
    either = op.where(op.isnan(y), x, function(x, y))
    return op.where(op.isnan(x), y, either)


def _both(call: Call, x: Any, y: Any) -> tuple[Any, Any]:
    shape = call.shape()
    return call.emit(op.broadcast_to(x, shape)), call.emit(op.broadcast_to(y, shape))


@register("signbit")
def signbit(call: Call) -> Any:
    """Test for negative numbers, negative zero among them."""
    return _signbit(call.tensor("self"))


def _signbit(x: Any) -> Any:
    if dtype_of(x) == "bool":
        return op.zeros_like(x)
    zero = relax.const(0, dtype_of(x))
    is_negative = op.less(x, zero)
    if not is_float(dtype_of(x)):
        return is_negative
    of_zero = op.less(op.divide(relax.const(1, dtype_of(x)), x), zero)
    return op.where(op.equal(x, zero), of_zero, is_negative)


@register("copysign.Tensor", "copysign.Scalar")
def copysign(call: Call) -> Any:
    """Copy the signs of other values."""
    x, y = operands(call, call.dtype)
    size = call.emit(op.abs(x))
    return op.where(_signbit(y), op.negative(size), size)


@register("exp2", "special_exp2")
def exp2(call: Call) -> Any:
    """Raise two to a power."""
    return op.power(relax.const(2, call.dtype), call.tensor("self", call.dtype))


@register("hypot")
def hypot(call: Call) -> Any:
    """Take the root of the sum of squares, without squares that overflow.

    Beside an infinity, NaN counts for nothing, as in C.
    """
    x, y = (call.emit(op.abs(v)) for v in operands(call, call.dtype))
    high, low = call.emit(op.maximum(x, y)), call.emit(op.minimum(x, y))
    one, zero = relax.const(1, call.dtype), relax.const(0, call.dtype)
    ratio = op.divide(low, op.where(op.equal(high, zero), one, high))
    value = op.multiply(high, op.sqrt(op.add(one, op.multiply(ratio, ratio))))
    infinity = relax.const(math.inf, call.dtype)
    return op.where(op.logical_or(op.isinf(x), op.isinf(y)), infinity, value)


@register("logaddexp", "logaddexp2")
def logaddexp(call: Call) -> Any:
    """Add what two logarithms stand for, and take the logarithm."""
    x, y = operands(call, call.dtype)
    wide = accumulation_dtype(call.dtype)
    x, y = call.cast(x, wide), call.cast(y, wide)
    base = math.log(2) if "logaddexp2" in call.node.target.__name__ else 1.0
    high = call.emit(op.maximum(x, y))
    difference = op.negative(op.abs(op.subtract(x, y)))
    small = op.exp(op.multiply(difference, relax.const(base, wide)))
    rest = op.divide(op.log(op.add(relax.const(1, wide), small)), relax.const(base, wide))
    is_same_infinity = op.logical_and(op.isinf(x), op.equal(x, y))
    result = op.where(is_same_infinity, high, op.add(high, rest))
    return call.cast(call.emit(result), call.dtype)


@register("_cdist_forward")
def distances(call: Call) -> Any:
    """Take the distances of each row to each of other rows."""
    call.raw("compute_mode")
    order = call["p"]
    if is_empty(call.out) or call.meta("x1").shape[-1] == 0:
        return op.zeros(call.shape(), call.dtype)
    x = call.emit(op.expand_dims(call.tensor("x1"), -2))
    y = call.emit(op.expand_dims(call.tensor("x2"), -3))
    return _norm(call, op.abs(op.subtract(x, y)), order)


def _norm(call: Call, difference: Any, order: float) -> Any:
    """Take norms along the last axis of what is not negative."""
    dtype = call.dtype
    if order == 0:
        difference = call.emit(difference)
        counted = call.cast(call.cast(difference, "bool"), dtype)
        return op.sum(op.where(op.isnan(difference), difference, counted), [-1])
    if order == 1:
        return op.sum(difference, [-1])
    if order == 2:
        return op.sqrt(op.sum(op.multiply(difference, difference), [-1]))
    if order == math.inf:
        return op.max(difference, [-1])
    sums = op.sum(op.power(difference, relax.const(order, dtype)), [-1])
    return op.power(sums, relax.const(1 / order, dtype))


@register("diagonal_scatter")
def diagonal_scatter(call: Call) -> Any:
    """Write a diagonal."""
    fake = call.meta("self")
    rank, shape = len(fake.shape), static(fake.shape)
    one, two, offset = call["dim1"] % rank, call["dim2"] % rank, call["offset"]
    count = call.meta("src").shape[-1]
    if count == 0:
        call.raw("src")
        return call.tensor("self")
    rest = [a for a in range(rank) if a not in (one, two)]
    rows, columns = shape[one], shape[two]
    first = offset if offset >= 0 else -offset * columns
    which = np.full(rows * columns, -1)
    which[[first + i * (columns + 1) for i in range(count)]] = range(count)
    source = call.tensor("src", call.dtype)
    spread = op.take(source, relax.const(np.maximum(which, 0), "int64"), rank - 2)
    spread = call.emit(op.reshape(call.emit(spread), [*(shape[a] for a in rest), rows, columns]))
    order = [*rest, one, two]
    back = sorted(range(rank), key=lambda place: order[place])
    spread = call.emit(op.permute_dims(spread, back))
    mask = (which >= 0).reshape(rows, columns)
    mask = mask if one < two else mask.T
    mask = mask.reshape([shape[a] if a in (one, two) else 1 for a in range(rank)])
    return op.where(relax.const(mask, "bool"), spread, call.tensor("self"))


@register("_pdist_forward")
def pairwise_distances(call: Call) -> Any:
    """Take the distances of each row to those behind it."""
    rows, order = static(call.meta("self").shape)[0], call["p"]
    if is_empty(call.out):
        return op.zeros(call.shape(), call.dtype)
    first, second = (relax.const(i, "int64") for i in np.triu_indices(rows, 1))
    x = call.tensor("self")
    difference = call.emit(op.subtract(op.take(x, first, 0), op.take(x, second, 0)))
    return _norm(call, op.abs(difference), order)


@register("_trilinear")
def trilinear(call: Call) -> Any:
    """Multiply three tensors with axes inserted, and add along others."""
    call.raw("unroll_dim")
    product: Any = None
    for name, inserted in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        x = call.wide(call.tensor(name, call.dtype))
        for axis in call[inserted]:
            x = call.emit(op.expand_dims(x, axis))
        product = x if product is None else call.emit(op.multiply(product, x))
    return call.cast(call.emit(op.sum(product, list(call["sumdim"]))), call.dtype)
