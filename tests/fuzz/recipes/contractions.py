"""Products, convolutions, pooling."""

from typing import Any

from ..builder import Builder, Rejected
from .registry import image, paddings, recipe, static, static_axes


@recipe(5)
def matmul(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2)
    shape, dtype = b.shape(x), b.dtype_of(x)
    columns = b.one_of([1, 3, 8, 16, 17, shape[-1]])
    lead = [1 if b.chance(0.2) else e for e in shape[:-2]] if b.chance(0.5) else []
    if b.chance(0.3):  # with a row-wise operand: its weight is stored transposed
        weight = b.leaf([columns, shape[-1]], dtype)
        bias = [b.leaf([columns], dtype)] if b.chance(0.5) else []
        b.tame(b.emit("linear", x, weight, *bias))
    elif b.chance(0.3):  # x @ x^T
        axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        b.tame(b.emit("matmul", x, b.emit("permute_dims", x, axes=axes)))
    else:
        b.tame(b.emit("matmul", x, b.leaf([*lead, shape[-1], columns], dtype)))


@recipe(1)
def product(b: Builder) -> None:
    if b.chance(0.5):
        x = b.pick_float(lambda shape: len(shape) == 1)
        b.emit(
            "outer", x, b.pick(lambda v: len(b.shape(v)) == 1 and b.dtype_of(v) == b.dtype_of(x))
        )
        return
    x = b.pick_float(lambda shape: len(shape) == 2 and bool(static_axes(shape[1:])))
    y = b.leaf([b.shape(x)[1], b.one_of([3, 5])], b.dtype_of(x))
    b.tame(b.emit("einsum", x, y, subscripts=b.one_of(["ij,jk->ik", "ij,jk->ki"])))


@recipe(4)
def convolution(b: Builder) -> None:
    rank = b.one_of([1, 2, 2])
    x = image(b, rank + 2)
    channels, dtype = static(b.shape(x)[1]), b.dtype_of(x)
    if channels > 32:
        raise Rejected("slow")
    groups = b.one_of([1, 1, channels, *([2] if channels % 2 == 0 else [])])
    outputs = groups * b.one_of([1, 2, 3])
    kernel = [b.one_of([1, 3, 3, 5]) for _ in range(rank)]
    w = b.leaf([outputs, channels // groups, *kernel], dtype, low=-0.5, high=0.5)
    y = b.emit(
        f"nn.conv{rank}d",
        x,
        w,
        strides=[b.one_of([1, 1, 2]) for _ in range(rank)],
        padding=paddings(b, rank, 2),
        dilation=[b.one_of([1, 1, 2]) for _ in range(rank)],
        groups=groups,
    )
    y = b.tame(y)
    if b.chance(0.4):
        y = b.emit("add", y, b.leaf([outputs] + [1] * rank, dtype))
    if b.chance(0.4):
        b.emit("nn.relu", y)


@recipe(0.7)
def transposed_convolution(b: Builder) -> None:
    x = image(b)
    channels = static(b.shape(x)[1])
    if channels > 16 or max(static(e) for e in b.shape(x)[2:]) > 20:
        raise Rejected("slow")
    w = b.leaf([channels, b.one_of([1, 2, 3]), 3, 3], b.dtype_of(x), low=-0.5, high=0.5)
    strides = [b.one_of([1, 2]) for _ in range(2)]
    padding = paddings(b, 2, 1)
    b.tame(b.emit("nn.conv2d_transpose", x, w, strides=strides, padding=padding))


@recipe(3)
def pooling(b: Builder) -> None:
    rank = b.one_of([1, 2, 2])
    x = image(b, rank + 2, 2)
    name = b.one_of(["max", "avg", "adaptive"])
    if name == "adaptive":
        size = [b.integer(1, min(5, static(e)) + 1) for e in b.shape(x)[2:]]
        b.emit(f"nn.adaptive_avg_pool{rank}d", x, size=size)
        return
    pool = [b.one_of([2, 3]) for _ in range(rank)]
    common: dict[str, Any] = {
        "pool": pool,
        "strides": [b.one_of([1, 2]) for _ in range(rank)],
        "padding": paddings(b, rank, 1),
    }
    if name == "max":
        b.emit(f"nn.max_pool{rank}d", x, **common, dilation=[1] * rank)
    else:
        b.emit(f"nn.avg_pool{rank}d", x, **common, include=b.chance(0.5))
