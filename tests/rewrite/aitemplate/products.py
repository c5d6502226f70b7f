"""Matrix products: what comes before them, several of them, unusual sizes."""

import numpy as np
from tvm import relax
from tvm.relax import op

from .row import CPU, Row, example, relu, sigmoid, tensor, weight

_A, _B, _C = weight(65, 48), weight(65, 48), weight(65, 32)
_LEFT, _RIGHT = weight(33, 17), weight(32, 17)
_BIAS = weight(48), weight(48), weight(32)
_GROUPS = [weight(13, 17) for _ in range(4)]
_GROUP_BIAS = [weight(17) for _ in range(4)]
_FLAT = weight(24, 65)
_TINY, _COLUMN, _ODD = weight(3, 5), weight(65, 1), weight(33, 7)

_ACROSS = (
    "the cost decides: read across its columns, the operand takes longer than a copy and a product."
)
_NO_DUAL = (
    "the right operands are inputs: joining would copy them, and the contraction template makes "
    "one sum per kernel. With constant matrices it is one kernel, as above."
)
_NO_CHAIN = (
    "the attention template takes two products with a softmax between, and nothing else chains "
    "products: with other maps between, the inner result goes through memory, already mapped."
)


def _const(x):
    return relax.const(x)


def _pieces(e, x, number, axis):
    parts = e(op.split(x, number, axis=axis))
    return [e(relax.TupleGetItem(parts, i)) for i in range(number)]


def _siblings(e, x, activation=None, biases=(None, None, None)):
    found = []
    for w, b in zip((_A, _B, _C), biases, strict=True):
        y = e(op.matmul(x, _const(w)))
        y = y if b is None else e(op.add(y, _const(b)))
        found.append(y if activation is None else e(activation(y)))
    return found


def _split_products(e, x, biases=None):
    found = []
    for i, piece in enumerate(_pieces(e, x, 4, 1)):
        y = e(op.matmul(piece, _const(_GROUPS[i])))
        found.append(y if biases is None else e(op.add(y, _const(biases[i]))))
    return op.concat(found, axis=1)


def _split_products_reference(x, biases=None):
    pieces = np.split(x, 4, axis=1)
    found = [p @ w for p, w in zip(pieces, _GROUPS, strict=True)]
    if biases is not None:
        found = [y + b for y, b in zip(found, biases, strict=True)]
    return np.concatenate(found, 1)


def _product(e, x):
    return e(op.matmul(x, _const(_A)))


def _heads(e, x):
    """Return (33, 24) @ (24, 65) as (5 heads, 33, 13)."""
    y = e(op.matmul(x, _const(_FLAT)))
    return op.permute_dims(e(op.reshape(y, (33, 5, 13))), [1, 0, 2])


ROWS = (
    Row(
        "Permutes before and behind products",
        ("fuse_permute_bmm_and_gemm", "fuse_bmm_permute", "fuse_mm_reshape_permute", "perm*_bmm"),
        "planner + contraction template: permutes are indices of operands and results; laws of "
        "products of permuted operands",
        (
            example(
                "permuted_right",
                lambda n: [tensor("x", n, 33), tensor("w", 65, 33)],
                lambda e, x, w: op.matmul(x, e(op.permute_dims(w))),
                lambda x, w: x @ w.T,
                missing={CPU: _ACROSS},
            ),
            example(
                "permuted_left",
                [tensor("x", 33, 17), tensor("w", 33, 65)],
                lambda e, x, w: op.matmul(e(op.permute_dims(x)), w),
                lambda x, w: x.T @ w,
            ),
            example(
                "permuted_batches",
                [tensor("x", 3, 17, 33), tensor("w", 3, 65, 17)],
                lambda e, x, w: op.matmul(
                    e(op.permute_dims(x, [0, 2, 1])), e(op.permute_dims(w, [0, 2, 1]))
                ),
                lambda x, w: x.transpose(0, 2, 1) @ w.transpose(0, 2, 1),
            ),
            example(
                "permute_102",
                [tensor("x", 33, 3, 17), tensor("w", 3, 17, 65)],
                lambda e, x, w: op.matmul(e(op.permute_dims(x, [1, 0, 2])), w),
                lambda x, w: x.transpose(1, 0, 2) @ w,
            ),
            example(
                "batches_then_permute",
                [tensor("x", 3, 33, 17), tensor("w", 3, 17, 65)],
                lambda e, x, w: op.permute_dims(e(op.matmul(x, w)), [0, 2, 1]),
                lambda x, w: (x @ w).transpose(0, 2, 1),
            ),
            example(
                "product_to_heads",
                [tensor("x", 33, 24)],
                _heads,
                lambda x: (x @ _FLAT).reshape(33, 5, 13).transpose(1, 0, 2),
            ),
            example(
                "heads_to_product",
                lambda n: [tensor("x", 3, n, 8)],
                lambda e, x: op.matmul(
                    e(op.reshape(e(op.permute_dims(x, [1, 0, 2])), (x.ty.shape[1], 24))),
                    _const(_FLAT),
                ),
                lambda x: x.transpose(1, 0, 2).reshape(-1, 24) @ _FLAT,
            ),
        ),
    ),
    Row(
        "Reshapes and expansions of operands",
        ("fuse_expand_bmm",),
        "planner + contraction template: a broadcast is an index that does not move",
        (
            example(
                "expanded_right",
                [tensor("x", 3, 33, 17), tensor("w", 1, 17, 65)],
                lambda e, x, w: op.matmul(x, e(op.broadcast_to(w, (3, 17, 65)))),
                lambda x, w: x @ w,
            ),
            example(
                "expanded_keys",
                lambda n: [tensor("q", 6, n, 17), tensor("k", 2, n, 17)],
                lambda e, q, k: op.matmul(
                    q,
                    e(
                        op.permute_dims(
                            e(
                                op.reshape(
                                    e(
                                        op.broadcast_to(
                                            e(op.expand_dims(k, 1)), (2, 3, k.ty.shape[1], 17)
                                        )
                                    ),
                                    (6, k.ty.shape[1], 17),
                                )
                            ),
                            [0, 2, 1],
                        )
                    ),
                ),
                lambda q, k: q @ np.repeat(k, 3, 0).transpose(0, 2, 1),
                missing={CPU: _ACROSS},
            ),
        ),
    ),
    Row(
        "Products with what follows",
        ("fuse_mm_elementwise", "gemm_rcr_bias_*", "bmm_*_add"),
        "planner + contraction template: any maps behind the sum",
        (
            example(
                "product_bias_add_add_relu",
                lambda n: [tensor("x", n, 65), tensor("r", n, 48), tensor("s", n, 48)],
                lambda e, x, r, s: op.nn.relu(
                    e(op.add(e(op.add(e(op.add(_product(e, x), _const(_BIAS[0]))), r)), s))
                ),
                lambda x, r, s: relu(x @ _A + _BIAS[0] + r + s),
            ),
            example(
                "product_bias_sigmoid_mul_tanh",
                [tensor("x", 33, 65), tensor("r", 33, 48)],
                lambda e, x, r: op.tanh(
                    e(op.multiply(e(op.sigmoid(e(op.add(_product(e, x), _const(_BIAS[0]))))), r))
                ),
                lambda x, r: np.tanh(sigmoid(x @ _A + _BIAS[0]) * r),
            ),
            example(
                "batches_add",
                [tensor("x", 3, 33, 17), tensor("y", 3, 17, 65), tensor("r", 3, 33, 65)],
                lambda e, x, y, r: op.add(e(op.matmul(x, y)), r),
                lambda x, y, r: x @ y + r,
            ),
        ),
    ),
    Row(
        "Products of one operand",
        ("fuse_single_source_parallel_gemms",),
        "JoinMatmuls, and pieces of the contraction template",
        (
            example(
                "siblings",
                lambda n: [tensor("x", n, 65)],
                _siblings,
                lambda x: [x @ _A, x @ _B, x @ _C],
            ),
            example(
                "siblings_bias_relu",
                [tensor("x", 33, 65)],
                lambda e, x: _siblings(e, x, op.nn.relu, _BIAS),
                lambda x: [relu(x @ w + b) for w, b in zip((_A, _B, _C), _BIAS, strict=True)],
            ),
            example(
                "siblings_of_odd_widths",
                [tensor("x", 33, 33)],
                lambda e, x: [op.matmul(x, _const(_LEFT)), op.matmul(x, _const(_ODD))],
                lambda x: [x @ _LEFT, x @ _ODD],
            ),
            example(
                "siblings_batched",
                [tensor("x", 3, 17, 33)],
                lambda e, x: [op.matmul(x, _const(_LEFT)), op.matmul(x, _const(_ODD))],
                lambda x: [x @ _LEFT, x @ _ODD],
            ),
            example(
                "siblings_transposed",
                [tensor("x", 33, 17)],
                lambda e, x: [
                    op.matmul(x, e(op.permute_dims(_const(_LEFT)))),
                    op.matmul(x, e(op.permute_dims(_const(_RIGHT)))),
                ],
                lambda x: [x @ _LEFT.T, x @ _RIGHT.T],
            ),
            example(
                "siblings_with_one_bias",
                [tensor("x", 33, 65)],
                lambda e, x: _siblings(e, x, None, (_BIAS[0], None, None)),
                lambda x: [x @ _A + _BIAS[0], x @ _B, x @ _C],
            ),
        ),
    ),
    Row(
        "Products of one operand, concatenated",
        ("fuse_parallel_gemms",),
        "JoinMatmuls where they share an operand; else grouped GEMM, or BatchMatmuls on GPUs; "
        "split and concatenation cancel as indices",
        (
            example(
                "siblings_concatenated",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.concat(_siblings(e, x), axis=1),
                lambda x: x @ np.concatenate([_A, _B, _C], 1),
            ),
            example(
                "siblings_bias_concatenated",
                [tensor("x", 33, 65)],
                lambda e, x: op.concat(_siblings(e, x, op.nn.relu, _BIAS), axis=1),
                lambda x: relu(x @ np.concatenate([_A, _B, _C], 1) + np.concatenate(_BIAS)),
            ),
            example(
                "products_concatenated",
                [tensor("x", 33, 13), tensor("y", 33, 13)],
                lambda e, x, y: op.concat(
                    [e(op.matmul(v, _const(w))) for v, w in zip((x, y), _GROUPS, strict=False)],
                    axis=1,
                ),
                lambda x, y: np.concatenate([x @ _GROUPS[0], y @ _GROUPS[1]], 1),
            ),
        ),
    ),
    Row(
        "Pieces through products of their own, concatenated",
        ("fuse_parallel_gemms",),
        "BatchMatmuls: products of batches, whose permutes and reshapes are indices",
        (
            example(
                "split_products_concat",
                lambda n: [tensor("x", n, 52)],
                _split_products,
                _split_products_reference,
            ),
            example(
                "split_products_bias_concat",
                [tensor("x", 33, 52)],
                lambda e, x: _split_products(e, x, _GROUP_BIAS),
                lambda x: _split_products_reference(x, _GROUP_BIAS),
            ),
        ),
    ),
    Row(
        "Products of different operands in one launch",
        ("fuse_group_ops",),
        "planner + grouped GEMM; maps and norms are grouped, too (see below)",
        (
            example(
                "group_of_equal_products",
                [tensor("x", 33, 65), tensor("y", 33, 65)],
                lambda e, x, y: [op.matmul(x, _const(_A)), op.matmul(y, _const(_B))],
                lambda x, y: [x @ _A, y @ _B],
            ),
            example(
                "group_of_products",
                [tensor("x", 33, 65), tensor("y", 17, 33)],
                lambda e, x, y: [
                    op.nn.relu(e(op.matmul(x, _const(_A)))),
                    op.nn.relu(e(op.matmul(y, _const(_LEFT)))),
                ],
                lambda x, y: [relu(x @ _A), relu(y @ _LEFT)],
            ),
        ),
    ),
    Row(
        "Odd extents and padding",
        ("transform_odd_alignment", "apply_padding"),
        "contraction template: tiles end where the tensor ends",
        (
            example(
                "odd_product",
                [tensor("x", 13, 33)],
                lambda e, x: op.matmul(x, _const(_ODD)),
                lambda x: x @ _ODD,
            ),
            example(
                "odd_product_in_half",
                [tensor("x", 13, 33, dtype="float16")],
                lambda e, x: op.matmul(x, _const(_ODD.astype("float16"))),
                lambda x: x @ _ODD.astype("float16").astype("float64"),
                tolerance=1e-3,
            ),
            example(
                "odd_batches_in_half",
                lambda n: [
                    tensor("x", 3, n, 33, dtype="float16"),
                    tensor("y", 3, 33, 7, dtype="float16"),
                ],
                lambda e, x, y: op.matmul(x, y),
                lambda x, y: x @ y,
                tolerance=1e-3,
            ),
        ),
    ),
    Row(
        "Tiny products",
        ("transform_special_ops", "gemm_rrr_small_nk", "bmm_rcr_n1", "bmm_rrr_k1_tanh"),
        "contraction template: columns or rows of one element, sums of few terms",
        (
            example(
                "few_columns_few_terms",
                lambda n: [tensor("x", n, 3)],
                lambda e, x: op.matmul(x, _const(_TINY)),
                lambda x: x @ _TINY,
            ),
            example(
                "one_column",
                [tensor("x", 33, 65)],
                lambda e, x: op.matmul(x, _const(_COLUMN)),
                lambda x: x @ _COLUMN,
            ),
            example(
                "one_column_batched",
                [tensor("x", 3, 33, 65), tensor("y", 3, 1, 65)],
                lambda e, x, y: op.matmul(x, e(op.permute_dims(y, [0, 2, 1]))),
                lambda x, y: x @ y.transpose(0, 2, 1),
            ),
            example(
                "one_term_then_tanh",
                [tensor("x", 3, 33, 1), tensor("y", 3, 1, 65)],
                lambda e, x, y: op.tanh(e(op.matmul(x, y))),
                lambda x, y: np.tanh(x @ y),
            ),
        ),
    ),
    Row(
        "Two products in one loop",
        ("dual_gemm_*", "dual_bmm_rrr_div"),
        "JoinMatmuls, and pieces of the contraction template",
        (
            example(
                "dual_silu",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.multiply(
                    e(op.nn.silu(e(op.matmul(x, _const(_A))))), e(op.matmul(x, _const(_B)))
                ),
                lambda x: (x @ _A) * sigmoid(x @ _A) * (x @ _B),
            ),
            example(
                "dual_gelu",
                [tensor("x", 33, 65)],
                lambda e, x: op.multiply(
                    e(op.nn.gelu_tanh(e(op.matmul(x, _const(_A))))), e(op.matmul(x, _const(_B)))
                ),
                lambda x: _gelu(x @ _A) * (x @ _B),
            ),
            example(
                "dual_divide",
                [tensor("x", 3, 33, 17), tensor("a", 3, 17, 65), tensor("b", 3, 17, 65)],
                lambda e, x, a, b: op.divide(
                    e(op.matmul(x, a)),
                    e(op.add(e(op.exp(e(op.matmul(x, b)))), relax.const(1.0, "float32"))),
                ),
                lambda x, a, b: (x @ a) / (np.exp(x @ b) + 1),
                missing=_NO_DUAL,
            ),
        ),
    ),
    Row(
        "Products back to back",
        ("fuse_b2b_bmm", "classic_b2b_bmm", "fmha_style_b2b_bmm"),
        "the attention template, where a softmax is between the products",
        (
            example(
                "back_to_back",
                [tensor("q", 3, 33, 16), tensor("k", 3, 16, 33), tensor("v", 3, 33, 16)],
                lambda e, q, k, v: op.matmul(
                    e(
                        op.multiply(
                            e(op.sigmoid(e(op.matmul(q, k)))), relax.const(0.125, "float32")
                        )
                    ),
                    v,
                ),
                lambda q, k, v: (sigmoid(q @ k) * 0.125) @ v,
                missing=_NO_CHAIN,
            ),
            example(
                "back_to_back_softmax",
                [tensor("q", 3, 33, 16), tensor("k", 3, 16, 33), tensor("v", 3, 33, 16)],
                lambda e, q, k, v: op.matmul(
                    e(
                        op.nn.softmax(
                            e(op.multiply(e(op.matmul(q, k)), relax.const(0.25, "float32")))
                        )
                    ),
                    v,
                ),
                lambda q, k, v: _softmax(q @ k * 0.25) @ v,
            ),
        ),
    ),
)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
