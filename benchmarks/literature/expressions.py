"""Expressions with the fewest kernels that any compiler is known to need for them.

Attention of several heads is one kernel since FlashAttention, a gated feed-forward layer's two
products are one (dual GEMM), reductions with what is computed around them are one, and so is a
product with what goes into it and comes out of it element by element. Two products in a chain are
two.
"""

from __future__ import annotations

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


def _add(kernels: int, *shapes: tuple[int, ...], **written: Callable[..., Any]) -> None:
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


def _mean(x: Any, axis: int = -1) -> Any:
    return op.mean(x, [axis], keepdims=True)


def _sum(x: Any, axis: int = -1) -> Any:
    return op.sum(x, [axis], keepdims=True)


def _softmax(x: Any) -> Any:
    e = op.exp(x - op.max(x, [-1], keepdims=True))
    return e / _sum(e)


def _norm(net: Network, x: Any) -> Any:
    c = x - _mean(x)
    scale = c / op.sqrt(_mean(c * c) + net.number(1e-3))
    return scale * net.weight(WIDTH) + net.weight(WIDTH)


def _rms(net: Network, x: Any) -> Any:
    return x / op.sqrt(_mean(x * x) + net.number(1e-3)) * net.weight(WIDTH)


def _moments(net: Network, x: Any) -> Any:
    m = _mean(x)
    return (x - m) / op.sqrt(_mean(x * x) - m * m + net.number(1e-3))


def _gelu(net: Network, x: Any) -> Any:
    return net.number(0.5) * x * (net.number(1.0) + op.erf(x * net.number(0.70710678)))


def _dense(net: Network, x: Any, width: int = WIDTH) -> Any:
    return op.matmul(x, net.weight(WIDTH, width))


def _conv(net: Network, x: Any, window: int, channels: int = 32, **given: Any) -> Any:
    kernel = net.weight(channels, 32, window, window)
    return op.nn.conv2d(x, kernel, padding=window // 2, **given)


def _attention(q: Any, k: Any, v: Any, mask: Any = None, scale: Any = None) -> Any:
    scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
    scores = scores if scale is None else scores * scale
    scores = scores if mask is None else scores + mask
    return op.matmul(_softmax(scores), v)


# Element by element.
_add(
    1,
    M,
    M,
    M,
    residual_of_three=lambda n, a, b, c: op.nn.relu(a + b) + c,
    swapped_products=lambda n, a, b, c: op.exp(a * b) + op.exp(b * a),
    gated=lambda n, a, b, c: a * op.sigmoid(b) * op.tanh(c),
    factored=lambda n, a, b, c: a * c + b * c,
    lstm_cell=lambda n, a, b, c: op.sigmoid(a) * op.tanh(b) + op.sigmoid(c) * a,
    two_results=lambda n, a, b, c: [op.exp(a) + b, op.tanh(a) * c],
    concatenated=lambda n, a, b, c: op.nn.relu(op.concat([a, b, c], 1)),
    selected=lambda n, a, b, c: op.where(op.greater(a, b), a * c, b * c),
    stacked_chain=lambda n, a, b, c: op.sqrt(op.abs(op.log(op.abs(a) + op.abs(b)))) * c,
    broadcast=lambda n, a, b, c: a * op.reshape(n.weight(WIDTH), (1, WIDTH)) + b * c,
)
# One tensor.
_add(
    1,
    M,
    gelu=_gelu,
    mish=lambda n, x: x * op.tanh(op.log(n.number(1.0) + op.exp(x))),
    swish=lambda n, x: x / (n.number(1.0) + op.exp(-x)),
    softmax=lambda n, x: _softmax(x),
    plain_softmax=lambda n, x: op.exp(x) / _sum(op.exp(x)),
    log_softmax=lambda n, x: op.log(_softmax(x)),
    log_sum_exp=lambda n, x: op.log(_sum(op.exp(x))),
    layer_norm=_norm,
    layer_norm_of_moments=_moments,
    rms_norm=_rms,
    l2_norm=lambda n, x: x / op.sqrt(_sum(x * x)),
    standard_deviation=lambda n, x: op.sqrt(_mean((x - _mean(x)) * (x - _mean(x)))),
    norm_and_gelu=lambda n, x: _gelu(n, _norm(n, x)),
    two_sums=lambda n, x: [_sum(x), _sum(x * x)],
    sum_and_maximum=lambda n, x: [_sum(x), op.max(x, [-1], keepdims=True)],
    mean_of_rows_scaled=lambda n, x: _mean(x * n.number(3.0)) + n.number(1.0),
    transposed_twice=lambda n, x: op.permute_dims(op.exp(op.permute_dims(x))),
    transposed=lambda n, x: op.nn.relu(op.permute_dims(x)),
    sum_of_columns=lambda n, x: op.sum(op.exp(x), [0]),
    halves=lambda n, x: (
        op.strided_slice(x, [1], [0], [128]) * op.sigmoid(op.strided_slice(x, [1], [128], [256]))
    ),
)
_add(
    1,
    M,
    M,
    norm_of_sum=lambda n, x, y: _norm(n, x + y),
    rms_of_sum=lambda n, x, y: [x + y, _rms(n, x + y)],
    cosine=lambda n, x, y: _sum(x * y) / op.sqrt(_sum(x * x) * _sum(y * y)),
    weighted_softmax=lambda n, x, y: _sum(_softmax(x) * y),
    cross_entropy=lambda n, x, y: _sum(y * op.log(_softmax(x))),
    squared_distance=lambda n, x, y: _sum((x - y) * (x - y)),
)
# Products.
_add(
    1,
    M,
    dense=lambda n, x: op.nn.relu(_dense(n, x) + n.weight(WIDTH)),
    dense_gelu=lambda n, x: _gelu(n, _dense(n, x) + n.weight(WIDTH)),
    dense_residual=lambda n, x: _dense(n, x) + n.weight(WIDTH) + x,
    gated_dense=lambda n, x: op.nn.silu(_dense(n, x)) * _dense(n, x),
    qkv=lambda n, x: [_dense(n, x), _dense(n, x), _dense(n, x)],
    sum_of_products=lambda n, x: _dense(n, x) + _dense(n, x),
    scaled_product=lambda n, x: _dense(n, x * n.number(0.125)),
    constants_first=lambda n, x: op.matmul(_dense(n, x), n.weight(WIDTH, 64)),
    transposed_result=lambda n, x: op.permute_dims(
        op.reshape(_dense(n, x), (ROWS, 4, WIDTH // 4)), (1, 0, 2)
    ),
    relu_into_product=lambda n, x: _dense(n, op.nn.relu(x)),
    scaled_columns=lambda n, x: _dense(n, x) * n.weight(WIDTH),
)
_add(
    1,
    M,
    M,
    two_into_one=lambda n, x, y: _dense(n, x) + _dense(n, y),
    product_of_sum=lambda n, x, y: _dense(n, x + y),
    product_of_concat=lambda n, x, y: op.matmul(op.concat([x, y], 1), n.weight(2 * WIDTH, WIDTH)),
)
_add(
    2,
    M,
    feed_forward=lambda n, x: _dense(n, op.nn.relu(_dense(n, x))),
    gated_feed_forward=lambda n, x: _dense(n, op.nn.silu(_dense(n, x)) * _dense(n, x)),
)
_add(
    2,
    M,
    (WIDTH, ROWS),
    (ROWS, 1),
    product_with_vector=lambda n, a, b, v: op.matmul(op.matmul(a, b), v),
)
# Attention.
_add(
    1,
    HEADS,
    HEADS,
    HEADS,
    attention=lambda n, q, k, v: _attention(q, k, v),
    scaled_attention=lambda n, q, k, v: _attention(q, k, v, scale=n.number(0.125)),
    scaled_query=lambda n, q, k, v: _attention(q * n.number(0.125), k, v),
    masked_attention=lambda n, q, k, v: _attention(q, k, v, mask=n.weight(1, 1, 128, 128)),
)
# Convolutions.
_add(
    1,
    IMAGE,
    conv=lambda n, x: op.nn.relu(_conv(n, x, 3) + n.weight(1, 32, 1, 1)),
    conv_residual=lambda n, x: op.nn.relu(_conv(n, x, 3) + x),
    conv_scaled=lambda n, x: _conv(n, x, 3) * n.weight(1, 32, 1, 1),
    conv_pooled=lambda n, x: op.nn.max_pool2d(op.nn.relu(_conv(n, x, 3)), (2, 2), (2, 2)),
    two_convs_concatenated=lambda n, x: op.concat([_conv(n, x, 3), _conv(n, x, 3)], 1),
    parallel_convs=lambda n, x: _conv(n, x, 3) + _conv(n, x, 1) + x,
    one_behind_one=lambda n, x: _conv(n, _conv(n, x, 1), 1),
)
_add(1, IMAGE, IMAGE, sum_of_convs=lambda n, x, y: _conv(n, x, 3) + _conv(n, y, 3))
