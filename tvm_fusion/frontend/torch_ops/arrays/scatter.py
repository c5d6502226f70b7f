"""Convert scatters: values written at computed places, the last of them, their sum or extreme."""

import math
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from ...registry import Unsupported
from ...tensor_types import dtype_of, is_float
from ..call import Call, is_empty, is_zero, static
from ..registry import register
from .indexing import as_operand, from_start

op = relax.op

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
_REDUCTIONS |= {"add": "add", "multiply": "mul"}


@register("scatter.src", "scatter.value", "scatter_add", "scatter_reduce.two")
@register("scatter.reduce", "scatter.value_reduce")
def scatter(call: Call) -> Any:
    """Write elements along an axis: the last one counts, or their sum, product or extreme."""
    data, axis, dtype = call.tensor("self"), call["dim"], call.dtype
    name = call.node.target.__name__
    shape = call.shape(call.meta("index"))
    if "value" in call:
        source = call.emit(op.full(shape, call.as_tensor(call["value"], dtype), dtype))
    else:
        source = call.tensor("src", dtype)
        if [*call.meta("src").shape] != [*call.meta("index").shape]:
            if not shape:
                source = call.emit(op.reshape(source, []))
            else:
                zeros = [0] * len(shape)
                axes = list(range(len(shape)))
                source = call.emit(op.strided_slice(source, axes, zeros, static(shape)))
    index = call.tensor("index")
    asked = "add" if name.startswith("scatter_add") else call.get("reduce", "update")
    includes = call.get("include_self", True)
    if is_empty(call.meta("index")):
        return data
    if not call.out.shape:
        data, index, source = (call.emit(op.reshape(x, [1])) for x in (data, index, source))
        axis = 0
    written = _reduced(call, (data, index, source), axis, asked, includes, _has_rows(call))
    return op.reshape(written, call.shape())


def _has_rows(call: Call) -> bool:
    """Whether an index was expanded along all axes but that of ``dim``: whole slices are written.

    Graph networks expand an index of nodes so. Slices need no index of each element, and kernels
    for them are vectors. An input may have other strides than the example's at export.
    """
    if _is_expanded_input(call.raw("index")):
        return False
    index, extents = call.meta("index"), [*call.meta("self").shape]
    if index.ndim < 2 or not all(isinstance(d, int) for d in (*index.shape, *extents)):
        return False
    axis = call["dim"] % index.ndim
    others = [a for a in range(index.ndim) if a != axis]
    return math.prod(extents[a] for a in others) > 1 and all(
        index.shape[a] == extents[a] and (index.shape[a] == 1 or index.stride(a) == 0)
        for a in others
    )


def _is_expanded_input(node: fx.Node) -> bool:
    """Whether elements of a value are one in memory because those of an input are."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return False
    if not any(d > 1 and step == 0 for d, step in zip(value.shape, value.stride(), strict=True)):
        return False
    return node.op == "placeholder" or any(map(_is_expanded_input, node.all_input_nodes))


def _reduced(
    call: Call,
    tensors: tuple[Any, Any, Any],
    axis: int,
    asked: str,
    includes_self: bool,
    has_rows: bool = False,
) -> Any:
    """Scatter by a reduction; without what stood at its places where that is not included."""
    data, index, source = tensors
    dtype, emit = dtype_of(data), call.emit
    wide = call.wide(data)
    if dtype == "bool":
        data, source = call.cast(data, "int8"), call.cast(source, "int8")
    elif asked in ("sum", "add", "mean", "prod", "multiply"):
        data, source = wide, call.cast(source, dtype_of(wide))
    reduction = "update" if asked == "update" else _REDUCTIONS[asked]
    if dtype == "bool":
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    kind = dtype_of(data)

    def scattered(x: Any, y: Any, how: str) -> Any:
        if has_rows:
            return _by_rows(call, (x, index, y), axis, how)
        return emit(op.scatter_elements(x, index, y, axis, how))

    if not includes_self:
        flags = emit(op.zeros_like(call.cast(data, "int8")))
        hits = scattered(flags, emit(op.ones_like(call.cast(source, "int8"))), "max")
        neutral = relax.const(_neutral(reduction, kind), kind)
        data = emit(op.where(call.cast(hits, "bool"), neutral, data))
    written = scattered(data, source, reduction)
    if asked == "mean":
        ones = emit(op.ones_like(source))
        start = op.ones_like(data) if includes_self else op.zeros_like(data)
        count = scattered(emit(start), ones, "add")
        count = emit(op.maximum(count, relax.const(1, kind)))
        divide = op.divide if is_float(kind) else op.floor_divide
        written = emit(divide(written, count))
    return call.cast(written, dtype)


def _by_rows(call: Call, tensors: tuple[Any, Any, Any], axis: int, how: str) -> Any:
    """Scatter slices along an axis by the first element of each slice of an index."""
    data, index, source = tensors
    emit, shape = call.emit, static(call.meta("index").shape)
    rank = len(shape)
    axis %= rank
    others = [a for a in range(rank) if a != axis]
    first = emit(op.strided_slice(index, others, [0] * (rank - 1), [1] * (rank - 1)))
    first = emit(from_start(first, static(call.meta("self").shape)[axis]))
    places = emit(op.reshape(first, [shape[axis], 1]))
    rows = emit(op.permute_dims(source, [axis, *others]))
    return emit(_write_slices(call, (data, places, rows), axis, how))


def _write_slices(call: Call, tensors: tuple[Any, Any, Any], axis: int, how: str) -> Any:
    """Scatter slices along an axis, which is the source's first, at places ``[count, 1]``."""
    data, places, source = tensors
    rank = len(data.ty.shape)
    front = [axis, *(a for a in range(rank) if a != axis)]
    moved = call.emit(op.permute_dims(data, front))
    written = call.emit(op.scatter_nd(moved, places, source, how))
    return op.permute_dims(written, sorted(range(rank), key=lambda place: front[place]))


def _neutral(reduction: str, dtype: str) -> float:
    if reduction in ("add", "mul", "update"):
        return int(reduction == "mul")
    if is_float(dtype):
        return -math.inf if reduction == "max" else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if reduction == "max" else limits.max)


@register("index_reduce")
def index_reduce(call: Call) -> Any:
    """Reduce slices into those of an index along an axis."""
    data, source, fake = call.tensor("self"), call.tensor("source", call.dtype), call.meta("source")
    axis, shape = call["dim"] % max(1, len(call.out.shape)), static(fake.shape) or [1]
    includes = call["include_self"]
    if not call.out.shape:
        data, source = (call.emit(op.reshape(x, [1])) for x in (data, source))
    if is_empty(fake):
        call.raw("index"), call.raw("reduce")
        return data
    ones = [shape[axis] if a == axis else 1 for a in range(len(shape))]
    index = call.emit(op.reshape(call.tensor("index"), ones))
    index = call.emit(op.broadcast_to(index, shape))
    written = _reduced(call, (data, index, source), axis, call["reduce"], includes)
    return op.reshape(written, call.shape())


@register("put")
def put(call: Call) -> Any:
    """Write at places of a tensor laid out as one axis."""
    count, size = call.meta("index").numel(), call.out.numel()
    if count == 0 or size == 0:
        for name in ("index", "source", "accumulate"):
            call.raw(name)
        return call.tensor("self")
    flat = call.emit(op.reshape(call.tensor("self"), [size]))
    index = call.emit(from_start(call.emit(op.reshape(call.tensor("index"), [count])), size))
    source = call.emit(op.reshape(call.tensor("source", call.dtype), [count]))
    asked = "add" if call["accumulate"] else "update"
    return op.reshape(_reduced(call, (flat, index, source), 0, asked, True), call.shape())


@register("as_strided_scatter")
def as_strided_scatter(call: Call) -> Any:
    """Write at the places that strides lead to, in a contiguous tensor."""
    name = "input" if "input" in call else "self"
    fake, size = call.meta(name), call.out.numel()
    if not fake.is_contiguous() or fake.storage_offset() != 0:
        raise Unsupported("of a tensor that is not contiguous", "use slice or index")
    places = torch.full(tuple(static(call["size"])), call["storage_offset"] or 0)
    for axis, (extent, step) in enumerate(zip(call["size"], call["stride"], strict=True)):
        places += (torch.arange(extent) * step).reshape([-1, *[1] * (len(call["size"]) - axis - 1)])
    if not places.numel():
        call.raw("src")
        return call.tensor(name)
    if int(places.max()) >= size:
        raise Unsupported("beyond the tensor's elements", "use slice or index")
    flat = call.emit(op.reshape(call.tensor(name), [size]))
    source = call.emit(op.reshape(call.tensor("src", call.dtype), [places.numel()]))
    index = relax.const(places.flatten().numpy(), "int64")
    return op.reshape(_reduced(call, (flat, index, source), 0, "update", True), call.shape())


@register("index_add", "index_copy", "index_fill.int_Scalar", "index_fill.int_Tensor")
def index_add(call: Call) -> Any:
    """Write, add or fill slices along an axis."""
    name, fake, dtype = call.node.target.__name__, call.meta("self"), call.dtype
    rank, axis = len(fake.shape), call["dim"]
    data, index = call.tensor("self"), call.tensor("index")
    shape = call.shape(fake) or [1]
    if rank == 0:
        rank, data = 1, call.emit(op.reshape(data, [1]))
    axis %= rank
    count = math.prod(call.shape(call.meta("index")))
    if is_zero(count):
        return call.tensor("self")
    position = call.emit(op.reshape(from_start(index, shape[axis]), [count, 1]))
    front = [axis, *(a for a in range(rank) if a != axis)]
    rest = [shape[a] for a in front[1:]]
    if "value" in call:
        source = call.as_tensor(call["value"], dtype)
        source = call.emit(op.broadcast_to(source, [count, *rest]))
    else:
        source = call.tensor("source", dtype)
        if not call.meta("source").shape:
            source = call.emit(op.reshape(source, [1] * rank))
        source = call.emit(op.permute_dims(source, front))
    if "alpha" in call and call["alpha"] != 1:
        source = call.emit(op.multiply(source, call.as_tensor(call["alpha"], dtype)))
    is_bool = dtype == "bool"
    if is_bool:
        data, source = call.cast(data, "int8"), call.cast(source, "int8")
    reduction = ("max" if is_bool else "add") if name.startswith("index_add") else "update"
    written = call.emit(_write_slices(call, (data, position, source), axis, reduction))
    written = call.cast(written, dtype)
    return written if fake.shape else op.reshape(written, [])


@register("masked_scatter")
def masked_scatter(call: Call) -> Any:
    """Write the source's elements, in their order, where a mask holds."""
    shape = static(call.out.shape)
    count, sources = math.prod(shape), call.meta("source").numel()
    if count == 0 or sources == 0:
        call.raw("mask"), call.raw("source")
        return call.tensor("self")
    mask = call.emit(op.broadcast_to(call.tensor("mask", "bool"), shape))
    flat = call.emit(op.reshape(mask, [count]))
    place = call.emit(op.cumsum(op.astype(flat, "int64"), 0))
    place = op.minimum(
        op.maximum(op.subtract(place, as_operand(1)), as_operand(0)), as_operand(sources - 1)
    )
    source = call.emit(op.reshape(call.tensor("source", call.dtype), [sources]))
    moved = call.emit(op.reshape(call.emit(op.take(source, call.emit(place), 0)), shape))
    return op.where(mask, moved, call.tensor("self"))
