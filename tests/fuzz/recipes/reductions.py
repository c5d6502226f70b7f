"""Reductions, scans, sorting, softmax and normalisations, written out as well."""

from ..builder import Builder, Rejected
from .registry import image, is_static, partner, recipe, static, static_axes, within


@recipe(8)
def reduction(b: Builder) -> None:
    name = b.one_of(["sum", "mean", "max", "min", "prod", "variance", "std"])
    x = b.pick_float(lambda shape: bool(shape))
    if name == "prod":
        x = b.emit("add", within(b, x, 0.25), b.scalar(1, b.dtype_of(x)))
    rank = len(b.shape(x))
    axes = None if b.chance(0.1) else _axes(b, rank)
    keepdims = b.chance(0.5)
    result = b.tame(b.emit(name, x, axis=axes, keepdims=keepdims))
    if keepdims and b.chance(0.5):  # back over what was reduced
        b.tame(b.emit(b.one_of(["add", "subtract", "multiply"]), x, result))


def _axes(b: Builder, rank: int) -> list[int]:
    count = b.integer(1, rank + 1)
    axes = sorted(int(a) for a in b.rng.permutation(rank)[:count])
    return [a - rank for a in axes] if b.chance(0.3) else axes


@recipe(2)
def arg_reduction(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(shape))
    axis = None if b.chance(0.15) else b.integer(0, len(b.shape(x)))
    b.emit(b.one_of(["argmax", "argmin"]), x, gives="int64", axis=axis, keepdims=b.chance(0.4))


@recipe(2)
def scan(b: Builder) -> None:
    name, x = b.one_of(["cumsum", "cumsum", "cumprod"]), b.pick_float(lambda shape: bool(shape))
    if name == "cumprod":
        x = b.emit("add", within(b, x, 0.125), b.scalar(1, b.dtype_of(x)))
    axis = b.integer(0, len(b.shape(x)))
    b.tame(b.emit(name, x, axis=axis, exclusive=b.chance(0.3)))


@recipe(1)
def median(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(static_axes(shape)) == len(shape) > 0)
    axis = b.integer(0, len(b.shape(x)))
    b.emit_all("median", x, gives=[None, "int64"], axis=axis, keepdims=b.chance(0.5))


@recipe(1.5)
def sorting(b: Builder) -> None:
    x = b.pick_float(lambda shape: bool(static_axes(shape, 2)))
    axis = b.one_of(static_axes(b.shape(x), 2))
    name = b.one_of(["sort", "argsort", "topk"])
    if name == "topk":
        k = b.integer(1, 1 + min(5, static(b.shape(x)[axis])))
        b.emit_all(name, x, gives=[None, "int32"], k=k, axis=axis, largest=b.chance(0.5))
    else:
        gives = "int32" if name == "argsort" else None
        b.emit(name, x, gives=gives, axis=axis, descending=b.chance(0.5))


@recipe(4)
def normalization(b: Builder) -> None:
    name = b.one_of(["nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm"])
    x = b.pick_float(lambda shape: len(shape) >= 2 and bool(static_axes(shape[-1:], 2)))
    shape, dtype = b.shape(x), b.dtype_of(x)
    if "softmax" in name:
        b.emit(name, x, axis=b.one_of([-1, b.integer(0, len(shape))]))
        return
    axes = [-1] if b.chance(0.7) or not is_static(shape[-2]) else [-2, -1]
    extents = shape[-len(axes) :]
    weights = [b.leaf(extents, dtype) for _ in range(1 + (name == "nn.layer_norm"))]
    b.emit(name, x, *weights, axes=axes, epsilon=1e-5)


@recipe(3)
def channel_normalization(b: Builder) -> None:
    name = b.one_of(["nn.group_norm", "nn.instance_norm", "nn.batch_norm"])
    x = image(b, least=2)
    channels, dtype = static(b.shape(x)[1]), b.dtype_of(x)
    if dtype == "bfloat16" and name != "nn.batch_norm":
        raise Rejected("Relax has no such normalization")
    weights = [b.leaf([channels], dtype, constant=True) for _ in range(2)]
    if name == "nn.batch_norm":
        weights.append(b.leaf([channels], dtype, constant=True))
        weights.append(b.leaf([channels], dtype, low=0.5, high=2, constant=True))
        b.emit(name, x, *weights, epsilon=1e-3)
    elif name == "nn.group_norm":
        groups = b.one_of([g for g in range(1, channels + 1) if channels % g == 0])
        b.emit(name, x, *weights, groups=groups, epsilon=1e-5)
    else:
        b.emit(name, x, *weights, epsilon=1e-5)


@recipe(3)
def written_softmax(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2)
    axis = [-1] if b.chance(0.7) else [b.integer(0, len(b.shape(x)))]
    top = b.emit("max", x, axis=axis, keepdims=True)
    e = b.emit("exp", b.emit("subtract", x, top))
    b.emit("divide", e, b.emit("sum", e, axis=axis, keepdims=True))


@recipe(3)
def written_norm(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) >= 2 and bool(static_axes(shape[-1:], 3)))
    dtype, epsilon = b.dtype_of(x), b.scalar(1e-3, b.dtype_of(x))
    if b.chance(0.5):  # with a residual, and both results used
        x = b.tame(b.emit("add", x, partner(b, x)))
    if b.chance(0.5):
        mean = b.emit("mean", x, axis=[-1], keepdims=True)
        x = b.emit("subtract", x, mean)
    square = b.emit("mean", b.emit("multiply", x, x), axis=[-1], keepdims=True)
    normal = b.emit("multiply", x, b.emit("rsqrt", b.emit("add", square, epsilon)))
    if b.chance(0.7):
        b.emit("multiply", normal, b.leaf(b.shape(x)[-1:], dtype))


@recipe(1)
def cross_entropy(b: Builder) -> None:
    x = b.pick_float(lambda shape: len(shape) == 2)
    labels = b.pick(lambda v: b.types[v] == b.types[x])
    b.tame(b.emit("nn.cross_entropy_with_logits", x, labels))
