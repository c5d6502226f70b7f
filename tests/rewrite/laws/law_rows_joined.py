"""Rows of the laws that join products and convolutions of constant weights."""

from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses
from tests.rewrite.laws.law_rows_products import conv

op = relax.op


def joined(axis, *xs):
    return op.concat(list(xs), axis)


SIDE_BY_SIDE = dict(a="n 3 6 5", b="4 3 3 3 const", c="2 3 3 3 const")
IMAGES = dict(a="n 3 6 5", b="4 3 3 3 const", c="n 2 6 5", d="4 2 3 3 const")
ROWS = dict(a="n 5", b="5 3 const", c="n 2", d="2 3 const")


def convs(axis, first=None, second=None):
    """Return a function that writes two convolutions of one image next to each other."""
    first, second = first or conv(), second or conv()
    return lambda a, b, c: joined(axis, first(a, b), second(a, c))


def turns(b):
    return op.reshape(op.permute_dims(op.reshape(b, [5, 3, 2]), [0, 2, 1]), [5, 6])


def in_turns(axis, first, step=2):
    """Return a function that writes part of a product."""
    return lambda a, b: op.strided_slice(op.matmul(a, b), [axis], [first], [6], [step])


CASES: tuple[Case, ...] = (
    holds(
        "concat_of_convolutions",
        **SIDE_BY_SIDE,
        left=convs(1),
        right=lambda a, b, c: conv()(a, joined(0, b, c)),
        dtypes="float32 float16",
    ),
    refuses(
        "concat_of_convolutions",
        "other_axis",
        **SIDE_BY_SIDE | dict(c="4 3 3 3 const"),
        left=convs(2),
    ),
    refuses(
        "concat_of_convolutions", "not_constant", **SIDE_BY_SIDE | dict(c="2 3 3 3"), left=convs(1)
    ),
    refuses(
        "concat_of_convolutions",
        "no_match",
        **SIDE_BY_SIDE,
        left=convs(1, second=conv(dilation=2, padding=2)),
    ),
    refuses(
        "concat_of_convolutions",
        "groups",
        a="n 4 6 5",
        b="4 2 3 3 const",
        c="4 2 3 3 const",
        left=convs(1, conv(groups=2), conv(groups=2)),
    ),
    holds(
        "add_convolutions_of_images",
        **IMAGES,
        left=lambda a, b, c, d: op.add(conv()(a, b), conv()(c, d)),
        right=lambda a, b, c, d: conv()(joined(1, a, c), joined(1, b, d)),
        dtypes="float32",
    ),
    refuses(
        "add_convolutions_of_images",
        "one_image",
        a="n 3 6 5",
        b="4 3 3 3 const",
        d="4 3 3 3 const",
        left=lambda a, b, d: op.add(conv()(a, b), conv()(a, d)),
    ),
    refuses(
        "add_convolutions_of_images",
        "not_constant",
        **IMAGES | dict(d="4 2 3 3"),
        left=lambda a, b, c, d: op.add(conv()(a, b), conv()(c, d)),
    ),
    holds(
        "join_terms",
        **ROWS,
        right=lambda a, b, c, d: op.matmul(joined(1, a, c), joined(0, b, d)),
        dtypes="float32",
    ),
    refuses("join_terms", "not_constant", **ROWS | dict(d="2 3")),
    refuses("join_terms", "not_a_matrix", **ROWS | dict(b="7 5 3 const", d="7 2 3 const")),
    refuses("join_terms", "different_shapes", **ROWS | dict(a="1 5")),
    refuses(
        "join_terms",
        "one_operand",
        a="n 5",
        b="5 3 const",
        d="5 3 const",
        left=lambda a, b, d: op.add(op.matmul(a, b), op.matmul(a, d)),
    ),
    holds(
        "stack_as_concat",
        a="3 n 4",
        b="3 n 4",
        left=lambda a, b: op.stack([a, b], axis=1),
        right=lambda a, b: op.reshape(joined(1, a, b), (3, 2, a.ty.shape[1], 4)),
    ),
    refuses(
        "stack_as_concat",
        "last_axis",
        a="3 n",
        b="3 n",
        left=lambda a, b: op.stack([a, b], axis=-1),
    ),
    holds(
        "columns_in_turns",
        a="7 n 5",
        b="5 6 const",
        left=in_turns(2, 1),
        right=lambda a, b: op.strided_slice(op.matmul(a, turns(b)), [2], [3], [6], [1]),
    ),
    refuses("columns_in_turns", "no_turn", a="n 5", b="5 6 const", left=in_turns(1, 1, 1)),
    refuses("columns_in_turns", "no_turn", a="n 5", b="5 6 const", left=in_turns(1, 2)),
    refuses("columns_in_turns", "no_turn", a="7 6 5", b="5 3 const", left=in_turns(1, 1)),
    refuses("columns_in_turns", "not_constant", a="n 5", b="5 6", left=in_turns(1, 1)),
    refuses("columns_in_turns", "not_a_matrix", a="7 4 5", b="7 5 6 const", left=in_turns(2, 1)),
    holds("scale_weights", a="n 5", s=0.125, b="5 3 const", dtypes="float32"),
    holds("scale_weights", a="7 n 5", s=-0.5, b="5 3 const", dtypes="float32"),
    refuses("scale_weights", "not_exact", a="n 5", s=0.3, b="5 3 const"),
    refuses("scale_weights", "not_exact", a="n 5", s=0.5, b="5 3"),
    refuses("scale_weights", "not_exact", a="n 5", s=0.5, b="5 3 const", dtypes="float16"),
    refuses("scale_weights", "not_exact", a="n 5", s=4.0, b="5 3 const"),
)
