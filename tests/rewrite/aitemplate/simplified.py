"""Operators that need no kernel of their own, or are not needed at all."""

import numpy as np
from tvm import relax
from tvm.relax import op

from .row import Row, example, relu, tensor, weight

_W = weight(65, 33)
_C, _D = weight(33, 65), weight(65)


def _const(x):
    return relax.const(x, "float32")


def _nothing(e, x):
    """Every form of doing nothing."""
    x = e(op.concat([x], axis=0))
    x = e(op.strided_slice(x, [0, 1], [0, 0], [33, 65]))
    x = e(op.broadcast_to(x, (33, 65)))
    x = e(op.permute_dims(x, [0, 1]))
    x = e(op.reshape(x, (33, 65)))
    x = e(op.repeat(x, 1, 0))
    x = e(op.tile(x, (1, 1)))
    x = e(op.astype(x, "float32"))
    return e(op.flip(e(op.flip(x, 1)), 1))


def _neutral(e, x):
    x = e(op.multiply(e(op.add(x, _const(0.0))), _const(1.0)))
    return e(op.divide(e(op.subtract(x, _const(0.0))), _const(1.0)))


def _dead(e, x):
    e(op.matmul(e(op.exp(x)), _const(_W)))
    parts = e(op.split(x, 5, axis=1))
    return op.nn.relu(e(relax.TupleGetItem(parts, 3)))


ROWS = (
    Row(
        "Operators that do nothing",
        ("remove_no_ops",),
        "planner: an elementwise group computes at the last one's index; reshapes that are left "
        "alone are views",
        (
            example(
                "nothing_then_relu",
                [tensor("x", 33, 65)],
                lambda e, x: op.nn.relu(_nothing(e, x)),
                relu,
            ),
            example(
                "nothing_then_product",
                [tensor("x", 33, 65)],
                lambda e, x: op.matmul(_nothing(e, x), _const(_W)),
                lambda x: x @ _W,
            ),
            example(
                "expand_then_add",
                lambda n: [tensor("x", n, 65), tensor("y", 1, 65)],
                lambda e, x, y: op.add(x, e(op.broadcast_to(y, (x.ty.shape[0], 65)))),
                lambda x, y: x + y,
            ),
            example(
                "concat_with_nothing",
                [tensor("x", 33, 65), tensor("y", 0, 65)],
                lambda e, x, y: op.nn.relu(e(op.concat([x, y], axis=0))),
                lambda x, y: relu(x),
            ),
        ),
    ),
    Row(
        "Operators that nobody reads",
        ("remove_unused_ops",),
        "TVM's DeadCodeElimination, and kernels that write only what is read",
        (
            example(
                "dead_product_and_pieces", [tensor("x", 33, 65)], _dead, lambda x: relu(x[:, 39:52])
            ),
        ),
    ),
    Row(
        "Neutral elementwise operators",
        ("remove_elementwise_no_ops",),
        "laws of neutral elements, neutral_*",
        (
            example(
                "neutral_alone",
                [tensor("x", 33, 65)],
                lambda e, x: op.reshape(_neutral(e, x), (65, 33)),
                lambda x: x.reshape(65, 33),
                kernels=0,
            ),
            example(
                "neutral_between_products",
                [tensor("x", 33, 65)],
                lambda e, x: op.matmul(_neutral(e, x), _const(_W)),
                lambda x: x @ _W,
            ),
        ),
    ),
    Row(
        "Constants computed at compile time",
        ("constant_folding", "bind_constants"),
        "FoldConstants",
        (
            example(
                "computed_weight",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.matmul(
                    x, e(op.permute_dims(e(op.multiply(e(op.exp(_const(_C))), _const(_D)))))
                ),
                lambda x: x @ (np.exp(_C) * _D).T,
            ),
        ),
    ),
    Row(
        "Chains of views",
        ("merge_view_ops",),
        "PlanLayout: a reshape is a view; inside a group an index",
        (
            example(
                "views",
                [tensor("x", 33, 65)],
                lambda e, x: op.squeeze(
                    e(op.expand_dims(e(op.flatten(e(op.reshape(x, (11, 195))))), 0))
                ),
                lambda x: x.reshape(-1),
                kernels=0,
            ),
            example(
                "views_of_symbolic_shape",
                lambda n: [tensor("x", n, 65, 4)],
                lambda e, x: op.exp(
                    e(op.reshape(e(op.reshape(x, (x.ty.shape[0] * 65, 4))), (x.ty.shape[0], 260)))
                ),
                lambda x: np.exp(x.reshape(-1, 260)),
            ),
        ),
    ),
    Row(
        "Views moved before concatenations",
        ("move_view_op_before_concat",),
        "planner: concatenation and view are one index expression",
        (
            example(
                "concat_view_concat",
                [tensor("x", 33, 5), tensor("y", 33, 7), tensor("z", 33, 2, 3)],
                lambda e, x, y, z: op.concat(
                    [e(op.reshape(e(op.concat([x, y], axis=1)), (33, 4, 3))), z], axis=1
                ),
                lambda x, y, z: np.concatenate([np.concatenate([x, y], 1).reshape(33, 4, 3), z], 1),
            ),
            example(
                "concat_of_maps_then_view",
                lambda n: [tensor("x", n, 5), tensor("y", n, 7)],
                lambda e, x, y: op.reshape(
                    e(op.concat([e(op.exp(x)), e(op.tanh(y))], axis=1)), (x.ty.shape[0], 4, 3)
                ),
                lambda x, y: np.concatenate([np.exp(x), np.tanh(y)], 1).reshape(-1, 4, 3),
            ),
        ),
    ),
    Row(
        "Permutes that move only axes of one element",
        ("transform_permute_to_reshape",),
        "PlanLayout: such a permute is a view",
        (
            example(
                "permute_of_ones",
                [tensor("x", 1, 33, 1, 65)],
                lambda e, x: op.permute_dims(x, [1, 0, 3, 2]),
                lambda x: x.transpose(1, 0, 3, 2),
                kernels=0,
            ),
            example(
                "permute_of_ones_symbolic",
                lambda n: [tensor("x", 1, n, 1, 65)],
                lambda e, x: op.permute_dims(x, [1, 2, 0, 3]),
                lambda x: x.transpose(1, 2, 0, 3),
                kernels=0,
            ),
        ),
    ),
    Row(
        "Permutes that undo each other",
        ("eliminate_permutations",),
        "laws permute_twice and permute_to_itself; within a group, permutes are indices",
        (
            example(
                "permute_twice",
                [tensor("x", 5, 33, 65)],
                lambda e, x: op.nn.relu(
                    e(op.permute_dims(e(op.permute_dims(x, [2, 0, 1])), [1, 2, 0]))
                ),
                relu,
            ),
            example(
                "permute_twice_alone",
                [tensor("x", 5, 33, 65)],
                lambda e, x: op.permute_dims(e(op.permute_dims(x, [2, 0, 1])), [1, 2, 0]),
                lambda x: x,
                kernels=0,
            ),
        ),
    ),
    Row(
        "Outputs that are inputs, or one another",
        ("outputs that alias inputs",),
        "TVM's virtual machine returns the tensor itself",
        (
            example(
                "input_among_outputs",
                [tensor("x", 33, 65)],
                lambda e, x: [x, op.nn.relu(x)],
                lambda x: [x, relu(x)],
            ),
            example(
                "output_twice",
                [tensor("x", 33, 65)],
                lambda e, x: (lambda y: [y, y, op.reshape(y, (65, 33))])(e(op.nn.relu(x))),
                lambda x: [relu(x), relu(x), relu(x).reshape(65, 33)],
            ),
            example(
                "view_of_an_input",
                lambda n: [tensor("x", n, 65)],
                lambda e, x: op.reshape(x, (x.ty.shape[0] * 65,)),
                lambda x: x.reshape(-1),
                kernels=0,
            ),
        ),
    ),
    Row(
        "One extent under several names",
        ("dedup_symbolic_name",),
        "TVM's arithmetic analyzer proves extents equal",
        (
            example(
                "extent_written_twice",
                lambda n: [tensor("x", n, 4, 6), tensor("y", n, 24)],
                lambda e, x, y: op.exp(
                    e(
                        op.add(
                            e(op.reshape(x, (x.ty.shape[0] * 2 * 2, 6))),
                            e(op.reshape(y, (4 * y.ty.shape[0], 6))),
                        )
                    )
                ),
                lambda x, y: np.exp(x.reshape(-1, 6) + y.reshape(-1, 6)),
            ),
        ),
    ),
)
