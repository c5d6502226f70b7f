"""The graphs that TASO (SOSP 2019) and TENSAT (MLSys 2021) optimise.

BERT, NasRNN, ResNeXt-50 and NasNet-A after the descriptions that both publish with their code,
SqueezeNet 1.1, VGG-19 and Inception-v3 after the papers of the networks. Strided windows are padded
alike on both sides.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm.relax import op

from .network import Network

#: What TENSAT's search gains over the graph as it is, in percent of its time (table 1, T4).
PUBLISHED = {
    "bert": 9,
    "nasrnn": 69,
    "resnext50": 9,
    "nasnet_a": 7,
    "squeezenet": 25,
    "vgg19": 9,
    "inception_v3": 10,
}


def bert(net: Network, x: Any) -> list[Any]:
    """Eight layers of attention without softmax; a layer's input is the product of the last's."""
    found, heads = [], 16
    x = net.emit(op.nn.relu(x))
    for _ in range(8):
        rows, width = (int(n) for n in x.ty.shape)
        parts = []
        for _ in range(3):
            part = net.emit(op.matmul(x, net.weight(width, width)))
            part = net.emit(op.reshape(part, (rows, heads, width // heads)))
            parts.append(net.emit(op.permute_dims(part, (1, 0, 2))))
        logits = net.emit(op.matmul(parts[0], parts[1]))
        y = net.emit(op.permute_dims(net.emit(op.matmul(logits, parts[2])), (1, 0, 2)))
        found.append(net.emit(op.reshape(y, (rows, width))))
        x = net.emit(op.matmul(x, net.weight(width, width)))
    return [*found, x]


def nasrnn(net: Network, *xs: Any) -> Any:
    """Five steps of the cell that NAS found (Zoph and Le, 2017)."""
    width = int(xs[0].ty.shape[1])
    state = net.weight(1, width)

    def call(function: Callable[..., Any], *given: Any) -> Any:
        return net.emit(function(*given))

    def cell(state: Any, x: Any) -> Any:
        t = []
        for _ in range(8):
            parts = [net.emit(op.matmul(v, net.weight(width, width))) for v in (x, state)]
            t.append(call(op.add, *parts))
        sigmoid, relu, tanh = op.sigmoid, op.nn.relu, op.tanh
        m0 = call(op.add, call(relu, t[0]), call(sigmoid, t[3]))
        m1 = call(op.add, call(sigmoid, t[1]), call(tanh, t[2]))
        m2 = call(op.multiply, call(sigmoid, t[4]), call(tanh, t[5]))
        m3 = call(op.multiply, call(sigmoid, t[6]), call(relu, t[7]))
        m4 = call(op.add, call(sigmoid, m1), call(tanh, m2))
        m5 = call(op.multiply, call(tanh, m0), call(tanh, m3))
        return call(tanh, call(op.multiply, call(tanh, m4), call(tanh, m5)))

    for x in xs:
        state = cell(state, x)
    return state


def resnext50(net: Network, x: Any) -> Any:
    """32 groups of four channels, and twice as many in every stage."""
    x = net.pool(net.conv(x, 64, 7, 2, bias=False), 3, 2, 1)
    for width, blocks, stride in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = net.conv(x, width, 1, bias=False)
            y = net.conv(y, width, 3, step, groups=32, bias=False)
            y = net.conv(y, 2 * width, 1, bias=False, act=None)
            if step > 1 or int(x.ty.shape[1]) != 2 * width:
                x = net.conv(x, 2 * width, 1, step, bias=False)
            x = net.emit(op.nn.relu(net.emit(op.add(x, y))))
    return x


def nasnet_a(net: Network, x: Any) -> Any:
    """Three stages of five normal cells and a reduction cell, separable convolutions linear."""
    x = net.pool(net.conv(x, 64, 7, 2, bias=False), 3, 2, 1)
    width = 128
    for _ in range(3):
        previous = current = x
        for _ in range(5):
            previous, current = current, _normal(net, previous, current, width)
        width *= 2
        x = _reduction(net, previous, current, width)
    return x


def _squeezed(net: Network, previous: Any, current: Any, width: int) -> tuple[Any, Any]:
    current = net.conv(current, width, 1, bias=False)
    if int(previous.ty.shape[2]) == int(current.ty.shape[2]):
        return net.conv(previous, width, 1, bias=False), current
    return net.conv(previous, width, 3, 2, bias=False), current


def _separable(net: Network, x: Any, window: int, stride: int = 1) -> Any:
    width = int(x.ty.shape[1])
    y = net.conv(x, width, window, stride, groups=width, bias=False, act=None)
    return net.conv(y, width, 1, bias=False, act=None)


def _normal(net: Network, previous: Any, current: Any, width: int) -> Any:
    p, c = _squeezed(net, previous, current, width)

    def mean(x: Any) -> Any:
        return net.pool(x, 3, 1, 1, average=True)

    pairs = (
        (_separable(net, c, 3), c),
        (_separable(net, p, 3), _separable(net, c, 3)),
        (mean(c), p),
        (mean(p), mean(p)),
        (_separable(net, p, 3), _separable(net, p, 3)),
    )
    return net.concat([net.emit(op.add(*pair)) for pair in pairs])


def _reduction(net: Network, previous: Any, current: Any, width: int) -> Any:
    p, c = _squeezed(net, previous, current, width)
    first = net.emit(op.add(_separable(net, p, 7, 2), _separable(net, c, 5, 2)))
    second = net.emit(op.add(net.pool(c, 3, 2, 1), _separable(net, p, 7, 2)))
    third = net.emit(op.add(net.pool(c, 3, 2, 1, average=True), _separable(net, p, 5, 2)))
    fourth = net.emit(op.add(net.pool(c, 3, 2, 1), _separable(net, first, 3)))
    fifth = net.emit(op.add(net.pool(first, 3, 1, 1, average=True), second))
    return net.concat([first, second, third, fourth, fifth])


def squeezenet(net: Network, x: Any) -> Any:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""

    def fire(x: Any, squeezed: int, width: int) -> Any:
        s = net.conv(x, squeezed, 1)
        return net.concat([net.conv(s, width, 1), net.conv(s, width, 3)])

    x = net.pool(net.conv(x, 64, 3, 2, padding=0), 3, 2)
    x = net.pool(fire(fire(x, 16, 64), 16, 64), 3, 2)
    x = net.pool(fire(fire(x, 32, 128), 32, 128), 3, 2)
    for squeezed, width in ((48, 192), (48, 192), (64, 256), (64, 256)):
        x = fire(x, squeezed, width)
    return net.emit(op.mean(net.conv(x, 1000, 1), [2, 3]))


def vgg(net: Network, x: Any, depths: tuple[int, ...]) -> Any:
    """Convolutions of 3 x 3 and pooling, then three products (Simonyan and Zisserman, 2015)."""
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            x = net.conv(x, width, 3)
        x = net.pool(x, 2)
    x = net.emit(op.reshape(x, (1, -1)))
    for width in (4096, 4096):
        x = net.emit(op.nn.relu(net.linear(x, width)))
    return net.linear(x, 1000)


def vgg19(net: Network, x: Any) -> Any:
    """VGG of 16 convolutions."""
    return vgg(net, x, (2, 2, 4, 4, 4))


def inception_v3(net: Network, x: Any) -> Any:
    """Inception-v3 (Szegedy et al., 2016), batch norms folded into biases."""

    def conv(x: Any, width: int, window: Any, stride: int = 1, padding: Any = None) -> Any:
        return net.conv(x, width, window, stride, padding=padding)

    def chain(x: Any, *steps: tuple) -> Any:
        for step in steps:
            x = conv(x, *step)
        return x

    def mean(x: Any) -> Any:
        return net.pool(x, 3, 1, 1, average=True)

    x = chain(x, (32, 3, 2, 0), (32, 3, 1, 0), (64, 3))
    x = net.pool(x, 3, 2)
    x = net.pool(chain(x, (80, 1), (192, 3, 1, 0)), 3, 2)
    for pooled in (32, 64, 64):
        x = net.concat(
            [
                conv(x, 64, 1),
                chain(x, (48, 1), (64, 5)),
                chain(x, (64, 1), (96, 3), (96, 3)),
                conv(mean(x), pooled, 1),
            ]
        )
    x = net.concat(
        [conv(x, 384, 3, 2, 0), chain(x, (64, 1), (96, 3), (96, 3, 2, 0)), net.pool(x, 3, 2)]
    )
    across, down = (1, 7), (7, 1)
    for n in (128, 160, 160, 192):
        x = net.concat(
            [
                conv(x, 192, 1),
                chain(x, (n, 1), (n, across), (192, down)),
                chain(x, (n, 1), (n, down), (n, across), (n, down), (192, across)),
                conv(mean(x), 192, 1),
            ]
        )
    x = net.concat(
        [
            chain(x, (192, 1), (320, 3, 2, 0)),
            chain(x, (192, 1), (192, across), (192, down), (192, 3, 2, 0)),
            net.pool(x, 3, 2),
        ]
    )
    for _ in range(2):
        a, b = conv(x, 384, 1), chain(x, (448, 1), (384, 3))
        halves = [conv(y, 384, window) for y in (a, b) for window in ((1, 3), (3, 1))]
        x = net.concat([conv(x, 320, 1), *halves, conv(mean(x), 192, 1)])
    return net.linear(net.emit(op.mean(x, [2, 3])), 1000)


_IMAGE = ((1, 3, 224, 224),)
GRAPHS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "bert": (bert, ((64, 1024),)),
    "nasrnn": (nasrnn, ((1, 512),) * 5),
    "resnext50": (resnext50, _IMAGE),
    "nasnet_a": (nasnet_a, _IMAGE),
    "squeezenet": (squeezenet, _IMAGE),
    "vgg19": (vgg19, _IMAGE),
    "inception_v3": (inception_v3, ((1, 3, 299, 299),)),
}


def graph(name: str, dtype: str = "float32") -> tvm.IRModule:
    """Build one of :data:`GRAPHS`."""
    write, shapes = GRAPHS[name]
    return Network(dtype).build(write, *shapes)
