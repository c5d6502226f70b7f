"""Shapes, orders, copies, joins, cuts, borders."""

import math
from typing import Any

from ..builder import Builder, Rejected
from ..dims import combine
from .registry import image, recipe, static, static_axes


@recipe(4)
def reshaping(b: Builder) -> None:
    x = b.pick(lambda v: len(b.shape(v)) >= 2)
    shape = b.shape(x)
    name = b.one_of(["merge", "merge", "split", "flatten", "nn.batch_flatten"])
    if name == "merge":
        axis = b.integer(0, len(shape) - 1)
        joined = combine(math.prod, shape[axis : axis + 2], b.envs)
        if joined is None:
            raise Rejected("no formula")
        b.emit("reshape", x, shape=(*shape[:axis], joined, *shape[axis + 2 :]))
    elif name == "split":
        axis = b.one_of(static_axes(shape, 4))
        extent = static(shape[axis])
        divisor = b.one_of([d for d in range(2, extent) if extent % d == 0])
        parts = (divisor, extent // divisor)
        b.emit("reshape", x, shape=(*shape[:axis], *parts, *shape[axis + 1 :]))
    else:
        b.emit(name, x)


@recipe(2)
def depth_to_space(b: Builder) -> None:
    x = image(b)
    batch, channels, high, wide = b.shape(x)
    channels = static(channels)
    if channels % 4:
        raise Rejected("channels")
    y = b.emit("reshape", x, shape=(batch, 2, 2, channels // 4, high, wide))
    y = b.emit("permute_dims", y, axes=[0, 3, 4, 1, 5, 2])
    high, wide = 2 * static(high), 2 * static(wide)
    b.emit("reshape", y, shape=(batch, channels // 4, high, wide))


@recipe(4)
def transpose(b: Builder) -> None:
    x = b.pick(lambda v: len(b.shape(v)) >= 2)
    b.emit("permute_dims", x, axes=[int(a) for a in b.rng.permutation(len(b.shape(x)))])


@recipe(2)
def unit_axes(b: Builder) -> None:
    x = b.pick(lambda v: True)
    shape = b.shape(x)
    ones = [i for i, extent in enumerate(shape) if extent == 1]
    if ones and b.chance(0.6):
        b.emit("squeeze", x, axis=[b.one_of(ones)])
    elif len(shape) < 5:
        b.emit("expand_dims", x, axis=[b.integer(0, len(shape) + 1)])


@recipe(2)
def reversing(b: Builder) -> None:
    x = b.pick(lambda v: bool(b.shape(v)) and b.dtype_of(v) != "bool")
    b.emit("flip", x, axis=b.integer(0, len(b.shape(x))))


@recipe(3)
def copying(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(shape))
    shape = b.shape(x)
    name = b.one_of(["broadcast_to", "tile", "repeat"])
    if name == "broadcast_to":
        wide = tuple(b.one_of([3, 5]) if e == 1 else e for e in shape)
        b.emit(name, x, shape=(b.one_of([2, 3]), *wide) if b.chance(0.4) else wide)
    elif name == "tile":
        b.emit(name, x, repeats=[b.one_of([1, 1, 2, 3]) for _ in shape])
    else:
        b.emit(name, x, repeats=b.one_of([2, 3]), axis=b.integer(0, len(shape)))


@recipe(4)
def joining(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(shape))
    shape, dtype = b.shape(x), b.dtype_of(x)
    if b.chance(0.3):
        same = [b.pick(lambda v: b.types[v] == (shape, dtype)) for _ in range(b.integer(1, 3))]
        b.emit("stack", x, *same, axis=b.integer(0, len(shape) + 1))
        return
    axis = b.integer(0, len(shape))
    rest = (*shape[:axis], None, *shape[axis + 1 :])

    def fits(v: int) -> bool:
        other = b.shape(v)
        same = len(other) == len(shape) and (*other[:axis], None, *other[axis + 1 :]) == rest
        return same and b.dtype_of(v) == dtype

    more = [b.pick(fits)]
    if b.chance(0.4):
        more.append(b.leaf((*shape[:axis], b.one_of([1, 3]), *shape[axis + 1 :]), dtype))
    parts = [x, *more]
    b.rng.shuffle(parts)
    b.emit("concat", *(int(p) for p in parts), axis=axis)


@recipe(3)
def splitting(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(static_axes(shape, 2)))
    axis = b.one_of(static_axes(b.shape(x), 2))
    extent = static(b.shape(x)[axis])
    even = [n for n in (2, 3, 4) if extent % n == 0]
    if even and b.chance(0.5):
        count = b.one_of(even)
        parts = b.emit_all("split", x, gives=[None] * count, sections=count, axis=axis)
    else:
        at = b.integer(1, extent)
        parts = b.emit_all("split", x, gives=[None, None], sections=[at], axis=axis)
    if len(parts) == 2 and b.shape(parts[0]) == b.shape(parts[1]) and b.chance(0.6):
        b.emit("multiply", parts[0], b.emit("sigmoid", parts[1]))  # a gate


@recipe(3)
def slicing(b: Builder) -> None:
    x = b.pick(lambda v: bool(static_axes(b.shape(v), 3)))
    shape = b.shape(x)
    axes = [a for a in static_axes(shape, 3) if b.chance(0.6)] or [static_axes(shape, 3)[0]]
    begin, end, strides = [], [], []
    for axis in axes:
        extent = static(shape[axis])
        step = b.one_of([1, 1, 2, 3, -1, -2])
        low = b.integer(0, extent - 1)
        high = b.integer(low + 1, extent + 1)
        begin.append(low if step > 0 else high - 1)
        end.append(high if step > 0 else low - 1)
        strides.append(step)
    b.emit("strided_slice", x, axes=axes, begin=begin, end=end, strides=strides)


@recipe(2)
def rolling(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(static_axes(shape, 2)))
    axis = b.one_of(static_axes(b.shape(x), 2))
    extent = static(b.shape(x)[axis])
    at = b.integer(1, extent)
    cut: dict[str, Any] = {"axes": [axis], "strides": [1]}
    tail = b.emit("strided_slice", x, begin=[at], end=[extent], **cut)
    b.emit("concat", tail, b.emit("strided_slice", x, begin=[0], end=[at], **cut), axis=axis)


@recipe(3)
def padding(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(shape))
    shape = b.shape(x)
    mode = b.one_of(["constant", "constant", "reflect", "replicate", "circular"])
    if mode != "constant" and len(static_axes(shape, 3)) != len(shape):
        mode = "constant"
    width = [b.integer(0, 3) for _ in range(2 * len(shape))]
    b.emit("nn.pad", x, width=width, mode=mode, fill=b.one_of([0.0, 1.5]))


@recipe(2)
def resizing(b: Builder) -> None:
    x = image(b)
    high, wide = (static(e) for e in b.shape(x)[2:])
    if b.chance(0.5):
        factor = b.one_of([2, 4])
        size, method, mode = [high * factor, wide * factor], "nearest", "asymmetric"
    else:
        # TVM divides by size - 1 where corners are aligned
        size = [b.integer(2, 2 * high + 2), b.integer(2, 2 * wide + 2)]
        method, mode = "linear", b.one_of(["half_pixel", "align_corners"])
    b.emit("image.resize2d", x, size=size, method=method, coordinates=mode)


@recipe(2)
def triangle(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2)
    b.emit(b.one_of(["tril", "triu"]), x, k=b.integer(-2, 3))


@recipe(1)
def collapsing(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2)
    shape = b.shape(x)
    kept = shape[1:] if b.chance(0.5) else shape
    target = tuple(1 if b.chance(0.4) else e for e in kept)
    b.tame(b.emit("collapse_sum_to", x, shape=target))


@recipe(0.7)
def grids(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) == 1)
    y = b.leaf([b.one_of([3, 5])], b.dtype_of(x))
    b.emit_all("meshgrid", x, y, gives=[None, None])
