"""Relax's operators and layouts by number of spatial axes."""

from __future__ import annotations

from typing import Any

from tvm import relax

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
