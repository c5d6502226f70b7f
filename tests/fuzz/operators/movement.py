"""Operators that move elements: shapes, orders, copies, borders."""

from typing import Any

import numpy as np
from tvm import relax

from .operator import Operator

R, nn = relax.op, relax.op.nn


def _expand_dims(x: Any, axis: list[int]) -> Any:
    return np.expand_dims(x, tuple(axis))


def _split(x: Any, sections: Any, axis: int) -> list[Any]:
    return np.split(x, sections, axis=axis)


def _slice(x: Any, axes: Any, begin: Any, end: Any, strides: Any) -> Any:
    index: list[slice] = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(first, None if step < 0 and last < 0 else last, step)
    return x[tuple(index)]


def _slice_build(x: Any, axes: Any, begin: Any, end: Any, strides: Any) -> Any:
    # Relax reads a negative end as counted from the back; -(extent + 1) is before the first one.
    extents = [int(x.ty.shape[axis]) for axis in axes]
    last = [
        -(n + 1) if s < 0 and e < 0 else e for n, s, e in zip(extents, strides, end, strict=True)
    ]
    return R.strided_slice(x, axes, begin, last, strides)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad(x: Any, width: list[int], mode: str, fill: float) -> Any:
    pairs = list(zip(width[::2], width[1::2], strict=True))
    options = {"constant_values": fill} if mode == "constant" else {}
    return np.pad(x, pairs, mode=_PAD_MODES[mode], **options)  # type: ignore[call-overload]


def _resize(
    x: Any, size: list[int], method: str, coordinates: str, rounding: Any = lambda place: place
) -> Any:
    for axis, count in zip((2, 3), size, strict=True):
        extent = x.shape[axis]
        at = np.arange(count)
        if coordinates == "half_pixel":
            place = (at + 0.5) * extent / count - 0.5
        elif coordinates == "align_corners":
            place = at * ((extent - 1) / (count - 1) if count > 1 else 0.0)
        else:
            place = at * extent / count
        if method == "linear":
            place = rounding(place)
        low = np.floor(place)
        share = place - low if method == "linear" else np.zeros(count)
        a, b = (np.clip(low + s, 0, extent - 1).astype(int) for s in (0, 1))
        shape = [1] * x.ndim
        shape[axis] = count
        share = share.reshape(shape)
        x = np.take(x, a, axis=axis) * (1 - share) + np.take(x, b, axis=axis) * share
    return x


def _resize_perturbed(rng: Any, x: Any, **attrs: Any) -> Any:
    """Coordinates are float32: a large one's rounding moves the result between two neighbours."""
    return _resize(
        x, **attrs, rounding=lambda at: at + rng.uniform(-1, 1, at.shape) * 2.0**-22 * (at + 1)
    )


def _collapse_sum(x: Any, shape: tuple[int, ...]) -> Any:
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if a != b)
    return x.sum(axis=axes, keepdims=True)


def _meshgrid(*xs: Any) -> list[Any]:
    return list(np.meshgrid(*xs, indexing="ij"))


def _move(name: str, build: Any, reference: Any) -> Operator:
    return Operator(name, build, reference, exact=True)


OPERATORS = [
    _move("reshape", lambda x, shape: R.reshape(x, shape), lambda x, shape: x.reshape(shape)),
    _move("flatten", R.flatten, lambda x: x.reshape(-1)),
    _move("nn.batch_flatten", nn.batch_flatten, lambda x: x.reshape(x.shape[0], -1)),
    _move(
        "squeeze", lambda x, axis: R.squeeze(x, axis), lambda x, axis: np.squeeze(x, tuple(axis))
    ),
    _move("expand_dims", lambda x, axis: R.expand_dims(x, axis), _expand_dims),
    _move(
        "permute_dims", lambda x, axes: R.permute_dims(x, axes), lambda x, axes: x.transpose(axes)
    ),
    _move("flip", lambda x, axis: R.flip(x, axis), lambda x, axis: np.flip(x, axis)),
    _move(
        "broadcast_to",
        lambda x, shape: R.broadcast_to(x, shape),
        lambda x, shape: np.broadcast_to(x, shape).copy(),
    ),
    _move("tile", lambda x, repeats: R.tile(x, repeats), lambda x, repeats: np.tile(x, repeats)),
    _move(
        "repeat",
        lambda x, repeats, axis: R.repeat(x, repeats, axis),
        lambda x, repeats, axis: np.repeat(x, repeats, axis),
    ),
    _move(
        "concat",
        lambda *xs, axis: R.concat(list(xs), axis),
        lambda *xs, axis: np.concatenate(xs, axis),
    ),
    _move("stack", lambda *xs, axis: R.stack(list(xs), axis), lambda *xs, axis: np.stack(xs, axis)),
    _move("split", lambda x, sections, axis: R.split(x, sections, axis), _split),
    _move("strided_slice", _slice_build, _slice),
    _move(
        "nn.pad",
        lambda x, width, mode, fill: nn.pad(x, width, mode, fill),
        _pad,
    ),
    Operator(
        "image.resize2d",
        lambda x, size, method, coordinates: R.image.resize2d(
            x,
            size,
            method={"nearest": "nearest_neighbor"}.get(method, method),
            coordinate_transformation_mode=coordinates,
            rounding_method="floor" if method == "nearest" else "",
        ),
        _resize,
        noise=8,
        perturbed=_resize_perturbed,
    ),
    _move("tril", lambda x, k: R.tril(x, k), lambda x, k: np.tril(x, k)),
    _move("triu", lambda x, k: R.triu(x, k), lambda x, k: np.triu(x, k)),
    Operator(
        "collapse_sum_to", lambda x, shape: R.collapse_sum_to(x, shape), _collapse_sum, noise=8
    ),
    _move("meshgrid", lambda *xs: R.meshgrid(list(xs), "ij"), _meshgrid),
]
