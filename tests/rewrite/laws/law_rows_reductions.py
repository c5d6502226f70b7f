"""Rows of the laws of reductions, means, orders and nested reductions."""

import numpy as np
from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses

op = relax.op
ALL = "float32 float16 int32"


def over(name, axes=-1, keepdims=False):
    """Return a function that writes a reduction."""
    return lambda x: getattr(op, name)(x, axes, keepdims)


def flat(x):
    return op.reshape(x, [x.ty.shape[0]])


total, rows, kept = over("sum"), over("sum", 0), over("sum", keepdims=True)
mean, largest, smallest = over("mean"), over("max"), over("min")
product = over("prod")
shift = dict(a="n 5:int32", s="n 1:int32 0..7", dtypes="int32")

LINEAR: tuple[Case, ...] = (
    holds("reduce_of_scaled", a="n 5", s="n 1", reduce=kept, dtypes=ALL),
    holds("reduce_of_scaled", a="n 5", s=3.0, reduce=total, dtypes=ALL),
    holds(
        "reduce_of_scaled",
        a="n 5",
        s="7 1 1",
        reduce=over("mean", [1, 2], True),
        left=lambda a, s: over("mean", [1, 2], True)(op.multiply(a, s)),
        right=lambda a, s: op.multiply(over("mean", [0, 1], True)(a), s),
    ),
    holds(
        "reduce_of_scaled",
        a="n 5",
        s="n 1",
        reduce=total,
        right=lambda a, s: op.multiply(total(a), flat(s)),
    ),
    holds(  # the sum's axis is another one of an operand of lower rank
        "reduce_of_scaled",
        a="5",
        s="n 1",
        reduce=total,
        right=lambda a, s: op.multiply(total(a), flat(s)),
    ),
    refuses("reduce_of_scaled", "varies", a="n 5", s="5", reduce=total),
    refuses("reduce_of_scaled", "varies", a="n 5", s="n 1", reduce=rows),
    refuses("reduce_of_scaled", "integers", a="n 5", s="n 1", reduce=mean, dtypes="int32"),
    holds("reduce_of_divided", a="n 5", s="n 1", reduce=kept),
    holds("reduce_of_divided", a="n 5", s=0.25, reduce=mean),
    refuses("reduce_of_divided", "lacks_axis", a="5", s="n 1", reduce=rows),
    refuses("reduce_of_divided", "varies", a="n 5", s="5", reduce=total),
    refuses("reduce_of_divided", "integers", a="n 5", s="n 1", reduce=total, dtypes="int32"),
    holds("reduce_of_negative", a="n 5", reduce=total, dtypes=ALL),
    holds("reduce_of_negative", a="n 5", reduce=mean, backwards=True),
    refuses("reduce_of_negative", "integers", a="n 5", reduce=mean, dtypes="int32"),
    holds("sum_of_shifted", **shift, axes=kept),
    holds("sum_of_shifted", **(shift | {"s": "1:int32 0..7"}), axes=kept),
    refuses("sum_of_shifted", "varies", a="n 5", s="5 0..7", axes=total, dtypes="int32"),
    holds("sum_of_offset", a="n 5", s="n 1", axes=kept, n=5, dtypes=ALL),
    holds("sum_of_offset", a="n 5", s=2.0, axes=total, n=5, dtypes=ALL),
    refuses("sum_of_offset", "varies", a="n 5", s="5", axes=total, n=5),
    holds("mean_of_offset", a="n 5", s="n 1", axes=over("mean", keepdims=True)),
    holds("mean_of_offset", a="n 5", s=2.0, axes=mean),
    refuses("mean_of_offset", "varies", a="n 5", s="5", axes=mean),
    refuses("mean_of_offset", "integers", a="n 5", s="n 1", axes=mean, dtypes="int32"),
    holds("add_reduced", a="n 5", b="n 5", reduce=total, dtypes=ALL),
    holds("add_reduced", a="n 5", b="n 5", reduce=mean, backwards=True),
    refuses("add_reduced", "different_shapes", a="n 5", b="n 1", reduce=kept),
    refuses("add_reduced", "integers", a="n 5", b="n 5", reduce=mean, dtypes="int32"),
    holds("subtract_reduced", a="n 5", b="n 5", reduce=total, dtypes=ALL),
    holds("subtract_reduced", a="n 5", b="n 5", reduce=kept, backwards=True),
    refuses("subtract_reduced", "different_shapes", a="n 5", b="n 1", reduce=kept),
)

MEANS: tuple[Case, ...] = (
    holds(
        "mean_to_sum",
        a="n 5",
        axes=mean,
        right=lambda a: op.multiply(total(a), relax.const(np.asarray(0.2), a.ty.dtype)),
    ),
    refuses("mean_to_sum", "integers", a="n 5", axes=mean, dtypes="int32"),
    holds(
        "sum_to_mean",
        a="n 5",
        n=0.2,
        axes=total,
        right=lambda a, n: mean(a),
    ),
    refuses("sum_to_mean", "not_mean", a="n 5", n=0.25, axes=total),
    refuses("sum_to_mean", "integers", a="n 5", n=0, axes=total, dtypes="int32"),
    holds("sum_divided_to_mean", a="n 5", n=5, axes=total, right=lambda a, n: mean(a)),
    refuses("sum_divided_to_mean", "not_mean", a="n 5", n=4, axes=total),
    refuses("sum_divided_to_mean", "integers", a="n 5", n=5, axes=total, dtypes="int32"),
    holds("multiply_products", a="n 5", b="n 5", axes=product, dtypes=ALL),
    holds("multiply_products", a="n 5", b="n 5", axes=product, backwards=True),
    refuses("multiply_products", "different_shapes", a="n 5", b="n 1", axes=over("prod", -1, True)),
    holds(
        "product_of_exp",
        a="n 5",
        axes=product,
        dtypes="float32",
        right=lambda a: op.exp(total(a)),
    ),
    refuses("product_of_exp", "half_precision", a="n 5", axes=product, dtypes="float16 bfloat16"),
)

ORDERS: tuple[Case, ...] = (
    holds("extremum_of_offset", a="n 5", s="n 1", reduce=over("max", -1, True)),
    holds("extremum_of_offset", a="n 5", s=2.0, reduce=smallest),
    refuses("extremum_of_offset", "varies", a="n 5", s="5", reduce=largest),
    refuses("extremum_of_offset", "integers", a="n 5", s="n 1", reduce=largest, dtypes="int8"),
    holds("extremum_of_difference", a="n 5", s="n 1", reduce=over("min", -1, True)),
    holds("extremum_of_difference", a="n 5", s=2.0, reduce=largest),
    refuses("extremum_of_difference", "varies", a="n 5", s="5", reduce=largest),
    refuses("extremum_of_difference", "integers", a="n 5", s="n 1", reduce=largest, dtypes="int8"),
    holds("extremum_of_scaled", a="n 5", s=0.5, reduce=largest),
    holds(
        "extremum_of_scaled",
        a="n 5",
        s="n 1",
        reduce=largest,
        left=lambda a, s: largest(op.multiply(a, op.exp(s))),
        right=lambda a, s: op.multiply(largest(a), op.reshape(op.exp(s), [a.ty.shape[0]])),
    ),
    refuses("extremum_of_scaled", "unknown_sign", a="n 5", s="n 1", reduce=largest),
    refuses("extremum_of_scaled", "unknown_sign", a="n 5", s=-1.0, reduce=largest),
    refuses("extremum_of_scaled", "integers", a="n 5", s=2, reduce=largest, dtypes="int8"),
    holds("extremum_of_divided", a="n 5", s=3.0, reduce=smallest),
    refuses("extremum_of_divided", "unknown_sign", a="n 5", s="n 1", reduce=largest),
    holds("extremum_of_divided", a="n 5", s=2, reduce=largest, dtypes="int8"),
    holds("extremum_of_increasing", a="n 5 -9..9", f=op.exp, reduce=largest),
    holds("extremum_of_increasing", a="n 5", f=op.tanh, reduce=smallest),
    holds("extremum_of_increasing", a="n 5", f=op.floor, reduce=smallest),
    holds(
        "extremum_of_increasing",
        a="n 5",
        f=lambda x: op.astype(x, "float16"),
        reduce=largest,
        dtypes="float32",
    ),
    refuses(
        "extremum_of_increasing",
        "not_monotone",
        a="n 5",
        f=lambda x: op.astype(x, "int8"),
        reduce=largest,
        dtypes="int32",
    ),
    holds("max_of_negative", a="n 5", axes=largest, right=lambda a: op.negative(smallest(a))),
    refuses("max_of_negative", "integers", a="n 5", axes=largest, dtypes="int32"),
    holds("min_of_negative", a="n 5", axes=smallest, right=lambda a: op.negative(largest(a))),
    refuses("min_of_negative", "integers", a="n 5", axes=smallest, dtypes="int32"),
    holds("maximum_of_max", a="n 5", b="n 5", axes=largest, dtypes=ALL),
    holds("maximum_of_max", a="n 5", b="n 5", axes=largest, backwards=True),
    refuses("maximum_of_max", "different_shapes", a="n 5", b="n 1", axes=over("max", -1, True)),
    holds("minimum_of_min", a="n 5", b="n 5", axes=smallest, dtypes=ALL),
    holds("minimum_of_min", a="n 5", b="n 5", axes=smallest, backwards=True),
    refuses("minimum_of_min", "different_shapes", a="n 5", b="n 1", axes=over("min", -1, True)),
)


def nested(first, second, right, **names):
    return holds("nested_reductions", inner=first, outer=second, right=right, **names)


NESTED: tuple[Case, ...] = (
    nested(total, total, lambda a: over("sum", [1, 2])(a), a="n 3 5", dtypes=ALL),
    nested(rows, rows, lambda a: over("sum", [0, 1])(a), a="3 n 5", dtypes=ALL),
    nested(kept, over("sum", 1, True), lambda a: over("sum", [1, 2], True)(a), a="n 3 5"),
    nested(largest, largest, lambda a: over("max", [1, 2])(a), a="n 3 5", dtypes=ALL),
    nested(mean, over("mean", 0), lambda a: over("mean", [0, 2])(a), a="3 n 5"),
    nested(
        over("max", -1, True),
        over("max", 1),
        lambda a: op.reshape(over("max", [1, 2], True)(a), [a.ty.shape[0], 1]),
        a="n 3 5",
    ),
    nested(product, product, lambda a: over("prod", [1, 2])(a), a="n 3 5", dtypes=ALL),
    refuses("nested_reductions", "different_operators", a="n 3 5", inner=total, outer=largest),
    refuses("nested_reductions", "integers", a="n 3 5", inner=mean, outer=mean, dtypes="int32"),
    holds("unit_axes", a="n 1", reduce=total, right=lambda a: flat(a), dtypes=ALL),
    holds("unit_axes", a="n 1", reduce=kept, right=lambda a: a),
    holds(
        "unit_axes",
        a="1 n 1",
        reduce=over("prod", [0, 2]),
        right=lambda a: op.reshape(a, [a.ty.shape[1]]),
    ),
    refuses("unit_axes", "several_elements", a="n 2", reduce=total),
    holds(
        "reduce_of_broadcast",
        a="n 1",
        reduce=kept,
        shape=lambda x: op.broadcast_to(x, [x.ty.shape[0], 5]),
        right=lambda a: op.multiply(a, relax.const(np.asarray(5), a.ty.dtype)),
        dtypes=ALL,
    ),
    holds(
        "reduce_of_broadcast",
        a="n 1",
        reduce=largest,
        shape=lambda x: op.broadcast_to(x, [3, x.ty.shape[0], 5]),
        right=lambda a: op.broadcast_to(flat(a), [3, a.ty.shape[0]]),
        dtypes=ALL,
    ),
    holds(
        "reduce_of_broadcast",
        a="n 5",
        reduce=over("sum", [0, 2]),
        shape=lambda x: op.broadcast_to(x, [3, x.ty.shape[0], 5]),
        right=lambda a: op.multiply(
            op.reshape(kept(a), [a.ty.shape[0]]), relax.const(np.asarray(3), a.ty.dtype)
        ),
        dtypes=ALL,
    ),
    refuses(
        "reduce_of_broadcast",
        "nothing_repeated",
        a="n 5",
        reduce=largest,
        shape=lambda x: op.broadcast_to(x, [3, x.ty.shape[0], 5]),
    ),
    holds(
        "reduce_of_permuted",
        a="3 n 5",
        reduce=rows,
        permutation=lambda x: op.permute_dims(x, [1, 0, 2]),
        right=lambda a: over("sum", 1)(a),
        dtypes=ALL,
    ),
    holds(
        "reduce_of_permuted",
        a="n 5",
        reduce=over("max", 0, True),
        permutation=lambda x: op.permute_dims(x),
        right=lambda a: op.reshape(over("max", 1, True)(a), [1, a.ty.shape[0]]),
    ),
    refuses(
        "reduce_of_permuted",
        "axes_reordered",
        a="3 n 5",
        reduce=total,
        permutation=lambda x: op.permute_dims(x, [1, 0, 2]),
    ),
)

CASES = (*LINEAR, *MEANS, *ORDERS, *NESTED)
