"""Expressions with the fewest kernels that any compiler is known to need for them.

Attention of several heads is one kernel since FlashAttention, a gated feed-forward layer's two
products are one (dual GEMM), reductions with what is computed around them are one, and so is a
product with what goes into it and comes out of it element by element. Two products in a chain are
two.
"""

import numpy as np
from tvm import relax
from tvm.relax import op

from . import branches as branches
from .expression import (
    EXPRESSIONS as EXPRESSIONS,
)
from .expression import (
    HEADS,
    IMAGE,
    ROWS,
    WIDTH,
    M,
    add,
    attention,
    conv,
    dense,
    gelu,
    log_sum_exp,
    mean,
    moments,
    norm,
    power_of_two,
    rms,
    softmax,
    total,
)

# Element by element.
add(
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
add(
    1,
    M,
    gelu=gelu,
    mish=lambda n, x: x * op.tanh(op.log(n.number(1.0) + op.exp(x))),
    swish=lambda n, x: x / (n.number(1.0) + op.exp(-x)),
    softmax=lambda n, x: softmax(x),
    plain_softmax=lambda n, x: op.exp(x) / total(op.exp(x)),
    log_softmax=lambda n, x: op.log(softmax(x)),
    log_sum_exp=lambda n, x: op.log(total(op.exp(x))),
    layer_norm=norm,
    layer_norm_of_moments=moments,
    rms_norm=rms,
    l2_norm=lambda n, x: x / op.sqrt(total(x * x)),
    standard_deviation=lambda n, x: op.sqrt(mean((x - mean(x)) * (x - mean(x)))),
    norm_and_gelu=lambda n, x: gelu(n, norm(n, x)),
    two_sums=lambda n, x: [total(x), total(x * x)],
    sum_and_maximum=lambda n, x: [total(x), op.max(x, [-1], keepdims=True)],
    mean_of_rows_scaled=lambda n, x: mean(x * n.number(3.0)) + n.number(1.0),
    transposed_twice=lambda n, x: op.permute_dims(op.exp(op.permute_dims(x))),
    transposed=lambda n, x: op.nn.relu(op.permute_dims(x)),
    sum_of_columns=lambda n, x: op.sum(op.exp(x), [0]),
    halves=lambda n, x: (
        op.strided_slice(x, [1], [0], [128]) * op.sigmoid(op.strided_slice(x, [1], [128], [256]))
    ),
)
add(
    1,
    M,
    M,
    norm_of_sum=lambda n, x, y: norm(n, x + y),
    rms_of_sum=lambda n, x, y: [x + y, rms(n, x + y)],
    cosine=lambda n, x, y: total(x * y) / op.sqrt(total(x * x) * total(y * y)),
    weighted_softmax=lambda n, x, y: total(softmax(x) * y),
    cross_entropy=lambda n, x, y: total(y * op.log(softmax(x))),
    squared_distance=lambda n, x, y: total((x - y) * (x - y)),
)
# Of rows, in other spellings.
add(
    1,
    M,
    softmax_of_log_sum_exp=lambda n, x: op.exp(x - log_sum_exp(x)),
    softmax_of_base_two=lambda n, x: (lambda e: e / total(e))(
        power_of_two(n, x - op.max(x, [-1], keepdims=True))
    ),
    entropy=lambda n, x: total(softmax(x) * op.log(softmax(x))),
    norm_into_softmax=lambda n, x: softmax(norm(n, x)),
    norm_of_norm=lambda n, x: rms(n, norm(n, x)),
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
add(
    1,
    M,
    M,
    divergence=lambda n, x, y: total(softmax(x) * (op.log(softmax(x)) - op.log(softmax(y)))),
    norm_of_gated=lambda n, x, y: rms(n, x * op.nn.silu(y)),
    interleaved=lambda n, x, y: op.reshape(op.stack([x, y], axis=2), (ROWS, 2 * WIDTH)),
)
# Products.
add(
    1,
    M,
    dense=lambda n, x: op.nn.relu(dense(n, x) + n.weight(WIDTH)),
    dense_gelu=lambda n, x: gelu(n, dense(n, x) + n.weight(WIDTH)),
    dense_residual=lambda n, x: dense(n, x) + n.weight(WIDTH) + x,
    gated_dense=lambda n, x: op.nn.silu(dense(n, x)) * dense(n, x),
    qkv=lambda n, x: [dense(n, x), dense(n, x), dense(n, x)],
    sum_of_products=lambda n, x: dense(n, x) + dense(n, x),
    scaled_product=lambda n, x: dense(n, x * n.number(0.125)),
    constants_first=lambda n, x: op.matmul(dense(n, x), n.weight(WIDTH, 64)),
    transposed_result=lambda n, x: op.permute_dims(
        op.reshape(dense(n, x), (ROWS, 4, WIDTH // 4)), (1, 0, 2)
    ),
    relu_into_product=lambda n, x: dense(n, op.nn.relu(x)),
    scaled_columns=lambda n, x: dense(n, x) * n.weight(WIDTH),
)
add(
    1,
    M,
    affine_into_dense=lambda n, x: dense(n, x * n.weight(WIDTH) + n.weight(WIDTH)),
    dense_capped=lambda n, x: n.number(30.0) * op.tanh(dense(n, x) / n.number(30.0)),
    six_products=lambda n, x: [dense(n, x) for _ in range(6)],
    difference_of_products=lambda n, x: dense(n, x) - dense(n, x),
    low_rank_added=lambda n, x: (
        dense(n, x) + op.matmul(op.matmul(x, n.weight(WIDTH, 8)), n.weight(8, WIDTH))
    ),
)
add(
    1,
    M,
    M,
    two_into_one=lambda n, x, y: dense(n, x) + dense(n, y),
    product_of_sum=lambda n, x, y: dense(n, x + y),
    product_of_concat=lambda n, x, y: op.matmul(op.concat([x, y], 1), n.weight(2 * WIDTH, WIDTH)),
)
add(
    2,
    M,
    feed_forward=lambda n, x: dense(n, op.nn.relu(dense(n, x))),
    gated_feed_forward=lambda n, x: dense(n, op.nn.silu(dense(n, x)) * dense(n, x)),
)
add(
    2,
    M,
    (WIDTH, ROWS),
    (ROWS, 1),
    product_with_vector=lambda n, a, b, v: op.matmul(op.matmul(a, b), v),
)
# Attention.
add(
    1,
    HEADS,
    HEADS,
    HEADS,
    attention=lambda n, q, k, v: attention(q, k, v),
    scaled_attention=lambda n, q, k, v: attention(q, k, v, scale=n.number(0.125)),
    scaled_query=lambda n, q, k, v: attention(q * n.number(0.125), k, v),
    masked_attention=lambda n, q, k, v: attention(q, k, v, mask=n.weight(1, 1, 128, 128)),
)
add(
    1,
    HEADS,
    HEADS,
    HEADS,
    attention_of_log_sum_exp=lambda n, q, k, v: (
        lambda s: op.matmul(op.exp(s - log_sum_exp(s)), v)
    )(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))),
    attention_divided_late=lambda n, q, k, v: (lambda e: op.matmul(e, v) / total(e))(
        (lambda s: op.exp(s - op.max(s, [-1], keepdims=True)))(
            op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
        )
    ),
    attention_capped=lambda n, q, k, v: (
        lambda s: op.matmul(softmax(n.number(50.0) * op.tanh(s / n.number(50.0))), v)
    )(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))),
)
# Convolutions.
add(
    1,
    IMAGE,
    conv=lambda n, x: op.nn.relu(conv(n, x, 3) + n.weight(1, 32, 1, 1)),
    conv_residual=lambda n, x: op.nn.relu(conv(n, x, 3) + x),
    conv_scaled=lambda n, x: conv(n, x, 3) * n.weight(1, 32, 1, 1),
    conv_pooled=lambda n, x: op.nn.max_pool2d(op.nn.relu(conv(n, x, 3)), (2, 2), (2, 2)),
    two_convs_concatenated=lambda n, x: op.concat([conv(n, x, 3), conv(n, x, 3)], 1),
    parallel_convs=lambda n, x: conv(n, x, 3) + conv(n, x, 1) + x,
    one_behind_one=lambda n, x: conv(n, conv(n, x, 1), 1),
)
add(
    1,
    IMAGE,
    average_pooled=lambda n, x: op.nn.avg_pool2d(conv(n, x, 3), (2, 2), (2, 2)),
    difference_of_convs=lambda n, x: conv(n, x, 3) - conv(n, x, 3),
    windows_concatenated=lambda n, x: op.concat([conv(n, x, 1), conv(n, x, 3)], 1),
    gate_of_pixels=lambda n, x: x * op.sigmoid(conv(n, x, 1, 1)),
    norm_of_channels=lambda n, x: (
        lambda c: (
            c / op.sqrt(op.mean(c * c, [2, 3], keepdims=True) + n.number(1e-3)) * n.weight(32, 1, 1)
        )
    )(x - op.mean(x, [2, 3], keepdims=True)),
)
add(
    1,
    IMAGE,
    IMAGE,
    sum_of_convs=lambda n, x, y: conv(n, x, 3) + conv(n, y, 3),
    conv_of_concat=lambda n, x, y: op.nn.conv2d(
        op.concat([x, y], 1), n.weight(32, 64, 3, 3), padding=1
    ),
)

# Of later models and other importers.
add(
    1,
    M,
    norm_unbiased=lambda n, x: (
        lambda c: (
            c / (op.sqrt(total(c * c) / n.number(WIDTH - 1.0)) + n.number(1e-3)) * n.weight(WIDTH)
        )
    )(x - mean(x)),
    norm_by_product=lambda n, x: (
        x
        * op.rsqrt(
            op.matmul(x * x, relax.const(np.full((WIDTH, 1), 1 / WIDTH, n.dtype))) + n.number(1e-3)
        )
    ),
    kurtosis=lambda n, x: (lambda c: mean(c * c * c * c) / op.square(mean(c * c)))(x - mean(x)),
    softmax_expectation=lambda n, x: total(op.exp(x) * n.weight(WIDTH)) / total(op.exp(x)),
    softmax_renormalised=lambda n, x: (lambda p: p / total(p))(softmax(x) * n.weight(WIDTH)),
    softmax_variance=lambda n, x: (
        lambda p: total(p * op.square(n.weight(WIDTH))) - op.square(total(p * n.weight(WIDTH)))
    )(softmax(x)),
    running_mean=lambda n, x: op.cumsum(x, 1) * n.weight(WIDTH),
    running_log_sum_exp=lambda n, x: op.log(op.cumsum(op.exp(x), 1)),
    running_sum_before=lambda n, x: op.cumsum(x, 1) - x,
    products_by_einsum=lambda n, x: op.einsum([x, n.weight(WIDTH, WIDTH)], "mk,nk->mn"),
    heads_by_einsum=lambda n, x: op.einsum(
        [op.reshape(x, (ROWS, 4, 64)), n.weight(4, 64, 64)], "mhk,hkn->mhn"
    ),
    transposed_around=lambda n, x: op.permute_dims(
        op.matmul(n.weight(WIDTH, WIDTH), op.permute_dims(x))
    ),
    stacked_products=lambda n, x: op.stack([dense(n, x), dense(n, x)], 1),
    scaled_residual=lambda n, x: x + n.weight(WIDTH) * (dense(n, x) + n.weight(WIDTH)),
    low_rank_scaled=lambda n, x: (
        dense(n, x)
        + n.number(2.0) * op.matmul(op.matmul(x, n.weight(WIDTH, 16)), n.weight(16, WIDTH))
    ),
)
add(
    1,
    M,
    M,
    correlation=lambda n, x, y: (lambda a, b: total(a * b) / op.sqrt(total(a * a) * total(b * b)))(
        x - mean(x), y - mean(y)
    ),
    norm_of_concat=lambda n, x, y: moments(n, op.concat([x, y], 1)),
)
add(
    1,
    HEADS,
    rotated_pairs=lambda n, q: (
        lambda a, b, c, s: op.reshape(op.stack([a * c - b * s, a * s + b * c], -1), HEADS)
    )(
        op.strided_slice(q, [3], [0], [64], [2]),
        op.strided_slice(q, [3], [1], [64], [2]),
        n.weight(1, 1, 128, 32),
        n.weight(1, 1, 128, 32),
    ),
    rotated_norm=lambda n, q: (
        lambda x: (
            x * n.weight(1, 1, 128, 64)
            + op.concat(
                [
                    op.negative(op.strided_slice(x, [3], [32], [64])),
                    op.strided_slice(x, [3], [0], [32]),
                ],
                3,
            )
            * n.weight(1, 1, 128, 64)
        )
    )(q * op.rsqrt(mean(q * q) + n.number(1e-3)) * n.weight(64)),
)
add(
    1,
    HEADS,
    (1, 2, 128, 64),
    (1, 2, 128, 64),
    attention_of_groups=lambda n, q, k, v: attention(q, op.repeat(k, 4, 1), op.repeat(v, 4, 1)),
)
add(
    1,
    HEADS,
    HEADS,
    HEADS,
    attention_by_einsum=lambda n, q, k, v: op.einsum(
        [softmax(op.einsum([q, k], "bhqd,bhkd->bhqk") * n.number(0.125)), v], "bhqk,bhkd->bhqd"
    ),
    gated_attention=lambda n, q, k, v: attention(q, k, v) * op.sigmoid(q),
)
add(
    1,
    IMAGE,
    normed_parallel_convs=lambda n, x: op.nn.relu(
        conv(n, x, 3) * n.weight(32, 1, 1)
        + n.weight(32, 1, 1)
        + (conv(n, x, 1) * n.weight(32, 1, 1) + n.weight(32, 1, 1))
        + (x * n.weight(32, 1, 1) + n.weight(32, 1, 1))
    ),
    relu_into_conv=lambda n, x: conv(n, op.nn.relu(x), 3),
)
add(
    2,
    IMAGE,
    squeeze_and_excite=lambda n, x: (
        x
        * op.sigmoid(
            op.nn.conv2d(
                op.nn.relu(op.nn.conv2d(op.mean(x, [2, 3], keepdims=True), n.weight(8, 32, 1, 1))),
                n.weight(32, 8, 1, 1),
            )
        )
    ),
)

# Of other compilers' pattern lists, and classifiers.
add(
    1,
    M,
    gated_in_turns=lambda n, x: (
        lambda y: (
            op.strided_slice(y, [1], [0], [512], [2])
            * op.sigmoid(op.strided_slice(y, [1], [1], [512], [2]))
        )
    )(dense(n, x, 512)),
    fourier_features=lambda n, x: (lambda y: op.concat([op.sin(y), op.cos(y)], 1))(
        dense(n, x, 128)
    ),
    first_row=lambda n, x: op.strided_slice(dense(n, norm(n, x)), [0], [0], [1]),
    rolled=lambda n, x: (
        x
        + op.concat(
            [op.strided_slice(x, [1], [100], [256]), op.strided_slice(x, [1], [0], [100])], 1
        )
    ),
    reversed_sums=lambda n, x: op.flip(op.cumsum(op.flip(x, 1), 1), 1),
    mean_and_variance=lambda n, x: [mean(x), mean(op.square(x - mean(x)))],
    mean_of_concat=lambda n, x: mean(op.concat([x, op.exp(x)], 1)),
)
add(
    1,
    M,
    M,
    clipped_by_norm=lambda n, x, y: x * op.minimum(n.number(1.0), op.rsqrt(total(y * y))),
)
add(
    1,
    IMAGE,
    channels_shuffled=lambda n, x: op.reshape(
        op.permute_dims(op.reshape(conv(n, x, 1), (1, 2, 16, 28, 28)), (0, 2, 1, 3, 4)),
        (1, 32, 28, 28),
    ),
    expected_positions=lambda n, x: total(softmax(op.reshape(x, (1, 32, 784))) * n.weight(784)),
)
