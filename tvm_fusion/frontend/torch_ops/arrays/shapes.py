"""Convert views, reordered axes and copies."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax

from ...registry import Unsupported
from ..call import Call, is_empty, static
from ..registry import register

op = relax.op


@register("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def reshape(call: Call) -> Any:
    """Reshape; an extent of -1 is what torch found it to be."""
    call.raw("stride") if "stride" in call else None
    call.raw("size") if "size" in call else call.raw("shape")
    x, shape = call.tensor("self"), call.shape()
    current = list(call.importer.shape_of(x))
    if len(current) == len(shape) and all(map(is_equal, current, shape)):
        return x
    return call.importer._emit_torch_reshape(x, shape)


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


@register("pixel_shuffle")
def pixel_shuffle(call: Call) -> Any:
    """Move blocks of channels to pixels."""
    return op.nn.pixel_shuffle(call.tensor("self"), call["upscale_factor"])


@register("diagonal", "diagonal_copy")
def diagonal(call: Call) -> Any:
    """Take a diagonal: a lookup in two axes taken as one."""
    fake, x = call.meta("self"), call.tensor("self")
    rank = len(fake.shape)
    one, two, offset = call["dim1"] % rank, call["dim2"] % rank, call["offset"]
    rest = [a for a in range(rank) if a not in (one, two)]
    rows, columns, count = (
        call.extent(e) for e in (fake.shape[one], fake.shape[two], call.out.shape[-1])
    )
    if is_empty(call.out):
        return op.zeros(call.shape(), call.dtype)
    x = call.emit(op.permute_dims(x, [*rest, one, two]))
    x = call.emit(op.reshape(x, [*(call.extent(fake.shape[a]) for a in rest), rows * columns]))
    first = offset if offset >= 0 else -offset * columns
    if isinstance(count, int) and isinstance(columns, int):
        places = relax.const([first + i * (columns + 1) for i in range(count)], "int64")
    else:
        places = _places(call, [count], [columns + 1], first)
    return op.take(x, places, len(rest))


def _places(call: Call, sizes: Sequence[Any], strides: Sequence[Any], first: Any) -> Any:
    """Count the places that strides lead to, over symbolic extents."""
    found = call.as_tensor(first, "int64")
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        steps = op.multiply(op.arange(0, size, 1, "int64"), call.as_tensor(stride, "int64"))
        after = [1] * (len(sizes) - axis - 1)
        found = call.emit(op.add(found, op.reshape(call.emit(steps), [size, *after])))
    return found


@register("as_strided", "as_strided_copy")
def as_strided(call: Call) -> Any:
    """Look elements up at the places that strides lead to, in a contiguous tensor.

    A first axis that stays as it is, such as a batch of signals cut into frames, may be symbolic.
    """
    fake, size, stride = call.meta("self"), call["size"], call["stride"]
    offset, shape = call["storage_offset"] or 0, call.shape()
    if not fake.is_contiguous() or fake.storage_offset() != 0:
        raise Unsupported("of a tensor that is not contiguous", "use view, slice or index")
    inner = fake.shape[1:]
    keeps = bool(fake.shape and shape) and is_equal(call.extent(fake.shape[0]), shape[0])
    keeps = keeps and stride[0] == math.prod(inner) and 0 <= offset < max(1, stride[0])
    kept = 1 if keeps else 0
    lengths = (*fake.shape[kept:], *size[kept:], *stride[kept:], offset)
    if not all(isinstance(e, int) for e in lengths):
        flat = [*shape[:kept], math.prod(call.extent(e) for e in fake.shape[kept:])]
        steps = [call.extent(e) for e in stride[kept:]]
        places = _places(call, shape[kept:], steps, call.extent(offset))
        return op.take(call.emit(op.reshape(call.tensor("self"), flat)), places, kept)
    count = math.prod(static([*fake.shape[kept:]]))
    places = torch.full(tuple(static(size[kept:])), offset, dtype=torch.int64)
    for axis, (extent, step) in enumerate(zip(size[kept:], stride[kept:], strict=True)):
        steps = torch.arange(extent) * step
        places += steps.reshape([-1, *[1] * (places.ndim - axis - 1)])
    if places.numel() and int(places.max()) >= count:
        raise Unsupported("beyond the tensor's elements", "use view, slice or index")
    if places.numel() > 2**20:
        raise Unsupported("of over a million elements", "use view, slice or index")
    flat = call.emit(op.reshape(call.tensor("self"), [*shape[:kept], count]))
    taken = call.emit(op.take(flat, relax.const(places.flatten().numpy()), kept))
    return op.reshape(taken, shape)


@register("_to_copy", "to.dtype", "lift_fresh_copy", "clone", "alias", "detach", "contiguous")
@register("_conj_physical", "_conj", "positive", "alias_copy", "detach_copy")
def copy(call: Call) -> Any:
    """Copy, into another dtype where one is named; a narrower one on the way counts, too."""
    call.raw("dtype") if "dtype" in call else None
    return call.tensor("self", call.dtype)


@register("convert_element_type")
def convert_element_type(call: Call) -> Any:
    """Cast."""
    call.raw("dtype")
    return call.tensor("a", call.dtype)


@register("resize")
def resize(call: Call) -> Any:
    """Take the first elements; there have to be as many."""
    for name in ("size", "memory_format"):
        call.raw(name)
    count, fake = call.out.numel(), call.meta("self")
    if count > fake.numel():
        raise Unsupported("to more elements than there are", "pad the tensor")
    flat = call.emit(op.reshape(call.tensor("self"), [fake.numel()]))
    return op.reshape(call.emit(op.strided_slice(flat, [0], [0], [count])), call.shape())


@register("copy")
def copy_from(call: Call) -> Any:
    """Take the other tensor's values in this one's shape and dtype."""
    call.raw("self")
    return op.broadcast_to(call.tensor("src", call.dtype), call.shape())


def is_equal(one: Any, other: Any) -> bool:
    """Whether two extents, numbers or TIR expressions, are written alike."""
    from tvm import tirx
    from tvm.ir.prim import expr_deep_equal

    one, other = (tirx.IntImm("int64", int(e)) if isinstance(e, int) else e for e in (one, other))
    return bool(expr_deep_equal(one, other))
