"""Concatenations, splits and slices, written and read by other kernels."""

import numpy as np
from tvm import relax, tirx
from tvm.relax import op

from .row import Row, example, layer_norm, relu, tensor, weight

_W, _V = weight(37, 48), weight(65, 17)
_GAMMA, _BETA = weight(65), weight(65)
_MANY, _SOME = 40, 12


def _const(x):
    return relax.const(x)


def _pieces(e, x, number, axis):
    parts = e(op.split(x, number, axis=axis))
    return [e(relax.TupleGetItem(parts, i)) for i in range(number)]


def _norm(e, x):
    return e(op.nn.layer_norm(x, _const(_GAMMA), _const(_BETA), axes=-1, epsilon=1e-5))


def _swapped(e, x):
    a, b = _pieces(e, x, 2, 1)
    return op.concat([e(op.tanh(b)), e(op.nn.relu(a))], axis=1)


def _product_and_map(e, x, y):
    return op.concat([e(op.matmul(x, _const(_V))), e(op.nn.relu(y))], axis=1)


ROWS = (
    Row(
        "Concatenations written in place",
        ("transform_memory_ops", "transform_strided_ops", "concatenate_tanh"),
        "planner: a concatenation is a condition on the index; products write their part in place, "
        "on GPUs the other parts as well",
        (
            example(
                "concat_of_concats",
                [tensor("x", 33, 5), tensor("y", 33, 6), tensor("z", 33, 7)],
                lambda e, x, y, z: op.concat([e(op.concat([x, y], axis=1)), z], axis=1),
                lambda x, y, z: np.concatenate([x, y, z], 1),
            ),
            example(
                "concat_tanh",
                lambda n: [tensor("x", n, 5), tensor("y", n, 6)],
                lambda e, x, y: op.tanh(e(op.concat([x, y], axis=1))),
                lambda x, y: np.tanh(np.concatenate([x, y], 1)),
            ),
            example(
                "concat_of_split",
                [tensor("x", 33, 66)],
                lambda e, x: op.nn.relu(e(op.concat(_pieces(e, x, 3, 1), axis=1))),
                relu,
            ),
            example(
                "concat_of_product",
                [tensor("x", 33, 65), tensor("y", 33, 7)],
                _product_and_map,
                lambda x, y: np.concatenate([x @ _V, relu(y)], 1),
                kernels=2,
            ),
            example(
                "concat_of_norm",
                lambda n: [tensor("x", n, 65), tensor("y", n, 7)],
                lambda e, x, y: op.concat([_norm(e, x), y], axis=1),
                lambda x, y: np.concatenate([layer_norm(x, _GAMMA, _BETA), y], 1),
            ),
            example(
                "product_of_concat",
                [tensor("x", 33, 30), tensor("y", 33, 7)],
                lambda e, x, y: op.matmul(e(op.concat([x, y], axis=1)), _const(_W)),
                lambda x, y: np.concatenate([x, y], 1) @ _W,
                kernels=2,
                bytes=4 * 33 * 37,
            ),
        ),
    ),
    Row(
        "Splits and slices read in place",
        ("transform_memory_ops", "transform_strided_ops"),
        "planner: a slice is an index",
        (
            example(
                "split_to_maps",
                lambda n: [tensor("x", n, 66)],
                _swapped,
                lambda x: np.concatenate([np.tanh(x[:, 33:]), relu(x[:, :33])], 1),
            ),
            example(
                "slice_to_product",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.matmul(e(op.strided_slice(x, [1], [3], [40])), _const(_W)),
                lambda x: x[:, 3:40] @ _W,
            ),
            example(
                "slices_to_norm",
                [tensor("x", 33, 130)],
                lambda e, x: _norm(
                    e,
                    e(
                        op.add(
                            e(op.strided_slice(x, [1], [0], [130], [2])),
                            e(op.strided_slice(x, [1], [1], [130], [2])),
                        )
                    ),
                ),
                lambda x: layer_norm(x[:, ::2] + x[:, 1::2], _GAMMA, _BETA),
            ),
            example(
                "split_leaving",
                [tensor("x", 33, 66)],
                lambda e, x: _pieces(e, x, 3, 1),
                lambda x: np.split(x, 3, 1),
            ),
            example(
                "slice_of_slice",
                [tensor("x", 33, 66)],
                lambda e, x: op.strided_slice(
                    e(op.strided_slice(x, [1], [3], [63], [2])), [0, 1], [2, 1], [30, 20], [3, 2]
                ),
                lambda x: x[:, 3:63:2][2:30:3, 1:20:2],
            ),
        ),
    ),
    Row(
        "Slices from places that depend on the shape",
        ("dynamic_slice",),
        "planner: bounds of symbolic extent are index expressions",
        (
            example(
                "last_rows",
                lambda n: [tensor("x", n, 260)],
                lambda e, x: op.nn.relu(
                    e(op.strided_slice(x, [0], [x.ty.shape[0] - 29], [x.ty.shape[0]]))
                ),
                lambda x: relu(x[-29:]),
            ),
            example(
                "first_half",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.nn.relu(
                    e(op.strided_slice(x, [0], [tirx.const(0, "int64")], [x.ty.shape[0] // 2]))
                ),
                lambda x: relu(x[: len(x) // 2]),
            ),
        ),
    ),
    Row(
        "Slices put into another tensor",
        ("slice_scatter", "slice_reshape_scatter"),
        "planner: both are conditions on the index",
        (
            example(
                "slices_concatenated",
                lambda n: [tensor("x", n, 65), tensor("y", n, 33)],
                lambda e, x, y: op.concat(
                    [
                        e(op.strided_slice(x, [1], [5], [30])),
                        e(op.strided_slice(y, [1], [2], [9])),
                        e(op.strided_slice(x, [1], [40], [65])),
                    ],
                    axis=1,
                ),
                lambda x, y: np.concatenate([x[:, 5:30], y[:, 2:9], x[:, 40:]], 1),
            ),
            example(
                "slices_reshaped_concatenated",
                [tensor("x", 33, 65), tensor("y", 33, 4, 3)],
                lambda e, x, y: op.concat(
                    [
                        e(
                            op.reshape(
                                e(op.tanh(e(op.strided_slice(x, [1], [5], [29])))), (33, 8, 3)
                            )
                        ),
                        y,
                    ],
                    axis=1,
                ),
                lambda x, y: np.concatenate([np.tanh(x[:, 5:29]).reshape(33, 8, 3), y], 1),
            ),
            example(
                "slice_scatter",
                [tensor("x", 33, 65), tensor("y", 33, 24)],
                lambda e, x, y: op.slice_scatter(
                    x, e(op.nn.relu(y)), _index(5), _index(29), _index(1), axis=1
                ),
                lambda x, y: np.concatenate([x[:, :5], relu(y), x[:, 29:]], 1),
            ),
        ),
    ),
    Row(
        "Over-large concatenations and splits",
        ("split_large_concat_ops", "split_large_split_ops", "split_large_slice_scatter_ops"),
        "one kernel of up to 120 parameters, which a launch passes; beyond, the fallback takes the "
        "operator alone",
        (
            example(
                "concat_of_many",
                [tensor(f"x{i}", 33, 3) for i in range(_MANY)],
                lambda e, *x: op.concat(list(x), axis=1),
                lambda *x: np.concatenate(x, 1),
            ),
            example(
                "concat_of_many_maps",
                [tensor(f"x{i}", 33, 3) for i in range(_SOME)],
                lambda e, *x: op.concat([e(op.nn.relu(v)) for v in x], axis=1),
                lambda *x: relu(np.concatenate(x, 1)),
            ),
            example(
                "split_into_many",
                [tensor("x", 33, 3 * _MANY)],
                lambda e, x: _pieces(e, x, _MANY, 1),
                lambda x: np.split(x, _MANY, 1),
            ),
        ),
    ),
)


def _index(value):
    return relax.prim_value(value)
