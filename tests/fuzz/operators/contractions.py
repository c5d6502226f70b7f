"""Matrix products, convolutions and pooling windows."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from .operator import Operator

R, nn = relax.op, relax.op.nn


def windows(x: Any, kernel: Any, strides: Any, padding: Any, dilation: Any, fill: float) -> Any:
    """Return ``[N, C, *output, *kernel]``: what each window position of each channel covers."""
    rank = len(kernel)
    widths = [(0, 0), (0, 0)] + [(padding[i], padding[i + rank]) for i in range(rank)]
    x = np.pad(x, widths, constant_values=fill)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None), slice(None), *(slice(None, None, s) for s in strides)]
    return view[(*steps, *(slice(None, None, d) for d in dilation))]


def conv(x: Any, w: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    view = windows(x, w.shape[2:], strides, padding, dilation, 0)
    rank = w.ndim - 2
    inner = list(range(2 + rank, 2 + 2 * rank))
    each_in, each_out = w.shape[1], w.shape[0] // groups
    parts = []
    for g in range(groups):
        part = view[:, g * each_in : (g + 1) * each_in]
        kernel = w[g * each_out : (g + 1) * each_out]
        product = np.tensordot(part, kernel, axes=([1, *inner], list(range(1, 2 + rank))))
        parts.append(np.moveaxis(product, -1, 1))
    return np.concatenate(parts, axis=1)


def conv2d_transpose(x: Any, w: Any, strides: Any, padding: Any) -> Any:
    batch, _, high, wide = x.shape
    _, channels, kh, kw = w.shape
    full = np.zeros((batch, channels, (high - 1) * strides[0] + kh, (wide - 1) * strides[1] + kw))
    for i in range(high):
        for j in range(wide):
            row, column = i * strides[0], j * strides[1]
            full[:, :, row : row + kh, column : column + kw] += np.tensordot(
                x[:, :, i, j], w, axes=(1, 0)
            )
    top, left, bottom, right = padding
    return full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right]


def _max_pool(x: Any, pool: Any, strides: Any, padding: Any, dilation: Any) -> Any:
    view = windows(x, pool, strides, padding, dilation, -np.inf)
    return view.max(axis=tuple(range(x.ndim, view.ndim)))


def _avg_pool(x: Any, pool: Any, strides: Any, padding: Any, include: bool) -> Any:
    ones = [1] * len(pool)
    view = windows(x, pool, strides, padding, ones, 0)
    axes = tuple(range(x.ndim, view.ndim))
    if include:
        return view.mean(axes)
    return view.sum(axes) / windows(np.ones_like(x), pool, strides, padding, ones, 0).sum(axes)


def _adaptive(x: Any, size: list[int]) -> Any:
    for axis, count in enumerate(size, start=2):
        extent = x.shape[axis]
        pieces = [
            np.take(x, range(i * extent // count, -(-(i + 1) * extent // count)), axis=axis)
            for i in range(count)
        ]
        x = np.concatenate([p.mean(axis, keepdims=True) for p in pieces], axis=axis)
    return x


def _conv_build(name: str) -> Any:
    build = getattr(nn, name)
    return lambda x, w, strides, padding, dilation, groups: build(
        x, w, strides=strides, padding=padding, dilation=dilation, groups=groups
    )


def _max_pool_build(name: str) -> Any:
    build = getattr(nn, name)
    return lambda x, pool, strides, padding, dilation: build(x, pool, strides, padding, dilation)


def _avg_pool_build(name: str) -> Any:
    build = getattr(nn, name)
    return lambda x, pool, strides, padding, include: build(
        x, pool, strides, padding, count_include_pad=include
    )


def _linear(x: Any, w: Any, *bias: Any) -> Any:
    return x @ np.swapaxes(w, -1, -2) + (bias[0] if bias else 0)


OPERATORS = [
    Operator("matmul", R.matmul, np.matmul, noise=16),
    Operator("linear", R.linear, _linear, noise=16),
    Operator("outer", R.outer, np.outer),
    Operator(
        "einsum",
        lambda *xs, subscripts: R.einsum(list(xs), subscripts),
        lambda *xs, subscripts: np.einsum(subscripts, *xs),
        noise=16,
    ),
    Operator("nn.conv1d", _conv_build("conv1d"), conv, noise=16),
    Operator("nn.conv2d", _conv_build("conv2d"), conv, noise=16),
    Operator(
        "nn.conv2d_transpose",
        lambda x, w, strides, padding: nn.conv2d_transpose(x, w, strides, padding),
        conv2d_transpose,
        noise=16,
    ),
    Operator("nn.max_pool1d", _max_pool_build("max_pool1d"), _max_pool, exact=True),
    Operator("nn.max_pool2d", _max_pool_build("max_pool2d"), _max_pool, exact=True),
    Operator("nn.avg_pool1d", _avg_pool_build("avg_pool1d"), _avg_pool, noise=8),
    Operator("nn.avg_pool2d", _avg_pool_build("avg_pool2d"), _avg_pool, noise=8),
    Operator(
        "nn.adaptive_avg_pool1d",
        lambda x, size: nn.adaptive_avg_pool1d(x, size),
        _adaptive,
        noise=8,
    ),
    Operator(
        "nn.adaptive_avg_pool2d",
        lambda x, size: nn.adaptive_avg_pool2d(x, size),
        _adaptive,
        noise=8,
    ),
]
