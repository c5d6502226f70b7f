"""Convert operators whose results' extents depend on values: nonzero, masks, unique, bincount.

What the model computes of its values becomes a symbolic extent when it runs:

    c = cumsum(mask);  positions[k] = the first i with c[i] = k + 1, by bisection
    count = c[-1], read by tensor_to_shape and bound by match_cast
"""

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import sympy
import torch
from tvm import relax, tirx

from ....core.decisions import Decision, record
from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..call import Call, static
from ..registry import register

op = relax.op
_INDEX = "int64"
_UNBOUNDED = 1 << 62  # what torch has for no bound is not less


def bound_extent(call: Call, value: Any, symbol: Any, fits: Any = None) -> tirx.Var:
    """Bind torch's symbol to the value of a tensor of one element when the model runs.

    Parameters
    ----------
    fits
        A truth value: the call fails where it does not hold.
    """
    name = str(symbol.node.expr) if isinstance(symbol, torch.SymInt) else None
    if name is None or not isinstance(symbol.node.expr, sympy.Symbol):
        raise Unsupported("with an extent that is computed otherwise", "use torch.where or a mask")
    variable = tirx.Var(name, _INDEX)
    pattern: list[Any] = [variable]
    read = call.emit(op.reshape(call.cast(value, _INDEX), [1]))
    for holds in _relations(call, symbol, read):
        fits = holds if fits is None else call.emit(op.logical_and(fits, holds))
    if fits is not None:
        pattern.append(tirx.IntImm(_INDEX, 1))
        truth = call.emit(op.reshape(call.emit(op.astype(fits, _INDEX)), [1]))
        read = call.emit(op.concat([read, truth], 0))
    shape = call.emit(op.tensor_to_shape(read))
    call.importer.block_builder.match_cast(shape, relax.ShapeType(pattern))
    call.importer.define(name, variable)
    return variable


_FUNCTIONS = {
    **{"Add": op.add, "Mul": op.multiply, "FloorDiv": op.floor_divide},
    **{"Mod": op.floor_mod, "PythonMod": op.floor_mod},
    **{"LessThan": op.less_equal, "StrictLessThan": op.less, "Equality": op.equal},
    **{"GreaterThan": op.greater_equal, "StrictGreaterThan": op.greater},
    "Unequality": op.not_equal,
}


def _relations(call: Call, symbol: torch.SymInt, value: Any) -> Iterator[Any]:
    """Yield whether each relation holds that is asserted of a symbol and of those before it."""
    own, asserted = symbol.node.expr, symbol.node.shape_env.deferred_runtime_asserts
    for known in asserted.get(own, ()):
        sides = known.expr.args
        is_inequality = isinstance(known.expr, sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt)
        if is_inequality and all(side == own or side.is_Integer for side in sides):
            continue  # which the range says
        try:
            yield _computed(call, known.expr, own, value)
        except Unsupported:
            sentence = f"{known.expr}, which is asserted, is not checked when the program runs."
            record(Decision(call.node.name, "", "refused", "assertion", sentence))


def _computed(call: Call, expr: Any, own: sympy.Symbol, value: Any) -> Any:
    """Compute a relation or number of symbols, one of which is not bound yet: shape [1]."""
    if expr == own:
        return value
    function = _FUNCTIONS.get(type(expr).__name__)
    if function is None or (own not in expr.free_symbols and isinstance(expr, sympy.Expr)):
        return call.emit(op.shape_to_tensor(relax.ShapeExpr([call.importer.written(expr)])))
    parts = [_computed(call, part, own, value) for part in expr.args]
    return reduce(lambda a, b: call.emit(function(a, b)), parts)


def selected(call: Call, mask: Any, size: Any, symbol: Any) -> Any:
    """List the positions of the true elements of a vector."""
    counts = call.emit(op.cumsum(call.emit(op.astype(mask, _INDEX)), 0, _INDEX))
    last = call.emit(op.take(counts, relax.prim_value(size - 1), 0))
    count = bound_extent(call, last, symbol)
    wanted = call.emit(op.arange(1, count + 1, 1, _INDEX))
    return call.emit(op.bucketize(wanted, counts))


def _mask(call: Call, x: Any, size: int) -> Any:
    return call.emit(op.reshape(call.cast(x, "bool"), [size]))


def _is_empty(size: int) -> bool:
    if size == 0:
        raise Unsupported("of no elements (an extent that depends on values)", "leave it out")
    return False


def _nothing(call: Call, symbol: Any, shape: list[int]) -> Any:
    """Return what is selected of no elements."""
    if isinstance(symbol, torch.SymInt):
        call.importer.define(str(symbol.node.expr), tirx.IntImm(_INDEX, 0))
    return op.zeros(shape, call.dtype)


@register("nonzero")
def nonzero(call: Call) -> Any:
    """List the places of the elements that are not zero."""
    shape = static(call.meta("self").shape)
    size = math.prod(shape)
    if size == 0:
        call.raw("self")
        return _nothing(call, call.out.shape[0], [0, len(shape)])
    position = selected(call, _mask(call, call.tensor("self"), size), size, call.out.shape[0])
    if not shape:
        return op.zeros(call.shape(), _INDEX)
    places = []
    for axis, extent in enumerate(shape):
        behind = math.prod(shape[axis + 1 :])
        place = op.floor_divide(position, relax.const(behind, _INDEX))
        places.append(call.emit(op.floor_mod(place, relax.const(extent, _INDEX))))
    return op.stack(places, 1)


@register("masked_select")
def masked_select(call: Call) -> Any:
    """Take the elements where a mask holds."""
    fakes = (call.meta("self"), call.meta("mask"))
    shape = static(torch.broadcast_shapes(*(f.shape for f in fakes)))
    size = math.prod(shape)
    _is_empty(size)
    x, mask = (call.emit(op.broadcast_to(call.tensor(n), shape)) for n in ("self", "mask"))
    position = selected(call, _mask(call, mask, size), size, call.out.shape[0])
    return op.take(call.emit(op.reshape(x, [size])), position, 0)


def by_mask(call: Call, data: Any, axis: int, mask: Any) -> Any:
    """Take slices where a mask over some axes holds."""
    shape, covered = static(call.meta("self").shape), mask.ty.ndim
    size = math.prod(shape[axis : axis + covered])
    _is_empty(size)
    position = selected(call, _mask(call, mask, size), size, call.out.shape[axis])
    merged = [*shape[:axis], size, *shape[axis + covered :]]
    return op.take(call.emit(op.reshape(data, merged)), position, axis)


_MOST_COLUMNS = 64  # of slices that are sorted, one column after the other


@register("_unique2", "unique_dim")
def unique(call: Call) -> Any:
    """List the different values, or slices along an axis, in their order."""
    call.raw("sorted")
    rows, back = _rows(call, call.get("dim"))
    size, columns = rows.ty.shape
    if columns > _MOST_COLUMNS:
        raise Unsupported(
            f"along an axis of slices of {columns} elements, more than {_MOST_COLUMNS}",
            "give each slice one number, and call it on these; or call it before the model",
        )
    order = None
    for column in reversed(range(int(columns))):
        part = op.strided_slice(rows, [1], [column], [column + 1])
        key = call.emit(op.reshape(call.emit(part), [size]))
        if order is None:
            order = call.emit(op.argsort(key, 0, False, _INDEX))
        else:  # stable: what is equal here stays in the order of the columns behind
            key = call.emit(op.take(key, order, 0))
            order = call.emit(op.take(order, call.emit(op.argsort(key, 0, False, _INDEX)), 0))
    ordered = call.emit(op.take(rows, order, 0))
    values, inverse, counts = _runs(call, ordered, back)
    if not _is_absent(call.out[1]):  # from the sorted order back
        inverse = call.emit(op.scatter_elements(op.zeros_like(order), order, inverse, 0, "update"))
    return _with_flags(call, values, inverse, counts)


@register("unique_consecutive")
def unique_consecutive(call: Call) -> Any:
    """List values, or slices along an axis, that differ from the one before."""
    rows, back = _rows(call, call["dim"])
    return _with_flags(call, *_runs(call, rows, back))


def _rows(call: Call, dim: int | None) -> tuple[Any, tuple[str, list[int] | None]]:
    """Return what is compared as rows of a matrix; the dtype and permuted shape of values."""
    shape, given = static(call.meta("self").shape), call.tensor("self")
    size = math.prod(shape)
    _is_empty(size)
    dtype = dtype_of(given)
    key = call.cast(given, "int8") if dtype == "bool" else given
    if dim is None or len(shape) < 2:
        return call.emit(op.reshape(key, [size, 1])), (dtype, None)
    axis = dim % len(shape)
    axes = [axis, *(i for i in range(len(shape)) if i != axis)]
    moved = call.emit(op.permute_dims(key, axes))
    rows = call.emit(op.reshape(moved, [shape[axis], size // shape[axis]]))
    return rows, (dtype, axes)


def _runs(call: Call, rows: Any, back: tuple[str, list[int] | None]) -> tuple[Any, Any, Any]:
    """Return the values, numbers and lengths of runs of equal rows."""
    dtype, axes = back
    size = int(rows.ty.shape[0])
    mask = call.emit(op.ones([1], "bool"))
    if size > 1:
        later = call.emit(op.strided_slice(rows, [0], [1], [size]))
        earlier = call.emit(op.strided_slice(rows, [0], [0], [size - 1]))
        differs = call.emit(op.astype(op.not_equal(later, earlier), "int8"))
        differs = call.emit(op.astype(op.max(differs, [1]), "bool"))
        mask = call.emit(op.concat([mask, differs], 0))
    axis = 0 if axes is None else axes[0]
    starts = selected(call, mask, size, call.out[0].shape[axis])
    number = call.emit(op.cumsum(call.emit(op.astype(mask, _INDEX)), 0, _INDEX))
    number = call.emit(op.subtract(number, relax.const(1, _INDEX)))
    values = call.emit(op.take(rows, starts, 0))
    ends = call.emit(op.bucketize(call.emit(op.take(number, starts, 0)), number, right=True))
    count = starts.ty.shape[0]
    if axes is None:
        values = call.emit(op.reshape(values, relax.ShapeExpr([count])))
    else:
        rest = [e for i, e in enumerate(call.out[0].shape) if i != axis]
        values = call.emit(op.reshape(values, relax.ShapeExpr([count, *rest])))
        values = call.emit(op.permute_dims(values, [axes.index(i) for i in range(len(axes))]))
    return call.cast(values, dtype), number, call.emit(op.subtract(ends, starts))


def _with_flags(call: Call, values: Any, inverse: Any, counts: Any) -> Any:
    """Return what is asked for; torch has empty tensors for the rest."""
    for name in ("return_inverse", "return_counts"):
        call.raw(name)
    empty = call.emit(op.zeros([0], _INDEX))
    first, second = (_is_absent(fake) for fake in call.out[1:])
    inverse = empty if first else call.emit(op.reshape(inverse, static(call.out[1].shape)))
    return values, inverse, empty if second else counts


def _is_absent(fake: torch.Tensor) -> bool:
    return any(isinstance(e, int) and e == 0 for e in fake.shape)


@register("bincount")
def bincount(call: Call) -> Any:
    """Count each number up to the largest."""
    size = call.meta("self").numel()
    _is_empty(size)
    x, least = call.tensor("self", _INDEX), call["minlength"]
    largest = op.add(call.emit(op.max(x)), relax.const(1, _INDEX))
    largest = call.emit(op.maximum(largest, relax.const(least, _INDEX)))
    count = bound_extent(call, largest, call.out.shape[0])
    numbers = call.emit(op.expand_dims(op.arange(0, count, 1, _INDEX), 1))
    hits = op.equal(numbers, op.expand_dims(x, 0))
    weights = call["weights"]
    if weights is None:
        return op.sum(op.astype(hits, _INDEX), [1])
    weights = call.cast(weights, call.dtype)
    zero = relax.const(0, call.dtype)
    return op.sum(op.where(hits, op.expand_dims(weights, 0), zero), [1])


@register("repeat_interleave.Tensor")
def repeat_interleave(call: Call) -> Any:
    """List each number as often as it says."""
    _is_empty(call.meta("repeats").numel())
    ends = call.emit(op.cumsum(call.tensor("repeats", _INDEX), 0, _INDEX))
    call.raw("output_size")
    extent = call.out.shape[0]
    if isinstance(extent, int):
        count: Any = extent
    else:
        last = call.meta("repeats").numel() - 1
        total = call.emit(op.take(ends, relax.prim_value(last), 0))
        count = bound_extent(call, total, extent)
    wanted = call.emit(op.arange(0, count, 1, _INDEX))
    return call.cast(call.emit(op.bucketize(wanted, ends, right=True)), call.dtype)


@register("item", "_local_scalar_dense")
def item(call: Call) -> Any:
    """Read a value: an integer that is not negative may be an extent; others stay tensors.

    The range that was asserted is checked when the model runs: torch has drawn conclusions from it.
    """
    value, number = call.tensor("self"), call.out
    if isinstance(number, torch.SymInt) and isinstance(number.node.expr, sympy.Symbol):
        ranges = number.node.shape_env.var_to_range.get(number.node.expr)
        if ranges is not None and ranges.lower >= 0:
            value = call.cast(value, _INDEX)
            fits = call.emit(op.greater_equal(value, relax.const(int(ranges.lower), _INDEX)))
            if ranges.upper < _UNBOUNDED:
                most = call.emit(op.less_equal(value, relax.const(int(ranges.upper), _INDEX)))
                fits = call.emit(op.logical_and(fits, most))
            return bound_extent(call, value, number, fits)
    return call.emit(op.reshape(value, []))
