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


def _log_sum_exp(x: Any) -> Any:
    largest = op.max(x, [-1], keepdims=True)
    return op.log(_sum(op.exp(x - largest))) + largest


def _power_of_two(net: Network, x: Any) -> Any:
    return op.power(net.number(2.0), x)


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


def _dense(net: Network, x: Any) -> Any:
    return op.matmul(x, net.weight(WIDTH, WIDTH))


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
# Of rows, in other spellings.
_add(
    1,
    M,
    softmax_of_log_sum_exp=lambda n, x: op.exp(x - _log_sum_exp(x)),
    softmax_of_base_two=lambda n, x: (lambda e: e / _sum(e))(
        _power_of_two(n, x - op.max(x, [-1], keepdims=True))
    ),
    entropy=lambda n, x: _sum(_softmax(x) * op.log(_softmax(x))),
    norm_into_softmax=lambda n, x: _softmax(_norm(n, x)),
    norm_of_norm=lambda n, x: _rms(n, _norm(n, x)),
    scaled_to_range=lambda n, x: (lambda low: (x - low) / (op.max(x, [-1], keepdims=True) - low))(
        op.min(x, [-1], keepdims=True)
    ),
    quantized_rows=lambda n, x: (lambda s: op.round(x / s) * s)(
        op.max(op.abs(x), [-1], keepdims=True) * n.number(1 / 127)
    ),
    rotated_halves=lambda n, x: (
        x * n.weight(*M)
        + op.concat(
            [
                op.negative(op.strided_slice(x, [1], [128], [256])),
                op.strided_slice(x, [1], [0], [128]),
            ],
            1,
        )
        * n.weight(*M)
    ),
    shuffled=lambda n, x: op.reshape(
        op.permute_dims(op.reshape(x, (ROWS, 4, WIDTH // 4)), (0, 2, 1)), M
    ),
)
_add(
    1,
    M,
    M,
    divergence=lambda n, x, y: _sum(_softmax(x) * (op.log(_softmax(x)) - op.log(_softmax(y)))),
    norm_of_gated=lambda n, x, y: _rms(n, x * op.nn.silu(y)),
    interleaved=lambda n, x, y: op.reshape(op.stack([x, y], axis=2), (ROWS, 2 * WIDTH)),
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
    affine_into_dense=lambda n, x: _dense(n, x * n.weight(WIDTH) + n.weight(WIDTH)),
    dense_capped=lambda n, x: n.number(30.0) * op.tanh(_dense(n, x) / n.number(30.0)),
    six_products=lambda n, x: [_dense(n, x) for _ in range(6)],
    difference_of_products=lambda n, x: _dense(n, x) - _dense(n, x),
    low_rank_added=lambda n, x: (
        _dense(n, x) + op.matmul(op.matmul(x, n.weight(WIDTH, 8)), n.weight(8, WIDTH))
    ),
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
_add(
    1,
    HEADS,
    HEADS,
    HEADS,
    attention_of_log_sum_exp=lambda n, q, k, v: (
        lambda s: op.matmul(op.exp(s - _log_sum_exp(s)), v)
    )(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))),
    attention_divided_late=lambda n, q, k, v: (lambda e: op.matmul(e, v) / _sum(e))(
        (lambda s: op.exp(s - op.max(s, [-1], keepdims=True)))(
            op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
        )
    ),
    attention_capped=lambda n, q, k, v: (
        lambda s: op.matmul(_softmax(n.number(50.0) * op.tanh(s / n.number(50.0))), v)
    )(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))),
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
_add(
    1,
    IMAGE,
    average_pooled=lambda n, x: op.nn.avg_pool2d(_conv(n, x, 3), (2, 2), (2, 2)),
    difference_of_convs=lambda n, x: _conv(n, x, 3) - _conv(n, x, 3),
    windows_concatenated=lambda n, x: op.concat([_conv(n, x, 1), _conv(n, x, 3)], 1),
    gate_of_pixels=lambda n, x: x * op.sigmoid(_conv(n, x, 1, 1)),
    norm_of_channels=lambda n, x: (
        lambda c: (
            c / op.sqrt(op.mean(c * c, [2, 3], keepdims=True) + n.number(1e-3)) * n.weight(32, 1, 1)
        )
    )(x - op.mean(x, [2, 3], keepdims=True)),
)
_add(
    1,
    IMAGE,
    IMAGE,
    sum_of_convs=lambda n, x, y: _conv(n, x, 3) + _conv(n, y, 3),
    conv_of_concat=lambda n, x, y: op.nn.conv2d(
        op.concat([x, y], 1), n.weight(32, 64, 3, 3), padding=1
    ),
)
