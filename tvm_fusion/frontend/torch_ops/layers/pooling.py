"""Convert pooling."""

import math
from typing import Any

import numpy as np
from torch import fx
from tvm import relax

from ...operators.spatial import (
    ADAPTIVE_AVG_POOL,
    AVG_POOL,
    DATA_LAYOUT,
    MAX_POOL,
    average_windows,
    per_axis,
    steps_inside,
)
from ...registry import Unsupported
from ...tensor_types import dtype_of, is_float
from ..call import Call, static
from ..registry import register

op = relax.op


def _rank(node: fx.Node) -> int:
    name = node.target.__name__
    return next(r for r in (1, 2, 3) if f"{r}d" in name)


def _batched(call: Call, rank: int) -> Any:
    """Return the argument with an axis of batches."""
    x, fake = call.tensor("self"), call.meta("self")
    if any(e == 0 for e in fake.shape):
        raise Unsupported("of an empty tensor", "leave it out")
    return x if len(fake.shape) == rank + 2 else call.emit(op.expand_dims(x, 0))


def _unbatched(call: Call, x: Any, fake: Any) -> Any:
    return x if len(fake.shape) == len(call.importer.shape_of(x)) else call.emit(op.squeeze(x, [0]))


@register("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: Call) -> Any:
    """Average windows; a divisor of its own takes the place of their counts."""
    rank = _rank(call.node)
    kernel = per_axis(call["kernel_size"], rank)
    stride = per_axis(call["stride"] or kernel, rank)
    padding, counts = per_axis(call["padding"], rank), call["count_include_pad"]
    ceil_mode = call["ceil_mode"]
    divisor = call.get("divisor_override", None)
    x = _batched(call, rank)
    dtype = dtype_of(x)
    if not is_float(dtype):
        raise Unsupported(f"of {dtype} numbers", "cast to a floating point type")
    if divisor is None and not ceil_mode:
        options = {"layout": DATA_LAYOUT[rank], "count_include_pad": counts}
        return _unbatched(
            call, call.emit(AVG_POOL[rank](x, kernel, stride, padding, **options)), call.out
        )
    fake = call.meta("self")
    if divisor is None and not all(isinstance(e, int) for e in fake.shape[-rank:]):
        if counts and any(padding):
            text = "with ceil_mode, counted padding and a symbolic extent"
            raise Unsupported(text, "set count_include_pad=False or give the dimension an extent")
        x, kernel, padding = _ceiled(call, x, call.out, kernel, stride, padding, [1] * rank)
        options = {"layout": DATA_LAYOUT[rank], "count_include_pad": False}
        result = call.emit(AVG_POOL[rank](x, kernel, stride, padding, **options))
        return _unbatched(call, result, call.out)
    extents, outer = static(fake.shape[-rank:]), static(call.out.shape[-rank:])
    both, steps = (padding, padding), [1] * rank
    result = average_windows(
        x, call.emit, extents, outer, kernel, stride, steps, both, counts, divisor
    )
    return _unbatched(call, call.emit(result), call.out)


@register("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(call: Call) -> Any:
    """Take the largest of each window, and where it lies."""
    rank = _rank(call.node)
    kernel = per_axis(call["kernel_size"], rank)
    stride = per_axis(call["stride"] or kernel, rank)
    padding, dilation = per_axis(call["padding"], rank), per_axis(call["dilation"], rank)
    ceil_mode, fake = call["ceil_mode"], call.out[0]
    x = _batched(call, rank)
    if not call.is_used(1):
        if ceil_mode:
            x, kernel, padding = _ceiled(call, x, fake, kernel, stride, padding, dilation)
        result = MAX_POOL[rank](
            x,
            pool_size=kernel,
            strides=stride,
            padding=padding,
            dilation=dilation,
            layout=DATA_LAYOUT[rank],
        )
        return _unbatched(call, call.emit(result), fake), None
    return _with_places(call, rank, kernel, stride, padding, dilation)


def _ceiled(
    call: Call,
    x: Any,
    fake: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    by: list[int],
) -> tuple[Any, list[int], list[int]]:
    """Pad, or cut off, what makes rounding down count as many windows as rounding up.

    Torch leaves out a last window that would begin in the padding. Steps of windows that lie in the
    padding everywhere are left out.
    """
    rank = len(kernel)
    cut: dict[int, tuple[int, int]] = {}
    sizes, before, behind = [*kernel], [*padding], [0] * rank
    extents, outer = call.meta("self").shape[-rank:], fake.shape[-rank:]
    for axis, (k, s, p, d) in enumerate(zip(kernel, stride, padding, by, strict=True)):
        extent, window = extents[axis], d * (k - 1) + 1
        if isinstance(extent, int):
            skipped, sizes[axis] = steps_inside(extent, int(outer[axis]), k, s, d, p)
            first = skipped * d - p
            last = first + (int(outer[axis]) - 1) * s + d * (sizes[axis] - 1) + 1
            before[axis], more = max(0, -first), last - extent
            if first > 0 or more < 0:
                cut[axis + 2] = max(0, first), min(last, extent)
        elif p + s <= window:  # Every window begins before the padding.
            more = p + s - 1
        else:
            text = "with ceil_mode, windows that may begin in the padding, and a symbolic extent"
            raise Unsupported(text, "leave ceil_mode out or give the dimension a fixed extent")
        behind[axis] = max(0, more)
    if cut:
        begin, end = (list(side) for side in zip(*cut.values(), strict=True))
        x = call.emit(op.strided_slice(x, [*cut], begin, end))
    return x, sizes, [*before, *behind]


def _with_places(
    call: Call, rank: int, kernel: list[int], stride: list[int], padding: list[int], by: list[int]
) -> Any:
    """Search windows of a kernel; what lies in the padding is no candidate."""
    extents = static(call.meta("self").shape[-rank:])
    outer = static(call.out[0].shape[-rank:])
    steps = []
    for axis in range(rank):
        first = np.arange(outer[axis])[:, None] * stride[axis] - padding[axis]
        at = first + np.arange(kernel[axis])[None] * by[axis]
        inside = (at >= 0) & (at < extents[axis])
        some = inside.any(0)
        steps.append((at[:, some], inside[:, some]))
    return _searched(call, rank, steps)


def _searched(call: Call, rank: int, steps: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Look windows up, and search each: the first of equal values, as torch.

    Parameters
    ----------
    call
        Whose results are values and places.
    rank
        How many axes the windows span.
    steps
        For each of them, by window and step in it: the place, and whether it counts.
    """
    fake = call.out[0]
    extents = static(call.meta("self").shape[-rank:])
    dtype = dtype_of(call.tensor("self"))
    places, inside = np.zeros([1] * (2 * rank), "int64"), np.ones([1] * (2 * rank), bool)
    for axis, (at, counts) in enumerate(steps):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = at.shape
        inside = inside & counts.reshape(shape)
        places = places * extents[axis] + np.clip(at, 0, extents[axis] - 1).reshape(shape)
    count, window = (math.prod(at.shape[i] for at, _ in steps) for i in (0, 1))
    table, inside = places.reshape(count, window), inside.reshape(count, window)
    batch = [call.extent(e) for e in fake.shape[: len(fake.shape) - rank]]
    flat = call.emit(op.reshape(call.tensor("self"), [*batch, math.prod(extents)]))
    taken = call.emit(op.take(flat, relax.const(table.reshape(-1), "int64"), len(batch)))
    taken = call.emit(op.reshape(taken, [*batch, count, window]))
    lowest = -math.inf if is_float(dtype) else np.iinfo(dtype).min
    taken = call.emit(op.where(relax.const(inside, "bool"), taken, relax.const(lowest, dtype)))
    value = call.emit(op.reshape(call.emit(op.max(taken, [-1])), call.shape(fake)))
    if not call.is_used(1):
        return value, None
    which = call.emit(op.astype(op.argmax(taken, -1), "int64"))
    number = call.emit(op.add(which, relax.const(np.arange(count) * window, "int64")))
    place = call.emit(op.take(relax.const(table.reshape(-1), "int64"), number, 0))
    return value, call.emit(op.reshape(place, call.shape(fake)))


@register("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(call: Call) -> Any:
    """Average windows that cover the axes evenly."""
    rank = _rank(call.node)
    size, x = call["output_size"], _batched(call, rank)
    result = ADAPTIVE_AVG_POOL[rank](x, per_axis(size, rank), layout=DATA_LAYOUT[rank])
    return _unbatched(call, call.emit(result), call.out)


@register("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> Any:
    """Take the largest of windows that cover the axes evenly, and where it lies."""
    rank, size = _rank(call.node), call["output_size"]
    fake = call.meta("self")
    if fake.numel() == 0:
        raise Unsupported("of an empty tensor", "leave it out")
    extents, outer = static(fake.shape[-rank:]), per_axis(size, rank)
    steps = []
    for extent, count in zip(extents, outer, strict=True):
        first = np.arange(count) * extent // count
        last = -(-(np.arange(count) + 1) * extent // count)
        width = int((last - first).max())
        at = first[:, None] + np.arange(width)[None]
        steps.append((at, at < last[:, None]))
    return _searched(call, rank, steps)
