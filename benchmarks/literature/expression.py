"""How expressions are written: a name, a function of inputs, and the fewest kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

from .network import Network

ROWS, WIDTH = 128, 256
M = (ROWS, WIDTH)
HEADS = (1, 8, 128, 64)
IMAGE = (1, 32, 28, 28)


@dataclass(frozen=True)
class Expression:
    """An expression, its inputs' shapes, and how few kernels compute it."""

    write: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    kernels: int

    def module(self, dtype: str) -> tvm.IRModule:
        """Write it as a function."""
        return Network(dtype).build(self.write, *self.shapes)


EXPRESSIONS: dict[str, Expression] = {}


def add(kernels: int, *shapes: tuple[int, ...], **written: Callable[..., Any]) -> None:
    """Name expressions of inputs of these shapes, and tell how few kernels compute each."""
    for name, write in written.items():
        EXPRESSIONS[name] = Expression(_bound(write), shapes, kernels)


def _bound(write: Callable[..., Any]) -> Callable[..., Any]:
    """Bind what a function of nested calls writes, call by call."""

    def run(net: Network, *given: Any) -> Any:
        done: dict[int, Any] = {}

        def emit(expr: Any) -> Any:
            if isinstance(expr, relax.Tuple):
                return relax.Tuple([emit(f) for f in expr.fields])
            if not isinstance(expr, relax.Call):
                return expr
            if hash(expr) not in done:
                args = [emit(a) for a in expr.args]
                call = relax.Call(expr.op, args, expr.attrs, expr.ty_args)
                done[hash(expr)] = net.emit(call), expr
            return done[hash(expr)][0]

        found = write(net, *given)
        return [emit(f) for f in found] if isinstance(found, list) else emit(found)

    return run


def mean(x: Any, axis: int = -1) -> Any:
    """Average along an axis."""
    return op.mean(x, [axis], keepdims=True)


def total(x: Any, axis: int = -1) -> Any:
    """Sum along an axis."""
    return op.sum(x, [axis], keepdims=True)


def softmax(x: Any) -> Any:
    """Write softmax of rows."""
    e = op.exp(x - op.max(x, [-1], keepdims=True))
    return e / total(e)


def log_sum_exp(x: Any) -> Any:
    """Write the logarithm of a sum of exponentials."""
    largest = op.max(x, [-1], keepdims=True)
    return op.log(total(op.exp(x - largest))) + largest


def power_of_two(net: Network, x: Any) -> Any:
    """Write an exponential of base two."""
    return op.power(net.number(2.0), x)


def norm(net: Network, x: Any) -> Any:
    """Write a layer norm."""
    c = x - mean(x)
    scale = c / op.sqrt(mean(c * c) + net.number(1e-3))
    return scale * net.weight(WIDTH) + net.weight(WIDTH)


def rms(net: Network, x: Any) -> Any:
    """Write an RMS norm."""
    return x / op.sqrt(mean(x * x) + net.number(1e-3)) * net.weight(WIDTH)


def moments(net: Network, x: Any) -> Any:
    """Write a norm by moments."""
    m = mean(x)
    return (x - m) / op.sqrt(mean(x * x) - m * m + net.number(1e-3))


def gelu(net: Network, x: Any) -> Any:
    """Write GELU."""
    return net.number(0.5) * x * (net.number(1.0) + op.erf(x * net.number(0.70710678)))


def dense(net: Network, x: Any, width: int = WIDTH) -> Any:
    """Multiply by a weight."""
    return op.matmul(x, net.weight(WIDTH, width))


def conv(net: Network, x: Any, window: int, channels: int = 32, **given: Any) -> Any:
    """Convolve an image, with padding."""
    kernel = net.weight(channels, 32, window, window)
    return op.nn.conv2d(x, kernel, padding=window // 2, **given)


def attention(q: Any, k: Any, v: Any, mask: Any = None, scale: Any = None) -> Any:
    """Write attention of several heads."""
    scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
    scores = scores if scale is None else scores * scale
    scores = scores if mask is None else scores + mask
    return op.matmul(softmax(scores), v)
