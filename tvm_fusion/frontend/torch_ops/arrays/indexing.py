"""Convert gather, scatter and indexing."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import ir, relax, tirx

from ....core.tir.loops import constant
from ....core.tir.task_kernel import store
from ...normalize.engine import op_name
from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..call import Call, is_empty, is_zero
from ..kernel import emit_kernel
from ..registry import register
from .dynamic import by_mask

op = relax.op
_PLACES = frozenset(f"relax.{name}" for name in ("argmax", "argmin", "argsort"))
_VIEWS = frozenset(f"relax.{name}" for name in ("astype", "expand_dims", "reshape", "squeeze"))


@register("select.int", "select_copy.int")
def select(call: Call) -> Any:
    """Take one place of an axis; TVM 0.27 takes -1 for a place before the first."""
    axis, number = call["dim"], call["index"]
    data = call.tensor("self")
    extent = call.importer.shape_of(data)[axis]
    if isinstance(getattr(number, "ty", None), relax.TensorType):  # a value, of either sign
        return op.take(data, call.emit(from_start(number, extent)), axis)
    if isinstance(number, int) and number < 0:
        number = number + extent
    return op.take(data, relax.prim_value(number), axis)


@register("index_select")
def index_select(call: Call) -> Any:
    """Look up along an axis."""
    fake = call.meta("self")
    index = call.tensor("index")
    if not fake.shape:
        call.raw("dim")
        return op.reshape(call.tensor("self"), call.shape())
    if not call.meta("index").shape:
        index = call.emit(op.reshape(index, [1]))
    return op.take(call.tensor("self"), index, call["dim"])


@register("embedding")
def embedding(call: Call) -> Any:
    """Look rows up; the rest of its arguments matter to gradients only."""
    for name in ("padding_idx", "scale_grad_by_freq", "sparse"):
        call.raw(name)
    weight, index = call.tensor("weight"), call.emit(op.astype(call["indices"], "int32"))
    shape = call.shape()
    if len(shape) == 2:
        return op.take(weight, index, 0)
    flat = call.emit(op.reshape(index, [-1] if shape[:-1] else [1]))
    return op.reshape(call.emit(op.take(weight, flat, 0)), shape)


@register("gather")
def gather(call: Call) -> Any:
    """Look each element up along an axis."""
    call.raw("sparse_grad")
    data, index, axis = call.tensor("self"), call.tensor("index"), call["dim"]
    if not call.meta("self").shape:
        return op.broadcast_to(data, call.shape())
    if is_empty(call.out):
        return op.zeros(call.shape(), call.dtype)
    if not call.out.shape:
        data, index = call.emit(op.reshape(data, [-1])), call.emit(op.reshape(index, [1]))
        return op.reshape(call.emit(op.gather_elements(data, index, 0)), [])
    return op.gather_elements(data, index, axis)


@register("take")
def take(call: Call) -> Any:
    """Look up in a tensor laid out as one axis."""
    flat = call.emit(op.reshape(call.tensor("self"), [call.meta("self").numel()]))
    index = from_start(call.tensor("index"), call.meta("self").numel())
    return op.take(flat, call.emit(index), 0)


@register("index.Tensor", "_unsafe_index.Tensor")
def index(call: Call) -> Any:
    """Convert ``x[i, :, j]``: one lookup in the axes that are indexed, taken as one.

    Several indices go together, as PyTorch has it: TVM 0.27 combines each of one with each of the
    other where a whole axis stands between them, and does not know numbers from the end.
    """
    data, indices = call.tensor("self"), call["indices"]
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if any(dtype_of(i) in ("bool", "uint8") for _, i in given):
        if len(given) > 1:
            raise Unsupported("with a mask and other indices", "use torch.where")
        return by_mask(call, data, *given[0])
    emit, shape = call.emit, [*call.importer.shape_of(data)]
    axes = [axis for axis, _ in given]
    if axes != list(range(axes[0], axes[-1] + 1)):
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        data = emit(op.permute_dims(data, [*axes, *rest]))
        shape, axes = [shape[axis] for axis in (*axes, *rest)], list(range(len(axes)))
    extents = shape[axes[0] : axes[-1] + 1]
    position = _position([number for _, number in given], extents)
    if len(axes) > 1:
        merged = [*shape[: axes[0]], math.prod(extents), *shape[axes[-1] + 1 :]]
        data = emit(op.reshape(data, merged))
    return op.take(data, emit(position), axis=axes[0])


@register("index_put", "_unsafe_index_put")
def index_put(call: Call) -> Any:
    """Write at computed places; of a place that comes twice the last value counts, or their sum.

    Slices along one axis: each slice of the result finds the place of its number among the
    indices, so that what it takes from the values is read where it is needed.
    """
    data, indices = call.tensor("self"), call["indices"]
    values, adds = call.tensor("values", call.dtype), call["accumulate"]
    if "unsafe" in call:
        call.raw("unsafe")
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    axis, number = given[0]
    emit, shape = call.emit, [*call.importer.shape_of(data)]
    is_mask = any(dtype_of(i) in ("bool", "uint8") for _, i in given)
    if is_mask:
        if len(given) > 1 or math.prod(call.meta("values").shape) != 1:
            raise Unsupported("with a mask and several values", "use torch.where")
        mask = [*[1] * axis, *call.importer.shape_of(number)]
        mask += [1] * (len(shape) - len(mask))
        value = op.reshape(values, [1] * len(shape))
        written = op.add(data, value) if adds else value
        return op.where(op.reshape(call.cast(number, "bool"), mask), written, data)
    if len(given) > 1 or number.ty.ndim != 1 or adds:
        return _scattered(call, data, given, values, adds)
    extent, count = shape[axis], call.importer.shape_of(number)[0]
    behind = [1] * (len(shape) - axis - 1)
    if _is_permutation(call, number, extent):
        values = emit(op.broadcast_to(values, shape))
        if len(shape) == 1:
            return _permuted(call, number, values)
        places = _permuted(call, number, emit(op.arange(extent, dtype="int64")))
        return op.take(values, places, axis=axis)
    numbers = op.expand_dims(op.arange(extent, dtype="int64"), 1)
    is_hit = op.equal(numbers, op.expand_dims(from_start(number, extent), 0))
    if count == 1:
        return op.where(op.reshape(is_hit, [extent, *behind]), values, data)
    places = op.expand_dims(op.arange(count, dtype="int64"), 0)
    place = emit(op.max(op.where(is_hit, places, as_operand(-1)), axis=1))
    values = op.broadcast_to(values, [*shape[:axis], count, *shape[axis + 1 :]])
    moved = op.take(values, op.maximum(place, as_operand(0)), axis=axis)
    is_written = op.greater_equal(place, as_operand(0))
    return op.where(op.reshape(is_written, [extent, *behind]), moved, data)


def _is_permutation(call: Call, number: Any, extent: Any) -> bool:
    """Whether indices are the places of a sort: each number once."""
    bound = call.importer.block_builder.lookup_binding(number)
    is_sort = isinstance(bound, relax.Call) and bound.op == ir.Op.get("relax.argsort")
    sizes = {constant(size) for size in (number.ty.shape[0], extent)}
    return is_sort and len(sizes) == 1 and None not in sizes


def _permuted(call: Call, number: Any, values: Any) -> Any:
    """Write each value where its number says: of a permutation no place comes twice."""

    def body(i: Any, number: Any, values: Any, written: Any) -> None:
        store(written, [number[i]], values[i])

    count, dtype = int(number.ty.shape[0]), dtype_of(values)
    return emit_kernel(call, "permuted", [count], [number, values], [([count], dtype)], body)[0]


def _scattered(
    call: Call, data: Any, given: Sequence[tuple[int, Any]], values: Any, adds: bool
) -> Any:
    """Write at the places of several indices: the indexed axes go first and are taken as one."""
    emit, fake = call.emit, call.meta("self")
    shape = call.shape(fake)
    axes = [axis for axis, _ in given]
    rest = [a for a in range(len(shape)) if a not in axes]
    extents, inner = [shape[a] for a in axes], [shape[a] for a in rest]
    fakes = [f for f in call.meta("indices") if f is not None]
    joined = [call.extent(e) for e in torch.broadcast_shapes(*(f.shape for f in fakes))]
    count = math.prod(joined)
    if any(is_zero(e) for e in (*joined, *shape)):
        call.raw("values")
        return data
    at = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    full = [*inner[:at], *joined, *inner[at:]]
    values = emit(op.broadcast_to(values, full))
    order = [*range(at, at + len(joined)), *range(at), *range(at + len(joined), len(full))]
    values = emit(op.reshape(emit(op.permute_dims(values, order)), [count, *inner]))
    position = emit(op.broadcast_to(emit(_position([i for _, i in given], extents)), joined))
    position = emit(op.reshape(position, [count, 1]))
    moved = emit(op.permute_dims(data, [*axes, *rest]))
    moved = emit(op.reshape(moved, [math.prod(extents), *inner]))
    is_bool = call.dtype == "bool"
    if is_bool:
        moved, values = call.cast(moved, "int8"), call.cast(values, "int8")
    reduction = ("max" if is_bool else "add") if adds else "update"
    written = emit(op.scatter_nd(moved, position, values, reduction))
    written = emit(op.reshape(call.cast(written, call.dtype), [*extents, *inner]))
    back = [0] * len(shape)
    for place, axis in enumerate([*axes, *rest]):
        back[axis] = place
    return op.permute_dims(written, back)


def _position(numbers: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Return places in several axes taken as one."""
    position = as_operand(0)
    for number, extent in zip(numbers, extents, strict=True):
        counted = from_start(number, extent)
        position = op.add(op.multiply(position, as_operand(extent)), counted)
    return position


def from_start(number: Any, extent: Any) -> Any:
    """Count from the start of an axis what may be counted from its end."""
    number = op.astype(number, "int64")
    if _is_place(number):
        return number
    is_negative = op.less(number, as_operand(0))
    return op.where(is_negative, op.add(number, as_operand(extent)), number)


def _is_place(number: Any) -> bool:
    """Whether numbers are places that a sort or a search gave, which count from the start."""
    builder, is_second = relax.BlockBuilder.current(), False
    while True:
        if isinstance(number, relax.Var):
            number = None if builder is None else builder.lookup_binding(number)
        elif isinstance(number, relax.TupleGetItem):
            number, is_second = number.tuple_value, number.index == 1
        elif op_name(number) in _VIEWS:
            number = number.args[0]
        else:
            return op_name(number) in _PLACES or (op_name(number) == "relax.topk" and is_second)


def as_operand(number: Any) -> Any:
    """Make a scalar operand of a number or of an extent."""
    if isinstance(number, tirx.IntImm):
        number = int(number)
    return relax.const(number, "int64") if isinstance(number, int) else relax.prim_value(number)
