"""More expressions: gates, branches of convolutions, attention without softmax, laws."""

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from .expression import (
    HEADS,
    IMAGE,
    WIDTH,
    M,
    add,
    attention,
    conv,
    dense,
    gelu,
    mean,
    norm,
    softmax,
    total,
)


def _halves(x: Any, axis: int, extent: int) -> tuple[Any, Any]:
    middle = extent // 2
    return op.strided_slice(x, [axis], [0], [middle]), op.strided_slice(
        x, [axis], [middle], [extent]
    )


def _channels(net: Any) -> Any:
    return net.weight(1, 32, 1, 1)


def _turned(x: Any) -> Any:
    return op.permute_dims(x, (0, 1, 3, 2))


def _depthwise(net: Any, x: Any, window: int) -> Any:
    kernel = net.weight(32, 1, window, window)
    return op.nn.conv2d(x, kernel, padding=window // 2, groups=32)


# Products.
add(
    1,
    M,
    highway=lambda n, x: (lambda t, h: t * h + (n.number(1.0) - t) * x)(
        op.sigmoid(dense(n, x) + n.weight(WIDTH)), op.tanh(dense(n, x) + n.weight(WIDTH))
    ),
    gelu_gated_halves=lambda n, x: (lambda a, b: a * gelu(n, b))(
        *_halves(dense(n, x, 512), 1, 512)
    ),
    maxout=lambda n, x: op.max(op.reshape(dense(n, x, 512), (128, 256, 2)), [2]),
    aggregated=lambda n, x: op.concat(
        [
            mean(x),
            op.max(x, [-1], keepdims=True),
            op.sqrt(n.number(1e-3) + mean(x * x) - mean(x) * mean(x)),
        ],
        1,
    ),
)
add(1, M, M, two_into_tanh=lambda n, x, y: op.tanh(dense(n, x) + dense(n, y) + n.weight(WIDTH)))
add(2, M, M, contrasted=lambda n, x, y: op.nn.log_softmax(op.matmul(x, op.permute_dims(y)), -1))
add(
    2,
    M,
    (1, WIDTH),
    modulated_norm=lambda n, x, c: (lambda g, b: norm(n, x) * (n.number(1.0) + g) + b)(
        *_halves(op.matmul(op.nn.silu(c), n.weight(256, 512)) + n.weight(512), 1, 512)
    ),
)
# Losses.
add(
    1,
    M,
    M,
    focal=lambda n, x, y: (lambda p: -op.square(n.number(1.0) - p) * op.log(p))(
        total(softmax(x) * y)
    ),
    huber=lambda n, x, y: (
        lambda d: mean(
            op.where(
                op.less(op.abs(d), n.number(1.0)),
                n.number(0.5) * d * d,
                op.abs(d) - n.number(0.5),
            )
        )
    )(x - y),
    signal_to_noise=lambda n, x, y: (lambda s: op.log(total(s * s) / total(op.square(x - s))))(
        total(x * y) / total(y * y) * y
    ),
)
# Attention without softmax.
add(
    1,
    HEADS,
    HEADS,
    HEADS,
    sigmoid_attention=lambda n, q, k, v: op.matmul(
        op.sigmoid(op.matmul(q, _turned(k)) * n.number(0.125) - n.number(4.85)), v
    ),
)
add(
    2,
    HEADS,
    HEADS,
    HEADS,
    linear_attention=lambda n, q, k, v: op.matmul(
        op.nn.relu(q) + n.number(1.0), op.matmul(_turned(op.nn.relu(k) + n.number(1.0)), v)
    ),
)
# Convolutions.
add(
    1,
    IMAGE,
    crossed_convs=lambda n, x: (
        conv(n, x, 3)
        + op.nn.conv2d(x, n.weight(32, 32, 3, 1), padding=(1, 0))
        + op.nn.conv2d(x, n.weight(32, 32, 1, 3), padding=(0, 1))
    ),
    parallel_depthwise=lambda n, x: _depthwise(n, x, 5) + _depthwise(n, x, 3) + x,
    pooled_before=lambda n, x: conv(n, op.nn.avg_pool2d(x, (2, 2), (2, 2)), 1),
    gated_halves_of_conv=lambda n, x: (lambda a, b: a * op.sigmoid(b))(
        *_halves(conv(n, x, 3, 64), 1, 64)
    ),
    gated_convs=lambda n, x: (
        op.tanh(conv(n, x, 3) + _channels(n)) * op.sigmoid(conv(n, x, 3) + _channels(n))
    ),
    patches=lambda n, x: op.permute_dims(
        op.reshape(op.nn.conv2d(x, n.weight(64, 32, 4, 4), strides=4), (1, 64, 49)), (0, 2, 1)
    ),
    enlarged_before=lambda n, x: conv(
        n, op.image.resize2d(x, (56, 56), method="nearest_neighbor"), 3
    ),
    pooled_difference=lambda n, x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1)) - x,
)
add(
    2,
    IMAGE,
    gates_by_products=lambda n, x: (
        x
        * op.reshape(
            op.sigmoid(
                op.matmul(
                    op.nn.relu(op.matmul(op.mean(x, [2, 3]), n.weight(32, 8))), n.weight(8, 32)
                )
            ),
            (1, 32, 1, 1),
        )
    ),
    gates_of_neighbours=lambda n, x: (
        x
        * op.reshape(
            op.sigmoid(
                op.nn.conv1d(
                    op.reshape(op.mean(x, [2, 3]), (1, 1, 32)), n.weight(1, 1, 3), padding=1
                )
            ),
            (1, 32, 1, 1),
        )
    ),
    spatial_gate=lambda n, x: (
        x
        * op.sigmoid(
            op.nn.conv2d(
                op.concat([op.mean(x, [1], keepdims=True), op.max(x, [1], keepdims=True)], 1),
                n.weight(1, 2, 7, 7),
                padding=3,
            )
        )
    ),
    ghost=lambda n, x: (lambda y: op.concat([y, _depthwise(n, y, 3)], 1))(
        op.nn.relu(conv(n, x, 1))
    ),
)

# Laws that papers list, with what they were found in around them.
add(
    1,
    M,
    M,
    M,
    reciprocals=lambda n, a, b, c: n.number(1.0) / a * (n.number(1.0) / (a * b)) + c,
    roots_multiplied=lambda n, a, b, c: (a * op.sqrt(op.abs(b))) * (op.sqrt(op.abs(b)) * c),
    absolutes=lambda n, a, b, c: op.abs(a) * b * op.abs(c),
    sums_multiplied=lambda n, a, b, c: (a * total(b)) * (total(b) * c),
    squared_sum_less=lambda n, a, b, c: op.square(a + b) - (a + b) * c,
)
add(
    1,
    M,
    product_of_exponentials=lambda n, x: op.prod(op.exp(x), [-1], keepdims=True),
    norm_of_shifted=lambda n, x: norm(n, x + n.number(3.0)),
    softmax_of_shifted=lambda n, x: softmax(x * n.number(0.5) - mean(x)),
    softmax_of_columns=lambda n, x: (lambda e: e / total(e, 0))(
        op.exp(x - op.max(x, [0], keepdims=True))
    ),
    softmax_of_masked=lambda n, x: softmax(
        op.where(relax.const(np.tri(*M, dtype=bool)), x, n.number(-1e4))
    ),
    split_and_joined=lambda n, x: op.nn.relu(op.concat(list(_halves(x, 1, WIDTH)), 1)),
    halves_of_dense_added=lambda n, x: (lambda a, b: a + b)(*_halves(dense(n, x, 512), 1, 512)),
    three_by_einsum=lambda n, x: op.einsum(
        [x, n.weight(WIDTH), n.weight(WIDTH, WIDTH)], "mk,k,kn->mn"
    ),
    mean_of_dense=lambda n, x: op.mean(dense(n, x), [0], keepdims=True),
)
add(
    1,
    M,
    M,
    log_of_products=lambda n, x, y: op.log(op.exp(x) * op.exp(y)),
    logits_loss=lambda n, x, y: mean(
        op.nn.relu(x) - x * y + op.log(n.number(1.0) + op.exp(-op.abs(x)))
    ),
    softmax_of_concat=lambda n, x, y: softmax(op.concat([x, y], 1)),
    sums_of_concat=lambda n, x, y: total(op.concat([x, y], 1)),
    slice_of_concat=lambda n, x, y: op.strided_slice(
        op.concat([op.exp(x), op.tanh(y)], 1), [1], [WIDTH], [2 * WIDTH]
    ),
    one_weight_twice=lambda n, x, y: (lambda w: op.matmul(x, w) + op.matmul(y, w))(
        n.weight(WIDTH, WIDTH)
    ),
    bilinear=lambda n, x, y: total(dense(n, x) * y),
)
add(
    2,
    M,
    M,
    projected_scores=lambda n, x, y: op.matmul(dense(n, x, 64), op.permute_dims(dense(n, y, 64))),
)
add(
    1,
    HEADS,
    (1, 1, 128, 64),
    (1, 1, 128, 64),
    attention_of_one_key=lambda n, q, k, v: attention(q, k, v, scale=n.number(0.125)),
)
