"""Operators of convolutional and recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .case import Case


def network(rng: np.random.Generator, m: int, n: int) -> Iterator[Case]:
    """List the cases over images and sequences of about ``m * n`` elements.

    Parameters
    ----------
    rng
        For inputs and weights.
    m, n
        The size, as a matrix.
    """

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, "float32")

    side = {1024: 8, 1 << 16: 32, 1 << 20: 64}[m * n]
    c = m * n // side // side
    image = floats(1, c, side, side)
    wide, square = min(c, 64), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    narrow = floats(1, wide, side, side)
    yield Case("Conv 3x3", "Conv", [narrow], square, [floats(wide, wide, 3, 3)])
    yield Case("Conv 1x1", "Conv", [narrow], {}, [floats(wide, wide, 1, 1)])
    depthwise = {**square, "group": c}
    yield Case("Conv, depthwise", "Conv", [image], depthwise, [floats(c, 1, 3, 3)])
    yield Case("Conv of one axis", "Conv", [narrow[0]], {}, [floats(wide, side, 3)])
    twice: dict[str, Any] = {"strides": [2, 2]}
    small = floats(1, wide // 2, side // 2, side // 2)
    up = [floats(wide // 2, wide // 2, 2, 2)]
    yield Case("ConvTranspose", "ConvTranspose", [small], twice, up)
    for name in ("MaxPool", "AveragePool"):
        yield Case(f"{name} 3x3", name, [image], square)
        yield Case(f"{name} 2x2", name, [image], {"kernel_shape": [2, 2], **twice})
    yield Case("LpPool", "LpPool", [image], {"kernel_shape": [2, 2], **twice})
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        yield Case(name, name, [image])
    scale, bias = np.abs(floats(c)) + 0.5, floats(c)
    statistics = [floats(c), np.abs(floats(c)) + 0.5]
    yield Case("BatchNormalization", "BatchNormalization", [image], {}, [scale, bias, *statistics])
    yield Case("InstanceNormalization", "InstanceNormalization", [image], {}, [scale, bias])
    yield Case("LRN", "LRN", [image], {"size": 5})
    yield Case("DepthToSpace", "DepthToSpace", [image], {"blocksize": 2})
    yield Case("SpaceToDepth", "SpaceToDepth", [image], {"blocksize": 2})
    scales = np.array([1, 1, 2, 2], "float32")
    quarter = image[:, : c // 4].copy()
    for mode in ("nearest", "linear"):
        yield Case(f"Resize, {mode}", "Resize", [quarter], {"mode": mode}, [None, scales])
    grid = np.clip(floats(1, side, side, 2) / 2, -1, 1)
    yield Case("GridSample", "GridSample", [image, grid])
    hidden, steps = (16, 4) if m * n == 1024 else (64, 16) if m * n == 1 << 16 else (256, 32)
    sequence = floats(steps, 4, hidden)
    for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [floats(1, gates * hidden, hidden) / hidden for _ in range(2)]
        yield Case(name, name, [sequence], {"hidden_size": hidden}, weights)
    width = {16: 64, 64: 256, 256: 512}[hidden]
    weights = [floats(1, 4 * width, width) / width for _ in range(2)]
    for rows in (1, 32):
        sequence = floats(128, rows, width)
        name = f"LSTM, 128 steps of {rows}"
        yield Case(name, "LSTM", [sequence], {"hidden_size": width}, weights)
