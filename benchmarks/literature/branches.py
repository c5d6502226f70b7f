"""More expressions: gates, branches of convolutions, attention without softmax, losses."""

from typing import Any

from tvm.relax import op

from .expression import HEADS, IMAGE, WIDTH, M, add, conv, dense, gelu, mean, norm, softmax, total


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
