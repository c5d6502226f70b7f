"""Norms and maps that share launches, or kernels."""

import numpy as np
from tvm import relax
from tvm.relax import op

from .row import Row, example, layer_norm, relu, sigmoid, tensor, weight

_GAMMA, _BETA = weight(65), weight(65)
_MORE = weight(65), weight(65)
_NARROW = weight(31), weight(31)
_SCALE, _SHIFT = weight(12), weight(12)
_WEIGHTS = [weight(65, 65) / 8 for _ in range(4)]

_ONLY_EQUAL = "the planner tries strangers of equal structure and shape alone."


def _const(x):
    return relax.const(x)


def _norm(e, x, gamma=_GAMMA, beta=_BETA):
    return e(op.nn.layer_norm(x, _const(gamma), _const(beta), axes=-1, epsilon=1e-5))


def _group_norm(e, x):
    return e(
        op.nn.group_norm(
            x, _const(_SCALE), _const(_SHIFT), 3, channel_axis=1, axes=[2, 3], epsilon=1e-5
        )
    )


def _group_norm_reference(x):
    rows = x.reshape(x.shape[0], 3, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normal.reshape(x.shape) * _SCALE.reshape(12, 1, 1) + _SHIFT.reshape(12, 1, 1)


def _layers(e, x):
    for w in _WEIGHTS:
        x = e(op.tanh(e(op.matmul(x, _const(w)))))
    return x


def _layers_reference(x):
    for w in _WEIGHTS:
        x = np.tanh(x @ w)
    return x


ROWS = (
    Row(
        "Norms with gates",
        ("fuse_ops", "layernorm_sigmoid_mul", "group_norm_swish"),
        "planner + rows template",
        (
            example(
                "layer_norm_gate",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.multiply(x, e(op.sigmoid(_norm(e, x)))),
                lambda x: x * sigmoid(layer_norm(x, _GAMMA, _BETA)),
            ),
            example(
                "group_norm_swish",
                [tensor("x", 2, 12, 5, 7)],
                lambda e, x: op.nn.silu(_group_norm(e, x)),
                lambda x: _group_norm_reference(x) * sigmoid(_group_norm_reference(x)),
            ),
        ),
    ),
    Row(
        "Norms of different operands in one launch",
        ("fuse_group_ops", "group_layernorm", "group_layernorm_sigmoid_mul"),
        "planner: equal blocks that need nothing of each other share a kernel, if that costs less",
        (
            example(
                "group_of_equal_norms",
                lambda n: [tensor("x", n, 65), tensor("y", n, 65)],
                lambda e, x, y: [_norm(e, x), _norm(e, y, *_MORE)],
                lambda x, y: [layer_norm(x, _GAMMA, _BETA), layer_norm(y, *_MORE)],
            ),
            example(
                "group_of_gated_norms",
                [tensor("x", 33, 65), tensor("y", 33, 65), tensor("z", 33, 65)],
                lambda e, *inputs: [
                    op.multiply(v, e(op.sigmoid(_norm(e, v, *_MORE)))) for v in inputs
                ],
                lambda *inputs: [v * sigmoid(layer_norm(v, *_MORE)) for v in inputs],
            ),
            example(
                "group_of_norms_of_other_widths",
                [tensor("x", 33, 65), tensor("y", 33, 31)],
                lambda e, x, y: [_norm(e, x), _norm(e, y, *_NARROW)],
                lambda x, y: [layer_norm(x, _GAMMA, _BETA), layer_norm(y, *_NARROW)],
                missing=_ONLY_EQUAL,
            ),
            example(
                "group_of_norms_of_one_operand",
                [tensor("x", 33, 65)],
                lambda e, x: [_norm(e, x), _norm(e, x, *_MORE)],
                lambda x: [layer_norm(x, _GAMMA, _BETA), layer_norm(x, *_MORE)],
            ),
        ),
    ),
    Row(
        "Elementwise operators",
        ("fuse_elementwise",),
        "planner + elementwise template",
        (
            example(
                "any_maps",
                lambda n: [tensor("x", n, 65), tensor("y", 65)],
                lambda e, x, y: op.multiply(
                    e(op.tanh(e(op.add(x, y)))), e(op.exp(e(op.negative(e(op.abs(x))))))
                ),
                lambda x, y: np.tanh(x + y) * np.exp(-np.abs(x)),
            ),
        ),
    ),
    Row(
        "Elementwise groups of the same inputs",
        ("fuse_duplicate_fused_elementwise",),
        "planner: blocks that read one tensor share a kernel of several outputs",
        (
            example(
                "maps_of_the_same",
                lambda n: [tensor("x", n, 65), tensor("y", n, 65)],
                lambda e, x, y: [
                    op.nn.relu(e(op.add(x, y))),
                    op.tanh(e(op.multiply(x, y))),
                    op.nn.silu(x),
                ],
                lambda x, y: [relu(x + y), np.tanh(x * y), x * sigmoid(x)],
            ),
            example(
                "the_same_twice",
                [tensor("x", 33, 65), tensor("y", 33, 65)],
                lambda e, x, y: [
                    op.reshape(e(op.tanh(e(op.add(x, y)))), (65, 33)),
                    op.nn.relu(e(op.tanh(e(op.add(x, y))))),
                ],
                lambda x, y: [np.tanh(x + y).reshape(65, 33), relu(np.tanh(x + y))],
            ),
        ),
    ),
    Row(
        "Equal kernels compiled once",
        ("refine_graph",),
        "groups by structure: equal ones call one function",
        (
            example(
                "layers",
                lambda n: [tensor("x", n, 65)],
                _layers,
                _layers_reference,
                kernels=4,
                bytes=3 * 33 * 65 * 4,
                functions=1,
            ),
        ),
    ),
)
