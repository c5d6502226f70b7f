"""Operators side by side or in a row that rewrites, shared kernels and accumulators depend on."""

from typing import Any

from ..builder import Builder, Rejected
from .registry import image, paddings, recipe, static, static_axes


@recipe(2)
def twins(b: Builder) -> None:
    """Apply one operator twice to one value, with different attributes and the same types."""
    x = b.pick_float(lambda shape: bool(static_axes(shape, 3)))
    shape = b.shape(x)
    axis = b.one_of(static_axes(shape, 3))
    extent = static(shape[axis])
    name = b.one_of(["flip", "cumsum", "clip", "tril", "strided_slice", "nn.pad", "nn.softmax"])
    two: list[dict[str, Any]]
    if name in ("flip", "nn.softmax"):
        if len(shape) < 2:
            raise Rejected("one axis")
        two = [{"axis": axis}, {"axis": b.one_of([a for a in range(len(shape)) if a != axis])}]
    elif name == "cumsum":
        two = [{"axis": axis, "exclusive": exclusive} for exclusive in (False, True)]
    elif name == "clip":
        two = [{"low": low, "high": low + 1.0} for low in (-1.0, 0.0)]
    elif name == "tril":
        if len(shape) < 2:
            raise Rejected("one axis")
        two = [{"k": k} for k in (-1, 1)]
    elif name == "strided_slice":
        length = b.integer(1, extent)
        first = [0, b.integer(1, extent - length + 1)]
        two = [{"axes": [axis], "begin": [i], "end": [i + length], "strides": [1]} for i in first]
    else:
        before, after = [0] * (2 * len(shape)), [0] * (2 * len(shape))
        before[2 * axis] = after[2 * axis + 1] = b.integer(1, 3)
        two = [{"width": width, "mode": "constant", "fill": 0.0} for width in (before, after)]
    b.rng.shuffle(two)  # type: ignore[arg-type]
    results = [b.emit(name, x, **attrs) for attrs in two]
    if b.chance(0.7):
        b.tame(b.emit(b.one_of(["subtract", "maximum"]), *results))


@recipe(1.5)
def normalized_convolution(b: Builder) -> None:
    """A convolution, its bias and a batch normalization, all of constants, as networks have it."""
    x = image(b)
    channels, outputs, dtype = static(b.shape(x)[1]), b.one_of([1, 3, 4]), b.dtype_of(x)
    if channels > 32:
        raise Rejected("slow")
    size = b.one_of([1, 3])
    weight = b.leaf([outputs, channels, size, size], dtype, low=-0.5, high=0.5, constant=True)
    none = {"strides": [1, 1], "dilation": [1, 1], "groups": 1}
    y = b.emit("nn.conv2d", x, weight, padding=paddings(b, 2, 1), **none)
    if b.chance(0.7):
        y = b.emit("add", y, b.leaf([outputs, 1, 1], dtype, constant=True))
    norm = [b.leaf([outputs], dtype, constant=True) for _ in range(3)]
    norm.append(b.leaf([outputs], dtype, low=0.5, high=2, constant=True))
    y = b.tame(b.emit("nn.batch_norm", y, *norm, epsilon=1e-3))
    if b.chance(0.5):
        b.emit("nn.relu", y)


@recipe(1)
def stacked(b: Builder) -> None:
    """Elementwise operators over several tensors, as importers write them."""
    x = b.pick_float(lambda shape: bool(shape))
    same = [b.pick(lambda v: b.types[v] == b.types[x]) for _ in range(b.integer(1, 3))]
    y = b.emit("stack", x, *same, axis=b.one_of([0, 0, b.integer(0, len(b.shape(x)) + 1)]))
    name = b.one_of(["sum", "mean", "max", "min"])
    b.tame(b.emit(name, y, axis=[b.one_of([0, 0, -1])], keepdims=False))


@recipe(1)
def large_terms(b: Builder) -> None:
    """A mean whose sum is beyond the largest half, though every term and the result are not."""
    count = b.one_of([129, 300, 513])
    x = b.leaf([b.one_of([2, 3, 8]), count], low=400, high=900, constant=False)
    x = b.emit("permute_dims", x, axes=[1, 0]) if b.chance(0.5) else x
    axis = b.shape(x).index(count)
    b.tame(b.emit("mean", x, axis=[axis], keepdims=b.chance(0.5)))


@recipe(1.5)
def cut_contraction(b: Builder) -> None:
    """Part of a product's columns, or several parts: each is stored where it goes to."""
    x = b.pick_float(lambda shape: len(shape) >= 2)
    shape, dtype, columns = b.shape(x), b.dtype_of(x), b.one_of([5, 8, 17])
    y = b.tame(b.emit("matmul", x, b.leaf([shape[-1], columns], dtype)))
    axis, at = len(shape) - 1, b.integer(1, columns - 1)
    if b.chance(0.4):
        b.emit_all("split", y, gives=[None, None], sections=[at], axis=axis)
        return
    end = b.one_of([columns, columns - 1])
    b.emit("strided_slice", y, axes=[axis], begin=[at], end=[max(end, at + 1)], strides=[1])


@recipe(1.5)
def turned(b: Builder) -> None:
    """A costly value read at its own place and, in the same row, at another one."""
    x = b.pick_float(lambda shape: bool(shape) and shape[-1] != 1)
    y = b.emit(b.one_of(["tanh", "sigmoid", "sin"]), x)
    axis = len(b.shape(x)) - 1
    if b.chance(0.5):
        total = b.emit("sum", b.emit("square", y), axis=[axis], keepdims=True)
        y = b.emit("divide", y, b.emit("add", total, b.scalar(0.5, b.dtype_of(y))))
    b.tame(b.emit(b.one_of(["subtract", "maximum"]), y, b.emit("flip", y, axis=axis)))
