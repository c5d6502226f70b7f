"""Operators expanded into simpler ones, where TVM's own are wrong, slow or for CPUs only."""

import math
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from ..tensor_types import dtype_of, static
from .engine import Scope, op_name, rewrite_pass


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


@rewrite_pass
def ExpandBatchNorm(value: Any, scope: Scope) -> Any:
    """Compute ``relax.nn.batch_norm`` with ``training`` from the batch's own statistics.

    The results are ``(x - mean) / sqrt(var + epsilon) * gamma + beta`` and the running statistics,
    moved by ``momentum`` towards the mean and the variance (without Bessel's correction).
    TVM 0.27's DecomposeOpsForInference takes it for one of inference, silently.
    """
    if op_name(value) != "relax.nn.batch_norm" or not value.attrs.training:
        return None
    data, gamma, beta, running_mean, running_var = value.args
    axis = int(value.attrs.axis) % data.ty.ndim
    others = [i for i in range(data.ty.ndim) if i != axis]

    def along(vector: Any) -> Any:
        return scope.emit(relax.op.expand_dims(vector, others))

    def moved(running: Any, batch: Any) -> Any:
        dtype, momentum = dtype_of(running), float(value.attrs.momentum)
        old = scope.emit(relax.op.multiply(running, relax.const(1 - momentum, dtype)))
        new = scope.emit(relax.op.multiply(batch, relax.const(momentum, dtype)))
        return scope.emit(relax.op.add(old, new))

    mean = scope.emit(relax.op.mean(data, others))
    var = scope.emit(relax.op.variance(data, others))
    epsilon = relax.const(float(value.attrs.epsilon), dtype_of(data))
    scale = scope.emit(relax.op.rsqrt(scope.emit(relax.op.add(var, epsilon))))
    if value.attrs.scale:
        scale = scope.emit(relax.op.multiply(scale, gamma))
    result = scope.emit(relax.op.subtract(data, along(mean)))
    result = scope.emit(relax.op.multiply(result, along(scale)))
    if value.attrs.center:
        result = scope.emit(relax.op.add(result, along(beta)))
    return relax.Tuple([result, moved(running_mean, mean), moved(running_var, var)])


op = relax.op
_HIGHEST = 126  # even; from there on every power but those of -1, 0 and 1 has overflowed


@rewrite_pass
def IntegerPower(value: Any, scope: Scope) -> Any:
    """``x^e`` as the product of ``x^(2^k)`` over the bits ``k`` of ``e``.

    TVM has powers of floats only. Overflow wraps around; from 127 on, exponents count as 126 or 127
    by their parity. A negative exponent gives 0 but for ``x`` of 1 and -1. Legalization runs this:
    laws of algebra find nothing in some thirty operators on bits.
    """
    if op_name(value) != "relax.power":
        return None
    dtypes = {dtype_of(arg) for arg in value.args}
    if len(dtypes) != 1 or not next(iter(dtypes)).startswith(("int", "uint")):
        return None
    x, exponent = value.args
    dtype = dtype_of(x)

    def number(n: int) -> Any:
        return relax.const(np.array(n, dtype), dtype)

    emit = scope.emit
    known = _largest(exponent)
    is_odd = emit(op.equal(emit(op.bitwise_and(exponent, number(1))), number(1)))
    limit = emit(op.where(is_odd, number(_HIGHEST + 1), number(_HIGHEST)))
    left = emit(op.minimum(exponent, limit)) if known is None else exponent
    bits = (_HIGHEST if known is None else known).bit_length()
    # Of the result's shape, whichever of the two is broadcast.
    result = emit(op.where(is_odd, x, number(1)))
    power = x
    for k in range(1, bits):
        power = emit(op.multiply(power, power))
        bit = emit(op.bitwise_and(left, number(1 << k)))
        is_set = emit(op.not_equal(bit, number(0)))
        result = emit(op.multiply(result, emit(op.where(is_set, power, number(1)))))
    if known is not None or dtype.startswith("uint"):
        return result
    below = emit(op.less(exponent, number(0)))
    sign = emit(op.where(is_odd, number(-1), number(1)))
    of_minus_one = emit(op.where(emit(op.equal(x, number(-1))), sign, number(0)))
    inverse = emit(op.where(emit(op.equal(x, number(1))), number(1), of_minus_one))
    return op.where(below, inverse, result)


def _largest(exponent: Any) -> int | None:
    """Return the largest constant exponent; None if one is negative, very large or unknown."""
    if not isinstance(exponent, GenericConst):
        return None
    numbers = exponent.value.numpy()
    if not numbers.size or not 0 <= int(numbers.min()) <= int(numbers.max()) <= _HIGHEST:
        return None
    return int(numbers.max())


@rewrite_pass
def ExpandPower(value: Any, scope: Scope) -> Any:
    """``x^2 = x*x``, ``x^0.5 = sqrt(x)``, ``x^-0.5 = rsqrt(x)``, ``x^1 = x``, and some others.

    A library's ``pow`` costs dozens of instructions for each element, since it takes no vectors,
    and TVM warns of it. Exporters write RMS norms with a power and with a product alike; after this
    there is one spelling. The results differ from ``pow`` by the rounding of a few products and
    roots.
    """
    if op_name(value) != "relax.power" or not isinstance(value.args[1], GenericConst):
        return None
    x, exponent = value.args[0], value.args[1].value.numpy()
    dtype = dtype_of(value)
    if exponent.size != 1 or "float" not in dtype or not structural_equal(x.ty, value.ty):
        return None
    number = float(exponent.reshape(-1)[0])
    if number == -0.5:
        return op.rsqrt(x)
    is_wide = dtype in ("float32", "float64")  # several roundings are too many for half types
    if number > 0:
        return _positive_power(x, number, is_wide, scope)
    below = _positive_power(x, -number, is_wide, scope) if is_wide else None
    if below is None:
        return None
    return op.divide(relax.const(1, dtype), x if number == -1 else scope.emit(below))


def _positive_power(x: Any, exponent: float, is_wide: bool, scope: Scope) -> Any:
    """Raise to a power by products and roots; ``None`` where that takes many.

    No part of it overflows where the power does not; that of -0 has the sign of ``pow``'s.
    """
    emit = scope.emit
    if exponent == 1:
        return x
    if exponent == 0.5:
        return op.sqrt(x)
    if exponent in (2, 3):
        square = op.multiply(x, x)
        return square if exponent == 2 else op.multiply(emit(square), x)
    if not is_wide or exponent not in (0.75, 1.5, 4):
        return None
    if exponent == 4:
        square = emit(op.multiply(x, x))
        return op.multiply(square, square)
    root = emit(op.sqrt(x))
    return op.multiply(x if exponent == 1.5 else emit(op.sqrt(root)), root)


_INDEX = "int64"
_WIDEST = 64  # elements of a slice, each a sort


@rewrite_pass
def ExpandNonzero(value: Any, scope: Scope) -> Any:
    """Compute ``nonzero(x)`` and ``unique(x)`` with operators.

    With ``c = cumsum(mask)``, element ``k`` of what a mask selects is the first ``i`` with
    ``c[i] = k + 1``. How many there are, ``c[-1]``, is read when the model runs and becomes a
    symbolic extent. ``unique(x)`` selects what differs from its predecessor in sorted order;
    without order, results are sorted by the places of first elements.

    TVM has both as Python functions over numpy only, which an artifact cannot call outside of
    Python.
    """
    name = op_name(value)
    if name not in ("relax.nonzero", "relax.unique"):
        return None
    x = value.args[0]
    if not isinstance(x.ty, relax.TensorType) or not isinstance(x.ty.shape, relax.ShapeExpr):
        return None
    return _nonzero(x, scope) if name == "relax.nonzero" else _unique(value, scope)


def _nonzero(x: Any, scope: Scope) -> Any:
    shape = list(x.ty.shape.values) or [tirx.IntImm(_INDEX, 1)]
    if 0 in map(static, shape):
        return relax.op.zeros([len(shape), 0], _INDEX)
    mask = x
    if dtype_of(x) != "bool":
        zero = relax.const(np.zeros((), _numpy_dtype(x)), dtype_of(x))
        mask = scope.emit(relax.op.not_equal(x, zero))
    size = math.prod(shape, start=tirx.IntImm(_INDEX, 1))
    positions = _selected(scope.emit(relax.op.reshape(mask, [size])), size, scope)
    rows = []
    for axis, extent in enumerate(shape):
        ones = [tirx.IntImm(_INDEX, 1)] * len(shape)
        counted = scope.emit(relax.op.arange(0, extent, 1, _INDEX))
        counted = scope.emit(relax.op.reshape(counted, [*ones[:axis], extent, *ones[axis + 1 :]]))
        counted = scope.emit(relax.op.broadcast_to(counted, shape))
        counted = scope.emit(relax.op.reshape(counted, [size]))
        rows.append(scope.emit(relax.op.take(counted, positions, 0)))
    return relax.op.stack(rows, 0)


def _unique(call: Any, scope: Scope) -> Any:
    x, *flags = call.args
    in_order, *wanted = (bool(flag.value) for flag in flags[:4])
    axis = None
    if len(flags) > 4 and not _is_null(flags[4], scope) and x.ty.ndim > 1:
        axis = int(flags[4].value) % x.ty.ndim
    shape = list(x.ty.shape.values)
    if 0 in map(static, shape):
        return None
    if axis is None:
        size = math.prod(shape, start=tirx.IntImm(_INDEX, 1))
        rows = scope.emit(relax.op.reshape(x, [size]))
        order = scope.emit(relax.op.argsort(rows, 0, dtype=_INDEX))  # a stable sort
    else:
        size, others = shape[axis], shape[:axis] + shape[axis + 1 :]
        width = static(math.prod(others, start=tirx.IntImm(_INDEX, 1)))
        if width is None or width > _WIDEST:
            return None
        rows = scope.emit(relax.op.permute_dims(x, _front(axis, len(shape))))
        rows = scope.emit(relax.op.reshape(rows, [size, width]))
        order = _row_order(rows, size, width, scope)
    ordered = scope.emit(relax.op.take(rows, order, 0))
    later, earlier = _neighbours(ordered, size, scope)
    differs = scope.emit(relax.op.not_equal(later, earlier))
    if axis is not None:
        differs = scope.emit(relax.op.astype(differs, "int32"))
        differs = scope.emit(relax.op.astype(scope.emit(relax.op.max(differs, 1)), "bool"))
    first = scope.emit(relax.op.concat([relax.const(np.ones(1, "bool")), differs], 0))
    starts = _selected(first, size, scope)
    places = scope.emit(relax.op.take(order, starts, 0))
    perm = None if in_order else scope.emit(relax.op.argsort(places, 0, dtype=_INDEX))

    def arranged(result: Any) -> Any:
        return result if perm is None else scope.emit(relax.op.take(result, perm, 0))

    values = arranged(scope.emit(relax.op.take(ordered, starts, 0)))
    count = starts.ty.shape.values[0]
    if axis is not None:
        values = scope.emit(relax.op.reshape(values, [count, *others]))
        values = scope.emit(relax.op.permute_dims(values, _back(axis, len(shape))))
    results = [values]
    if wanted[0]:
        results.append(arranged(places))
    counted = scope.emit(relax.op.cumsum(scope.emit(relax.op.astype(first, _INDEX)), 0, _INDEX))
    group = scope.emit(relax.op.subtract(counted, relax.const(1, _INDEX)))
    if wanted[1]:
        back = scope.emit(relax.op.argsort(order, 0, dtype=_INDEX))
        inverse = scope.emit(relax.op.take(group, back, 0))
        if perm is not None:
            number = scope.emit(relax.op.argsort(perm, 0, dtype=_INDEX))
            inverse = scope.emit(relax.op.take(number, inverse, 0))
        results.append(inverse)
    if wanted[2]:
        numbers = scope.emit(relax.op.arange(0, count, 1, _INDEX))
        ends = scope.emit(relax.op.bucketize(numbers, group, right=True))
        results.append(arranged(scope.emit(relax.op.subtract(ends, starts))))
    return relax.Tuple(results) if any(wanted) else results[0]


def _row_order(rows: Any, size: Any, width: int, scope: Scope) -> Any:
    """Sort the rows of a matrix by their elements: stable sorts from the last column on."""
    order = scope.emit(relax.op.arange(0, size, 1, _INDEX))
    for column in reversed(range(width)):
        keys = scope.emit(relax.op.take(rows, relax.prim_value(column), 1))
        keys = scope.emit(relax.op.take(keys, order, 0))
        step = scope.emit(relax.op.argsort(keys, 0, dtype=_INDEX))
        order = scope.emit(relax.op.take(order, step, 0))
    return order


def _front(axis: int, rank: int) -> list[int]:
    return [axis, *range(axis), *range(axis + 1, rank)]


def _back(axis: int, rank: int) -> list[int]:
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def _selected(mask: Any, size: Any, scope: Scope) -> Any:
    """List the positions of the true elements of a vector."""
    counts = scope.emit(relax.op.cumsum(scope.emit(relax.op.astype(mask, _INDEX)), 0, _INDEX))
    # Its extent, size - (size - 1), is 1 only to whom simplifies it: TVM makes no shape of others.
    total = scope.emit(relax.op.reshape(scope.emit(_slice(counts, size - 1, size)), [1]))
    number = tirx.Var("selected", _INDEX)
    scope.match_cast(scope.emit(relax.op.tensor_to_shape(total)), relax.ShapeType([number]))
    wanted = scope.emit(relax.op.arange(1, number + 1, 1, _INDEX))
    return scope.emit(relax.op.bucketize(wanted, counts))


def _neighbours(x: Any, size: Any, scope: Scope) -> tuple[Any, Any]:
    """Return all elements of a vector but the first, and all but the last."""
    if static(size) is not None:
        return scope.emit(_slice(x, 1, size)), scope.emit(_slice(x, 0, size - 1))
    # TVM does not know of slices of symbolic extents that they are of one length.
    before = scope.emit(relax.op.arange(0, size - 1, 1, _INDEX))
    after = scope.emit(relax.op.add(before, relax.const(1, _INDEX)))
    return tuple(scope.emit(relax.op.take(x, index, 0)) for index in (after, before))


def _slice(x: Any, begin: Any, end: Any) -> Any:
    return relax.op.strided_slice(x, [0], [begin], [end])


def _is_null(expr: Any, scope: Scope) -> bool:
    return op_name(scope.value(expr)) == "relax.null_value"


def _numpy_dtype(x: Any) -> str:
    name = dtype_of(x)
    return "float32" if name == "bfloat16" else name
