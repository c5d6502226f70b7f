"""Convert views, concatenations, splits, padding and copies."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from ..registry import Unsupported
from ..tensor_types import dtype_of
from .call import Call, static
from .registry import register

op = relax.op


@register("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def reshape(call: Call) -> Any:
    """Reshape; an extent of -1 is what torch found it to be."""
    call.raw("stride") if "stride" in call else None
    call.raw("size") if "size" in call else call.raw("shape")
    x, shape = call.tensor("self"), call.shape()
    current = list(call.importer.shape_of(x))
    if len(current) == len(shape) and all(map(_is_equal, current, shape)):
        return x
    return call.importer._emit_torch_reshape(x, shape)


@register("view.dtype")
def view_dtype(call: Call) -> Any:
    """Refuse to read bits as another type, unless it is the same."""
    if call.dtype != dtype_of(call.tensor("self")):
        raise Unsupported("from one dtype to another", "cast with .to(dtype)")
    call.raw("dtype")
    return call.tensor("self")


@register("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(call: Call) -> Any:
    """Drop axes of one element."""
    call.raw("dim") if "dim" in call else None
    return op.reshape(call.tensor("self"), call.shape())


@register("unsqueeze")
def unsqueeze(call: Call) -> Any:
    """Insert an axis of one element."""
    return op.expand_dims(call.tensor("self"), call["dim"] % len(call.out.shape))


@register("expand", "broadcast_to")
def expand(call: Call) -> Any:
    """Repeat along axes of one element."""
    call.raw("size")
    return op.broadcast_to(call.tensor("self"), call.shape())


@register("permute", "transpose.int", "t")
def permute(call: Call) -> Any:
    """Reorder axes."""
    rank = len(call.out.shape)
    if "dims" in call:
        axes = [d % rank if rank else d for d in call["dims"]]
    else:
        axes = list(range(rank))
        one, two = (call["dim0"], call["dim1"]) if "dim0" in call else (0, -1)
        if rank:
            axes[one], axes[two] = axes[two], axes[one]
    return op.permute_dims(call.tensor("self"), axes) if rank else call.tensor("self")


@register("cat", "concat")
def concat(call: Call) -> Any:
    """Join tensors along an axis; empty ones are left out."""
    fakes = call.meta("tensors")
    rank = len(call.out.shape)
    pairs = zip(call["tensors"], fakes, strict=True)
    axis = call["dim"] % rank
    kept = [x for x, f in pairs if len(f.shape) == rank and f.shape[axis] != 0]
    if not kept:
        return op.zeros(call.shape(), call.dtype)
    kept = [call.cast(x, call.dtype) for x in kept]
    return kept[0] if len(kept) == 1 else op.concat(kept, axis)


@register("stack")
def stack(call: Call) -> Any:
    """Join tensors along a new axis."""
    tensors = [call.cast(x, call.dtype) for x in call["tensors"]]
    return op.stack(tensors, axis=call["dim"] % len(call.out.shape))


@register("split.Tensor", "split_with_sizes", "unsafe_split.Tensor", "split_with_sizes_copy")
def split(call: Call) -> Any:
    """Split along an axis into pieces of the extents that torch gives them."""
    call.raw("split_size" if "split_size" in call else "split_sizes")
    return _pieces(call, call["dim"])


def _pieces(call: Call, axis: int) -> Any:
    x, fakes = call.tensor("self"), call.out
    if len(fakes) == 1:
        return (x,)
    extents = [call.extent(f.shape[axis]) for f in fakes]
    if all(isinstance(e, int) and e > 0 for e in extents):
        ends = [sum(extents[: i + 1]) for i in range(len(extents) - 1)]
        return call.emit(op.split(x, ends, axis))
    begin, pieces = 0, []
    for extent in extents:
        pieces.append(call.emit(op.strided_slice(x, [axis], [begin], [begin + extent])))
        begin = begin + extent
    return tuple(pieces)


@register("unbind.int")
def unbind(call: Call) -> Any:
    """Split an axis into its elements."""
    x, axis, count = call.tensor("self"), call["dim"], len(call.out)
    if count == 1:
        return (call.emit(op.squeeze(x, [axis])),)
    pieces = call.emit(op.split(x, count, axis))
    return tuple(call.emit(op.squeeze(pieces[i], [axis])) for i in range(count))


@register("slice.Tensor")
def slice_(call: Call) -> Any:
    """Take a range of an axis, bounds counted from either end and cut to the axis."""
    x, axis = call.tensor("self"), call["dim"]
    extent, step = call.meta("self").shape[axis], call["step"]
    begin, end = call["start"], call["end"]
    begin = 0 if begin is None else begin
    if _is_equal(call.extent(call.out.shape[axis]), call.extent(extent)) and step == 1:
        return x
    if isinstance(extent, int) and isinstance(begin, int):
        begin = max(0, begin + extent) if begin < 0 else min(begin, extent)
        count = call.out.shape[axis]
        if isinstance(count, int):  # Where torch knows the result's extent, the end follows.
            if count == 0:
                return op.zeros(call.shape(), call.dtype)
            return op.strided_slice(x, [axis], [begin], [begin + (count - 1) * step + 1], [step])
    whole = call.extent(extent)
    if isinstance(begin, int) and begin < 0:
        begin = whole + begin
    if end is None or (isinstance(end, int) and end >= 2**62):
        end = whole
    elif isinstance(end, int) and end < 0:
        end = whole + end
    return op.strided_slice(x, [axis], [begin], [end], [step])


@register("slice_scatter", "select_scatter")
def slice_scatter(call: Call) -> Any:
    """Write a range of an axis, or one place of it."""
    fake, axis, dtype = call.meta("self"), call["dim"], call.dtype
    axis %= len(fake.shape)
    (extent,) = static([fake.shape[axis]])
    x, source = call.tensor("self"), call.tensor("src", dtype)
    if "index" in call:
        begin = call["index"] % extent
        end, step = begin + 1, 1
        source = call.emit(op.expand_dims(source, axis))
    else:
        begin, end, _ = slice(call["start"], call["end"]).indices(extent)
        step = call["step"]
    if not isinstance(step, int):
        raise Unsupported("with a computed step", "give the step as a number")
    places = range(begin, end, step)
    if not len(places):
        return x
    if len(places) == extent:
        return op.broadcast_to(source, call.shape())
    pieces = []
    if step == 1:
        if begin > 0:
            pieces.append(op.strided_slice(x, [axis], [0], [begin]))
        shape = call.shape()
        shape[axis] = len(places)
        pieces.append(op.broadcast_to(source, shape))
        if end < extent:
            pieces.append(op.strided_slice(x, [axis], [end], [extent]))
        return op.concat([call.emit(piece) for piece in pieces], axis)
    which = [(p - begin) // step if p in places else -1 for p in range(extent)]
    shape = call.shape()
    shape[axis] = len(places)
    source = call.emit(op.broadcast_to(source, shape))
    index = relax.const([max(0, w) for w in which], "int64")
    moved = call.emit(op.take(source, index, axis))
    mask = relax.const([w >= 0 for w in which], "bool")
    mask = call.emit(op.reshape(mask, [extent, *[1] * (len(shape) - axis - 1)]))
    return op.where(mask, moved, x)


@register("pixel_shuffle")
def pixel_shuffle(call: Call) -> Any:
    """Move blocks of channels to pixels."""
    return op.nn.pixel_shuffle(call.tensor("self"), call["upscale_factor"])


@register("flip")
def flip(call: Call) -> Any:
    """Reverse axes."""
    x = call.tensor("self")
    for axis in call["dims"]:
        x = call.emit(op.flip(x, axis)) if call.out.shape else x
    return x


@register("roll")
def roll(call: Call) -> Any:
    """Rotate along axes, or along all of them laid out as one."""
    x, shifts, dims = call.tensor("self"), call["shifts"], call["dims"]
    shifts = [shifts] if isinstance(shifts, int) else shifts
    if call.out.numel() == 0 or not call.out.shape:
        return x
    shape = call.shape()
    if not dims:
        x, shape, dims = call.emit(op.reshape(x, [-1])), [call.out.numel()], [0]
    for shift, axis in zip(shifts, dims, strict=True):
        (extent,) = static([shape[axis]])
        cut = -shift % extent
        if cut:
            head = call.emit(op.strided_slice(x, [axis], [0], [cut]))
            tail = call.emit(op.strided_slice(x, [axis], [cut], [extent]))
            x = call.emit(op.concat([tail, head], axis))
    return op.reshape(x, call.shape())


@register("repeat", "tile")
def repeat(call: Call) -> Any:
    """Repeat a tensor along its axes."""
    return op.tile(call.tensor("self"), call["repeats"])


@register("constant_pad_nd")
def pad(call: Call) -> Any:
    """Pad with a constant; negative widths cut."""
    x, widths, rank = call.tensor("self"), call["pad"], len(call.out.shape)
    value = call["value"]
    pairs = [(0, 0)] * (rank - len(widths) // 2)
    pairs += [(widths[i], widths[i + 1]) for i in range(len(widths) - 2, -1, -2)]
    for axis, (before, after) in enumerate(pairs):
        if min(before, after) < 0:
            (extent,) = static([call.meta("self").shape[axis]])
            begin, end = max(0, -before), extent - max(0, -after)
            x = call.emit(op.strided_slice(x, [axis], [begin], [end]))
    flat = [max(0, w) for pair in pairs for w in pair]
    if not any(flat):
        return x
    dtype = call.dtype
    if dtype == "bool":
        padded = op.nn.pad(op.astype(x, "int8"), flat, "constant", float(bool(value)))
        return call.cast(call.emit(padded), "bool")
    if "int" in dtype and value != int(value):
        value = int(value)
    return op.nn.pad(x, flat, "constant", value)


@register("diagonal", "diagonal_copy")
def diagonal(call: Call) -> Any:
    """Take a diagonal: a lookup in two axes taken as one."""
    fake, x = call.meta("self"), call.tensor("self")
    rank = len(fake.shape)
    one, two, offset = call["dim1"] % rank, call["dim2"] % rank, call["offset"]
    rest = [a for a in range(rank) if a not in (one, two)]
    rows, columns, count = static([fake.shape[one], fake.shape[two], call.out.shape[-1]])
    if count == 0:
        return op.zeros(call.shape(), call.dtype)
    x = call.emit(op.permute_dims(x, [*rest, one, two]))
    x = call.emit(op.reshape(x, [*(call.extent(fake.shape[a]) for a in rest), rows * columns]))
    first = offset if offset >= 0 else -offset * columns
    places = [first + i * (columns + 1) for i in range(count)]
    return op.take(x, relax.const(places, "int64"), len(rest))


@register("as_strided", "as_strided_copy")
def as_strided(call: Call) -> Any:
    """Look elements up at the places that strides lead to, in a contiguous tensor."""
    fake, size, stride = call.meta("self"), call["size"], call["stride"]
    offset = call["storage_offset"] or 0
    static([*fake.shape, *size])
    if not fake.is_contiguous() or fake.storage_offset() != 0:
        raise Unsupported("of a tensor that is not contiguous", "use view, slice or index")
    places = torch.full(tuple(size), offset, dtype=torch.int64)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(extent) * step
        places += steps.reshape([-1, *[1] * (len(size) - axis - 1)])
    if places.numel() and int(places.max()) >= fake.numel():
        raise Unsupported("beyond the tensor's elements", "use view, slice or index")
    if places.numel() > 2**20:
        raise Unsupported("of over a million elements", "use view, slice or index")
    flat = call.emit(op.reshape(call.tensor("self"), [fake.numel()]))
    taken = call.emit(op.take(flat, relax.const(places.flatten().numpy()), 0))
    return op.reshape(taken, list(size))


@register("_to_copy", "to.dtype", "lift_fresh_copy", "clone", "alias", "detach", "contiguous")
@register("_conj_physical", "_conj", "positive", "alias_copy", "detach_copy")
def copy(call: Call) -> Any:
    """Copy, into another dtype where one is named; a narrower one on the way counts, too."""
    call.raw("dtype") if "dtype" in call else None
    return call.tensor("self", call.dtype)


@register("copy")
def copy_from(call: Call) -> Any:
    """Take the other tensor's values in this one's shape and dtype."""
    call.raw("self")
    return op.broadcast_to(call.tensor("src", call.dtype), call.shape())


def _is_equal(one: Any, other: Any) -> bool:
    from tvm import tirx
    from tvm.ir.prim import expr_deep_equal

    one, other = (tirx.IntImm("int64", int(e)) if isinstance(e, int) else e for e in (one, other))
    return bool(expr_deep_equal(one, other))
