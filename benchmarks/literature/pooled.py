"""Convolutions of VGG and C3D with the pooling behind them: in one kernel, and in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.relax import op

from .network import Network

#: Channels, extents and windows of the pooling, by name.
SHAPES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    **{
        f"vgg_{width}x{extent}": (width, (extent, extent), (2, 2))
        for width, extent in ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14))
    },
    "c3d_64x16x112": (64, (16, 112, 112), (1, 2, 2)),
    "c3d_128x16x56": (128, (16, 56, 56), (2, 2, 2)),
    "c3d_256x8x28": (256, (8, 28, 28), (2, 2, 2)),
}


def modules(name: str, dtype: str) -> dict[str, Sequence[tvm.IRModule]]:
    """Write the two as one function, and as one each; channels are the last axis of all tensors."""
    width, extents, window = SHAPES[name]
    rank = len(extents)

    def conv(net: Network, x: Any) -> Any:
        return net.conv(x, width, 3)

    def pool(net: Network, x: Any) -> Any:
        return net.pool(x, window)

    def module(given: tuple[int, ...], *steps: Callable[..., Any]) -> tvm.IRModule:
        def write(net: Network, x: Any) -> Any:
            x = net.emit(op.permute_dims(x, (0, rank + 1, *range(1, rank + 1))))
            for step in steps:
                x = step(net, x)
            return net.emit(op.permute_dims(x, (0, *range(2, rank + 2), 1)))

        return Network(dtype).build(write, (1, *given, width))

    one = module(extents, conv, pool)
    return {"one": [one], "two": [module(extents, conv), module(extents, pool)]}
