"""Convert pooling and interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from ..registry import Unsupported
from ..spatial import ADAPTIVE_AVG_POOL, AVG_POOL, DATA_LAYOUT, MAX_POOL, average_windows, per_axis
from ..tensor_types import dtype_of, is_float
from .call import Call, bound, static
from .registry import register

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
    extents, outer = static(call.meta("self").shape[-rank:]), static(call.out.shape[-rank:])
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
        if ceil_mode:  # A last window that would begin in the padding is left out by torch only.
            outer = static(fake.shape[-rank:])
            extents = static(call.meta("self").shape[-rank:])
            after = [
                (o - 1) * s + d * (k - 1) + 1 - e - p
                for o, s, d, k, e, p in zip(
                    outer, stride, dilation, kernel, extents, padding, strict=True
                )
            ]
            padding = [*padding, *(max(0, a) for a in after)]
            if min(after) < 0:
                end = [e + min(0, a) for e, a in zip(extents, after, strict=True)]
                axes = list(range(2, 2 + rank))
                x = call.emit(op.strided_slice(x, axes, [0] * rank, end))
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
        steps.append((at, (at >= 0) & (at < extents[axis])))
    return _searched(call, rank, steps)


def _searched(call: Call, rank: int, steps: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Look windows up, and search each: the first of equal values, as torch.

    Parameters
    ----------
    call : Call
        Whose results are values and places.
    rank : int
        How many axes the windows span.
    steps : list of (numpy.ndarray, numpy.ndarray)
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


def _not_whole(node: fx.Node) -> Unsupported | None:
    """Refuse upsampling by other ratios than whole numbers, which resize2d floors differently."""
    before = node.args[0].meta["val"].shape[2:]
    after = node.meta["val"].shape[2:]
    scales = bound(node).get("scale_factors")
    if all(isinstance(e, int) for e in (*before, *after)):
        is_multiple = all(a % b == 0 for a, b in zip(after, before, strict=True))
        ratios = [a / b for a, b in zip(after, before, strict=True)]
        if is_multiple and (scales is None or list(scales) == ratios):
            return None
    return Unsupported("by ratios that are no whole numbers")


@register("upsample_nearest2d.vec", refuses=_not_whole)
def upsample_nearest(call: Call) -> Any:
    """Repeat elements a whole number of times."""
    call.raw("output_size"), call.raw("scale_factors")
    return _resize(call, "nearest_neighbor", "half_pixel", call.tensor("input"))


def _not_by_size(node: fx.Node) -> Unsupported | None:
    """Refuse an interpolation by another ratio than that of the extents, which resize2d takes.

    Torch takes a scale factor as it was given, rounded extents notwithstanding.
    """
    values = bound(node)
    before = node.args[0].meta["val"].shape[2:]
    after = node.meta["val"].shape[2:]
    if not all(isinstance(e, int) for e in (*before, *after)):
        return Unsupported("over symbolic extents")
    if node.args[0].meta["val"].dtype.itemsize < 4:
        return Unsupported("of a half type")
    scales = values.get("scale_factors")
    if values["align_corners"] or scales is None:
        return None
    is_exact = all(b * s == a for a, b, s in zip(after, before, scales, strict=True))
    return None if is_exact else Unsupported("by a scale that is not the ratio of the extents")


@register("upsample_bilinear2d.vec", refuses=_not_by_size)
def upsample_linear(call: Call) -> Any:
    """Interpolate between elements, corners aligned or not."""
    call.raw("output_size"), call.raw("scale_factors")
    mode = "align_corners" if call["align_corners"] else "half_pixel"
    return _resize(call, "linear", mode, call.tensor("input"))


def _resize(call: Call, method: str, mode: str, x: Any) -> Any:
    size = static(call.out.shape[2:])
    rounding = "floor" if method == "nearest_neighbor" else ""
    return op.image.resize2d(
        x,
        size,
        layout="NCHW",
        method=method,
        coordinate_transformation_mode="asymmetric" if rounding else mode,
        rounding_method=rounding or "round",
    )


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


@register("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def upsample_antialiased(call: Call) -> Any:
    """Resize with antialiasing: a product with a matrix of weights for each axis.

    The weights are torch's own: what becomes of the rows of an identity matrix.
    """
    fake, x = call.meta("self"), call.tensor("self")
    size, corners = static(call.out.shape[2:]), call["align_corners"]
    scales = [call["scales_h"], call["scales_w"]]
    call.raw("output_size")
    if not is_float(call.dtype) or 0 in fake.shape:
        raise Unsupported(f"of {call.dtype} numbers", "cast to a floating point type")
    before = static(fake.shape[2:])
    rows, columns = (
        _weights(call, before[a], size[a], corners, scales[a]).astype(call.dtype) for a in (0, 1)
    )
    narrow = call.emit(op.matmul(relax.const(rows, call.dtype), x))
    return op.matmul(narrow, relax.const(columns.T.copy(), call.dtype))


def _weights(call: Call, before: int, after: int, corners: bool, scale: float | None) -> np.ndarray:
    identity = torch.eye(before, dtype=torch.float64).reshape(1, 1, before, before)
    resized = call.node.target(identity, [after, before], corners, scale, None)
    return resized.reshape(after, before).numpy()
