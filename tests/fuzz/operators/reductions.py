"""Reductions, arg-reductions and scans along axes."""

from typing import Any

import numpy as np
from tvm import relax

from .operator import Operator

R = relax.op


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _reduction(name: str, function: Any, noise: float, **options: Any) -> Operator:
    build = getattr(R, name)
    return Operator(
        name,
        lambda x, axis, keepdims: build(x, axis, keepdims),
        lambda x, axis, keepdims: function(x, axis=_axes(axis), keepdims=keepdims),
        noise=noise,
        **options,
    )


def gap_along(x: Any, axis: int | None) -> Any:
    """Return the smallest distance of two elements along an axis; infinite for a single one."""
    x = x.reshape(-1) if axis is None else x
    ordered = np.sort(x.astype("float64"), axis=-1 if axis is None else axis)
    steps = np.diff(ordered, axis=-1 if axis is None else axis)
    return steps if steps.size else np.full(1, 1e9)


def _lead(x: Any, axis: int | None, largest: bool) -> Any:
    """Return the distance of the extreme element from the next one."""
    x = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
    ordered = np.sort(x if largest else -x, axis=-1)
    if ordered.shape[-1] < 2:
        return np.full(1, 1e9)
    return ordered[..., -1] - ordered[..., -2]


def _arg(name: str, function: Any) -> Operator:
    build = getattr(R, name)
    return Operator(
        name,
        lambda x, axis, keepdims: build(x, axis, keepdims),
        lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims),
        lambda x, axis, keepdims: _lead(x, axis, name == "argmax"),
        exact=True,
    )


def _scan(function: Any, x: Any, axis: int | None, exclusive: bool, first: float) -> Any:
    x = x.reshape(-1) if axis is None else x
    axis = 0 if axis is None else axis
    result = function(x, axis=axis)
    if not exclusive:
        return result
    keep = [slice(None)] * x.ndim
    keep[axis] = slice(0, x.shape[axis] - 1)
    head = np.full_like(np.take(result, [0], axis=axis), first)
    return np.concatenate([head, result[tuple(keep)]], axis=axis)


def _median(x: Any, axis: int, keepdims: bool) -> list[Any]:
    # Relax takes the lower one of two middle elements, and gives its position as well.
    order = np.argsort(x, axis=axis, kind="stable")
    middle = np.take(order, [(x.shape[axis] - 1) // 2], axis=axis)
    value = np.take_along_axis(x, middle, axis=axis)
    return [value, middle] if keepdims else [value.squeeze(axis), middle.squeeze(axis)]


OPERATORS = [
    _reduction("sum", np.sum, 8, sums=True),
    _reduction("mean", np.mean, 8, sums=True),
    _reduction("max", np.max, 1, exact=True),
    _reduction("min", np.min, 1, exact=True),
    _reduction("prod", np.prod, 8),
    _reduction("variance", np.var, 16),
    # Squares of what is below 2**-63 are lost.
    _reduction("std", np.std, 16, absolute=2.0**-63 * 2**22),
    _arg("argmax", np.argmax),
    _arg("argmin", np.argmin),
    Operator(
        "cumsum",
        lambda x, axis, exclusive: R.cumsum(x, axis, exclusive=exclusive),
        lambda x, axis, exclusive: _scan(np.cumsum, x, axis, exclusive, 0),
        noise=8,
    ),
    Operator(
        "cumprod",
        lambda x, axis, exclusive: R.cumprod(x, axis, exclusive=exclusive),
        lambda x, axis, exclusive: _scan(np.cumprod, x, axis, exclusive, 1),
        noise=8,
    ),
    Operator(
        "median",
        lambda x, axis, keepdims: R.median(x, [axis], keepdims),
        _median,
        lambda x, axis, keepdims: gap_along(x, axis),
        exact=True,
    ),
]
