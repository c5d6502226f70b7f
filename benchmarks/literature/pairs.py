"""A convolution with what is before or behind it: in one kernel, and in two.

Pooling behind convolutions of VGG and C3D; gates of channels before projections of EfficientNet-B0;
a copy with channels last before convolutions of channels that are planes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.relax import op

from .network import Network

#: Channels, extents and windows of the pooling, by name.
POOLED: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    **{
        f"vgg_{width}x{extent}": (width, (extent, extent), (2, 2))
        for width, extent in ((64, 224), (128, 112), (256, 56), (512, 28), (512, 14))
    },
    "c3d_64x16x112": (64, (16, 112, 112), (1, 2, 2)),
    "c3d_128x16x56": (128, (16, 56, 56), (2, 2, 2)),
    "c3d_256x8x28": (256, (8, 28, 28), (2, 2, 2)),
}
#: Channels, extents and channels of the result, by name.
GATED: dict[str, tuple[int, int, int]] = {
    f"gates_{width}x{extent}x{channels}": (width, extent, channels)
    for width, extent, channels in (
        (32, 112, 16),
        (96, 56, 24),
        (240, 28, 40),
        (480, 14, 80),
        (672, 14, 112),
        (1152, 7, 192),
    )
}
#: Channels and extents, by name.
PLANES: dict[str, tuple[int, int]] = {
    f"planes_{width}x{extent}": (width, extent)
    for width, extent in ((32, 28), (64, 28), (128, 14), (256, 7), (64, 56))
}
PAIRS = (*POOLED, *GATED, *PLANES)


def modules(name: str, dtype: str) -> dict[str, Sequence[tvm.IRModule]]:
    """Write the two as one function, and as one each; channels are the last axis of tensors."""
    if name in PLANES:
        return _planes(*PLANES[name], dtype)
    return _pooled(*POOLED[name], dtype) if name in POOLED else _gated(*GATED[name], dtype)


def _pooled(
    width: int, extents: tuple[int, ...], window: tuple[int, ...], dtype: str
) -> dict[str, Sequence[tvm.IRModule]]:
    def conv(net: Network, x: Any) -> Any:
        return net.conv(x, width, 3)

    def pool(net: Network, x: Any) -> Any:
        return net.pool(x, window)

    image = (1, *extents, width)
    one = _module(dtype, [image], conv, pool)
    return {"one": [one], "two": [_module(dtype, [image], conv), _module(dtype, [image], pool)]}


def _gated(width: int, extent: int, channels: int, dtype: str) -> dict[str, Sequence[tvm.IRModule]]:
    def scale(net: Network, x: Any, gates: Any) -> Any:
        wide = [net.emit(op.astype(y, "float32")) for y in (x, gates)]
        return net.emit(op.astype(net.emit(op.multiply(*wide)), dtype))

    def project(net: Network, x: Any) -> Any:
        return net.conv(x, channels, 1, act=None)

    image, gates = (1, extent, extent, width), (1, 1, 1, width)
    one = _module(dtype, [image, gates], scale, project)
    two = _module(dtype, [image, gates], scale), _module(dtype, [image], project)
    return {"one": [one], "two": two}


def _planes(width: int, extent: int, dtype: str) -> dict[str, Sequence[tvm.IRModule]]:
    def conv(net: Network, x: Any) -> Any:
        return net.conv(x, width, 3)

    def copied(net: Network, x: Any) -> Any:
        return net.emit(op.permute_dims(x, (0, 2, 3, 1)))

    def from_copy(net: Network, x: Any) -> Any:
        return conv(net, net.emit(op.permute_dims(x, (0, 3, 1, 2))))

    image, copy = (1, width, extent, extent), (1, extent, extent, width)
    whole, first, second = (
        Network(dtype).build(write, given)
        for write, given in ((conv, image), (copied, image), (from_copy, copy))
    )
    return {"one": [whole], "two": [first, second]}


def _module(
    dtype: str, shapes: Sequence[tuple[int, ...]], *steps: Callable[..., Any]
) -> tvm.IRModule:
    """Write a function of steps, of which the first takes all inputs."""
    rank = len(shapes[0])

    def write(net: Network, *given: Any) -> Any:
        first = (0, rank - 1, *range(1, rank - 1))
        values = [net.emit(op.permute_dims(x, first)) for x in given]
        for step in steps:
            values = [step(net, *values)]
        return net.emit(op.permute_dims(values[0], (0, *range(2, rank), 1)))

    return Network(dtype).build(write, *shapes)
