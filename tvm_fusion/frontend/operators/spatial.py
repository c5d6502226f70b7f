"""Provide Relax's convolutions and poolings by number of spatial axes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of

nn = relax.op.nn

DATA_LAYOUT = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL_LAYOUT = {1: "OIW", 2: "OIHW", 3: "OIDHW"}
TRANSPOSED_KERNEL_LAYOUT = {1: "IOW", 2: "IOHW", 3: "IODHW"}
CONV = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}
CONV_TRANSPOSE = {1: nn.conv1d_transpose, 2: nn.conv2d_transpose, 3: nn.conv3d_transpose}
AVG_POOL = {1: nn.avg_pool1d, 2: nn.avg_pool2d, 3: nn.avg_pool3d}
MAX_POOL = {1: nn.max_pool1d, 2: nn.max_pool2d, 3: nn.max_pool3d}
ADAPTIVE_AVG_POOL = {
    1: nn.adaptive_avg_pool1d,
    2: nn.adaptive_avg_pool2d,
    3: nn.adaptive_avg_pool3d,
}


def per_axis(value: Any, rank: int) -> list[int]:
    """Return a number for each spatial axis of one for all, or of several."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def steps_inside(
    extent: int, out: int, kernel: int, stride: int, dilation: int, before: int
) -> tuple[int, int]:
    """Return the first step of windows along an axis that lies in the tensor, and how many do.

    Of ``ceil_mode`` with a window larger than the image most steps lie beyond it in all windows.
    """
    place = np.arange(out)[:, None] * stride - before + np.arange(kernel) * dilation
    inside = np.flatnonzero(((place >= 0) & (place < extent)).any(0))
    return (int(inside[0]), int(inside[-1] - inside[0]) + 1) if len(inside) else (0, 1)


def average_windows(
    x: Any,
    emit: Callable[[Any], Any],
    extents: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: tuple[Sequence[int], Sequence[int]],
    counts_padding: bool,
    divisor: float | None = None,
) -> Any:
    """Average windows of which the last may reach beyond the padding.

    The sums are divided by ``divisor`` or, without one, by how many elements of each window lie in
    the tensor, or in the padded tensor if ``counts_padding``: numbers that are known now. Steps of
    windows that lie in the tensor nowhere are left out, since zeros add nothing.

    Parameters
    ----------
    x : tvm.relax.Expr
        Batch, channels and spatial axes.
    emit
        Binds an expression to a variable.
    extents, out
        Spatial extents before and after.
    kernel, strides, dilations
        A number for each spatial axis.
    padding
        Before and after each spatial axis.
    """
    rank, dtype = len(kernel), dtype_of(x)
    width, padded, begin, end, read = [0, 0, 0, 0], [], [], [], []
    counts = np.ones(out, "int64")
    axes = zip(extents, out, kernel, strides, dilations, *padding, strict=True)
    for axis, (extent, o, k, stride, dilation, before, after) in enumerate(axes):
        skipped, steps = steps_inside(extent, o, k, stride, dilation, before)
        first = skipped * dilation - before
        last = first + (o - 1) * stride + (steps - 1) * dilation + 1
        width += [max(0, -first), max(0, last - extent)]
        padded.append(extent + width[-2] + width[-1])
        begin.append(max(0, first))
        end.append(last + max(0, -first))
        read.append(steps)
        place = np.arange(o)[:, None] * stride - before + np.arange(k) * dilation
        low, high = (-before, extent + after) if counts_padding else (0, extent)
        count = ((place >= low) & (place < high)).sum(1)
        counts *= count.reshape([-1 if a == axis else 1 for a in range(rank)])
    scale = math.prod(read) / (counts if divisor is None else np.full(out, divisor, "float64"))
    x = emit(nn.pad(x, width)) if any(width) else x
    if any(begin) or any(last < have for last, have in zip(end, padded, strict=True)):
        x = emit(relax.op.strided_slice(x, list(range(2, 2 + rank)), begin, end))
    layout = DATA_LAYOUT[rank]
    mean = AVG_POOL[rank](
        x, read, strides, dilation=dilations, layout=layout, count_include_pad=True
    )
    if (scale == 1).all():
        return mean
    return relax.op.multiply(emit(mean), relax.const(scale.astype(dtype), dtype))
