"""Rows of the laws of matrix products, convolutions and moves."""

import numpy as np
from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses

op = relax.op
ALL = "float32 float16 int32"
sides = dict(a="n 5", b="n 5", c="5 3")


def over(name, axes=-1, keepdims=False):
    """Return a function that writes a reduction."""
    return lambda x: getattr(op, name)(x, axes, keepdims)


def matmul32(a, b):
    return op.matmul(a, b, out_dtype="float32")


def both(law, *, dtypes=ALL, **names):
    """Write rows of both directions."""
    return (
        holds(law, dtypes=dtypes, **names),
        holds(law, dtypes=dtypes, backwards=True, **names),
    )


def mixed(law, left, **names):
    return refuses(law, "mixed_types", left=left, dtypes="float16", **names)


LOW_RANK = dict(a="n 5", b="5 3 const", c="5 1 const", d="1 3 const")
LINEAR: tuple[Case, ...] = (
    *both("add_rows", **sides),
    *both("add_rows", a="7 n 5", b="n 5", c="5 3"),
    holds("add_rows", a="5", b="n 5", c="5 3", backwards=True),
    refuses("add_rows", "vector", a="5", b="n 5", c="7 5 3", backwards=True),
    refuses("add_rows", "different_shapes", a="n 5", b="n 1", c="5 3", backwards=True),
    mixed("add_rows", lambda a, b, c: op.add(matmul32(a, c), matmul32(b, c)), **sides),
    holds("subtract_rows", dtypes=ALL, **sides),
    holds("subtract_rows", dtypes="int32", backwards=True, **sides),
    refuses("subtract_rows", "may_cancel", backwards=True, **sides),
    refuses("subtract_rows", "different_shapes", a="4 5", b="4 1 const", c="5 3", backwards=True),
    *both("add_columns", a="n 5", b="5 3", c="5 3"),
    *both("add_columns", a="n 5", b="7 5 3", c="5 3"),
    refuses("add_columns", "different_shapes", a="n 5", b="5 3", c="5 1", backwards=True),
    refuses("add_columns", "vector", a="n 5", b="5 5", c="5", backwards=True),
    holds("subtract_columns", a="n 5", b="5 3", c="5 3", dtypes=ALL),
    holds("subtract_columns", a="n 5", b="5 3", c="5 3", dtypes="int32", backwards=True),
    refuses("subtract_columns", "may_cancel", a="n 5", b="5 3", c="5 3", backwards=True),
    refuses("subtract_columns", "vector", a="n 5", b="5 5", c="5", dtypes="int32", backwards=True),
    *both("associate_matmul", a="n 5", b="5 3", c="3 7"),
    holds("merge_low_rank", dtypes="float32", **LOW_RANK),
    refuses("merge_low_rank", "not_constant", **{**LOW_RANK, "c": "5 1"}),
    refuses("merge_low_rank", "different_shapes", **{**LOW_RANK, "b": "5 1 const"}),
    refuses("merge_low_rank", "not_a_matrix", **{**LOW_RANK, "c": "7 5 1 const"}),
    *both("associate_matmul", a="7 n 5", b="5 3 const", c="7 3 4 const"),
    *both("associate_matmul", a="4 5", b="5 3", c="3"),
    *both("associate_matmul", a="5", b="5 3", c="3 4"),
    refuses("associate_matmul", "vector", a="7 4 5", b="5 3", c="3"),
    refuses("associate_matmul", "large_constant", a="n 900", b="900 2 const", c="2 900 const"),
    refuses(
        "associate_matmul",
        "mixed_types",
        a="n 5",
        b="5 3",
        c="3 7:float32",
        left=lambda a, b, c: matmul32(matmul32(a, b), c),
        dtypes="float16",
    ),
    *both("transposed_product", a="5 n", b="3 5", swap=lambda x: op.permute_dims(x), dtypes=ALL),
    *both("transposed_product", a="7 5 n", b="7 3 5", swap=lambda x: op.permute_dims(x, [0, 2, 1])),
    refuses(
        "transposed_product",
        "not_transposed",
        a="5 5 5",
        b="5 5 5",
        swap=lambda x: op.permute_dims(x, [1, 0, 2]),
    ),
    refuses(
        "transposed_product",
        "batches",
        a="5 n",
        b="7 3 5",
        left=lambda a, b: op.permute_dims(op.matmul(b, a), [0, 2, 1]),
        backwards=True,
    ),
    holds("sum_of_product", a="n 5", b="5 3", axes=over("sum", -1, True), dtypes=ALL),
    holds(
        "sum_of_product",
        a="n 5",
        b="5 3",
        axes=over("sum"),
        right=lambda a, b: op.reshape(op.matmul(a, over("sum", -1, True)(b)), [a.ty.shape[0]]),
    ),
    refuses("sum_of_product", "other_axes", a="7 n 5", b="5 3", axes=over("sum", 0)),
    refuses("sum_of_product", "vector", a="n 5", b="5", axes=over("sum")),
    mixed(
        "sum_of_product",
        lambda a, b: over("sum")(matmul32(a, b)),
        a="n 5",
        b="5 3",
    ),
    holds("sum_of_product_rows", a="n 5", b="5 3", axes=over("sum", 0, True), dtypes=ALL),
    refuses("sum_of_product_rows", "other_axes", a="n 5", b="5 3", axes=over("sum", 1)),
)

SCALED: tuple[Case, ...] = (
    *both("scale_rows", a="n 5", b="5 3", s="n 1"),
    *both("scale_rows", a="7 n 5", b="5 3", s=0.5, dtypes="float32 float16"),
    refuses("scale_rows", "varies", a="n 5", b="5 3", s="5"),
    refuses("scale_rows", "larger_factor", a="n 5", b="5 3", s="7 n 1"),
    refuses("scale_rows", "larger_factor", a="1 5", b="5 3", s="n 1", backwards=True),
    refuses("scale_rows", "vector", a="5", b="5 3", s=2.0),
    mixed("scale_rows", lambda a, b, s: matmul32(op.multiply(a, s), b), a="n 5", b="5 3", s="n 1"),
    *both("divide_rows", a="n 5", b="5 3", s="n 1", dtypes="float32 float16"),
    refuses("divide_rows", "varies", a="n 5", b="5 3", s="5"),
    refuses("divide_rows", "integers", a="n 5", b="5 3", s="n 1", dtypes="int32"),
    *both("scale_columns", a="n 5", b="5 3", s="3"),
    *both("scale_columns", a="n 5", b="5 3 const", s="1 3 const"),
    refuses("scale_columns", "varies", a="n 5", b="5 3", s="5 1"),
    refuses("scale_columns", "larger_factor", a="n 5", b="5 3", s="7 1 3"),
    *both("divide_columns", a="n 5", b="5 3", s="3", dtypes="float32 float16"),
    refuses("divide_columns", "varies", a="n 5", b="5 3", s="5 1"),
    refuses("divide_columns", "integers", a="n 5", b="5 3", s="3", dtypes="int32"),
    holds(
        "scale_terms",
        a="n 5",
        b="5 3",
        s="5",
        diagonal=lambda x: op.reshape(x, [5, 1]),
        dtypes=ALL,
    ),
    refuses("scale_terms", "not_along_k", a="n 5", b="5 3", s="n 1"),
    refuses("scale_terms", "larger_factor", a="n 1", b="5 3", s="5"),
    refuses("scale_terms", "batches", a="7 n 5", b="5 3", s="7 1 5"),
    refuses("scale_terms", "vector", a="5", b="5 3", s="5"),
    holds(
        "scale_terms_of_weights",
        a="n 5",
        b="5 3",
        s="5 1",
        diagonal=lambda x: op.reshape(x, [5]),
        dtypes=ALL,
    ),
    refuses("scale_terms_of_weights", "not_along_k", a="n 5", b="5 3", s="3"),
    refuses("scale_terms_of_weights", "larger_factor", a="n 5", b="1 3", s="5 1"),
    refuses("scale_terms_of_weights", "batches", a="n 5", b="7 5 3", s="7 5 1"),
)

SPECIAL: tuple[Case, ...] = (
    holds("times_identity", a="n 5", k=np.eye(5), dtypes=ALL),
    refuses("times_identity", "not_identity", a="n 5", k=np.eye(5)[::-1]),
    refuses("times_identity", "not_identity", a="n 5", k="5 5 const"),
    holds("identity_times", a="5 n", k=np.eye(5), dtypes=ALL),
    refuses("identity_times", "not_identity", a="5 n", k=2 * np.eye(5)),
    holds(
        "times_zero",
        a="n 5",
        left=lambda a: op.matmul(a, relax.const(np.zeros((5, 3)), a.ty.dtype)),
        right=lambda a: op.broadcast_to(relax.const(0, a.ty.dtype), [a.ty.shape[0], 3]),
        dtypes=ALL,
    ),
    refuses(
        "times_zero",
        "no_match",
        a="n 5",
        left=lambda a: op.matmul(a, relax.const(np.ones((5, 3)), a.ty.dtype)),
    ),
    holds(
        "zero_times",
        a="5 n",
        left=lambda a: op.matmul(relax.const(np.zeros((3, 5)), a.ty.dtype), a),
        right=lambda a: op.broadcast_to(relax.const(0, a.ty.dtype), [3, a.ty.shape[1]]),
        dtypes=ALL,
    ),
    refuses(
        "zero_times",
        "no_match",
        a="5 n",
        left=lambda a: op.matmul(relax.const(np.ones((3, 5)), a.ty.dtype), a),
    ),
    holds("times_ones", a="n 5", k=np.ones((5, 1)), right=lambda a, k: over("sum", 1, True)(a)),
    holds("times_ones", a="n 5", k=np.ones(5), right=lambda a, k: over("sum")(a), dtypes=ALL),
    refuses("times_ones", "not_ones", a="n 5", k=np.full((5, 1), 2.0)),
    refuses("times_ones", "not_ones", a="n 5", k=np.ones((5, 2))),
    holds("ones_times", a="5 n", k=np.ones((1, 5)), right=lambda a, k: over("sum", 0, True)(a)),
    refuses("ones_times", "not_ones", a="5 n", k=np.full((1, 5), 2.0)),
    holds(
        "times_equal_parts",
        a="n 4",
        k=np.full((4, 1), 0.25),
        right=lambda a, k: over("mean", 1, True)(a),
    ),
    refuses("times_equal_parts", "not_ones", a="n 4", k=np.full((4, 1), 0.5)),
    holds(
        "equal_parts_times",
        a="4 n",
        k=np.full((1, 4), 0.25),
        right=lambda a, k: over("mean", 0, True)(a),
    ),
    refuses("equal_parts_times", "not_ones", a="4 n", k=np.full((1, 4), 0.5)),
)


def conv(**attrs):
    """Return a function that writes a convolution."""
    attrs.setdefault("padding", 1)
    return lambda x, w: op.nn.conv2d(x, w, **attrs)


def along(*shape):
    return lambda x: op.reshape(x, list(shape))


nhwc = dict(data_layout="NHWC", kernel_layout="HWIO")
CONVOLUTIONS: tuple[Case, ...] = (
    holds(
        "scale_output_channels",
        a="n 3 6 5",
        b="4 3 3 3 const",
        s="4 1 1 const",
        conv=conv(strides=2),
        channels=along(4, 1, 1, 1),
        dtypes="float32 float16",
    ),
    holds(
        "scale_output_channels",
        a="n 6 5 3",
        b="3 3 3 4",
        s="4",
        conv=conv(**nhwc),
        channels=along(1, 1, 1, 4),
    ),
    holds(
        "scale_output_channels",
        a="n 3 6 5",
        b="3 4 3 3",
        s="4 1 1",
        conv=lambda x, w: op.nn.conv2d_transpose(x, w, padding=1, strides=2),
        channels=along(1, 4, 1, 1),
    ),
    refuses(
        "scale_output_channels",
        "groups",
        a="n 4 6 5",
        b="4 2 3 3",
        s="4 1 1",
        conv=lambda x, w: op.nn.conv2d_transpose(x, w, groups=2),
    ),
    refuses("scale_output_channels", "varies", a="2 3 6 5", b="4 3 3 3", s="5", conv=conv()),
    refuses(
        "scale_output_channels",
        "larger_factor",
        a="1 3 6 5",
        b="4 3 3 3",
        s="7 1 4 1 1",
        conv=conv(),
    ),
    refuses(
        "scale_output_channels",
        "layout",
        a="2 3 6 5",
        b="2 3 3 3 2",
        s=2.0,
        conv=conv(kernel_layout="OIHW2o"),
    ),
    holds(
        "scale_input_channels",
        a="n 3 6 5",
        b="4 3 3 3",
        s="3 1 1",
        conv=conv(),
        channels=along(1, 3, 1, 1),
        dtypes="float32 float16",
    ),
    holds(
        "scale_input_channels",
        a="n 4 6 5",
        b="4 1 3 3",
        s="4 1 1",
        conv=conv(groups=4),
        channels=along(4, 1, 1, 1),
    ),
    refuses(
        "scale_input_channels", "groups", a="n 4 6 5", b="4 2 3 3", s="4 1 1", conv=conv(groups=2)
    ),
    refuses("scale_input_channels", "varies", a="n 3 6 5", b="4 3 3 3", s="n 1 1 1", conv=conv()),
    refuses(
        "scale_input_channels", "larger_factor", a="1 3 6 5", b="4 3 3 3", s="7 3 1 1", conv=conv()
    ),
    *both("add_convolutions", a="n 3 6 5", b="4 3 3 3", c="n 3 6 5", conv=conv(), dtypes="float32"),
    refuses(
        "add_convolutions",
        "different_shapes",
        a="n 3 6 5",
        b="4 3 3 3",
        c="1 3 6 5",
        conv=conv(),
    ),
    holds(
        "subtract_convolutions",
        a="n 3 6 5",
        b="4 3 3 3",
        c="n 3 6 5",
        conv=conv(),
        dtypes="float32",
    ),
    holds("subtract_filters", a="n 3 6 5", b="4 3 3 3", c="4 3 3 3", conv=conv(), dtypes="float32"),
    *both("add_filters", a="n 3 6 5", b="4 3 3 3", c="4 3 3 3", conv=conv(), dtypes="float32"),
    refuses(
        "add_filters",
        "different_shapes",
        a="n 3 6 5",
        b="4 3 3 3",
        c="1 3 3 3",
        conv=conv(),
    ),
)

MOVES: tuple[Case, ...] = (
    holds(
        "reshape_twice",
        a="4 6",
        first=lambda x: op.reshape(x, [4, 2, 3]),
        second=lambda x: op.flatten(x),
        right=lambda a: op.reshape(a, [24]),
        dtypes=ALL,
    ),
    holds(
        "reshape_twice",
        a="n 5",
        first=lambda x: op.expand_dims(x, 1),
        second=lambda x: op.squeeze(x, [1]),
        right=lambda a: a,
    ),
    refuses(
        "reshape_twice", "no_match", a="4 6", left=lambda a: op.reshape(op.permute_dims(a), [24])
    ),
    holds("reshape_to_itself", a="n 5", second=lambda x: op.reshape(x, [-1, 5]), dtypes=ALL),
    holds("reshape_to_itself", a="n 5", second=lambda x: op.astype(x, x.ty.dtype), dtypes=ALL),
    refuses("reshape_to_itself", "another_type", a="5 n", second=lambda x: op.reshape(x, [-1, 5])),
    holds(
        "permute_twice",
        a="n 3 5",
        first=lambda x: op.permute_dims(x, [1, 2, 0]),
        second=lambda x: op.permute_dims(x, [0, 2, 1]),
        right=lambda a: op.permute_dims(a, [1, 0, 2]),
        dtypes=ALL,
    ),
    holds(
        "permute_twice",
        a="n 3 5",
        first=lambda x: op.permute_dims(x, [1, 2, 0]),
        second=lambda x: op.permute_dims(x, [2, 0, 1]),
        right=lambda a: a,
    ),
    refuses(
        "permute_twice",
        "no_match",
        a="4 6",
        left=lambda a: op.permute_dims(op.reshape(a, [8, 3]), [1, 0]),
    ),
    holds("permute_to_itself", a="n 5", second=lambda x: op.permute_dims(x, [0, 1]), dtypes=ALL),
    refuses("permute_to_itself", "moves_axes", a="5 n", second=lambda x: op.permute_dims(x)),
    holds(
        "broadcast_twice",
        a="1 n",
        first=lambda x: op.broadcast_to(x, [3, x.ty.shape[1]]),
        second=lambda x: op.broadcast_to(x, [7, 3, 29]),
        dtypes=ALL,
    ),
    refuses(
        "broadcast_twice",
        "no_match",
        a="1 6",
        left=lambda a: op.broadcast_to(op.permute_dims(a), [6, 6]),
    ),
)

CASES = (*LINEAR, *SCALED, *SPECIAL, *CONVOLUTIONS, *MOVES)
