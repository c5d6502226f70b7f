"""Rows of the laws that make one convolution of several."""

import numpy as np
from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses
from tests.rewrite.laws.law_rows_products import conv

op = relax.op
PARALLEL = dict(a="n 3 6 5", b="4 3 3 3 const", c="4 3 1 1 const")
OWN = dict(a="n 3 6 5", b="3 3 3 3 const")
POINT_BEHIND = dict(a="n 3 6 5", b="4 3 3 3 const", c="2 4 1 1 const")
POINT_BEFORE = dict(a="n 3 6 5", b="4 3 1 1 const", c="2 4 3 3 const")


IDENTITY = np.zeros((3, 3, 3, 3), "float32")
IDENTITY[range(3), range(3), 1, 1] = 1
OF_GROUPS = np.zeros((4, 2, 3, 3), "float32")
OF_GROUPS[range(4), [0, 1, 0, 1], 1, 1] = 1


def middle(axis, x, change):
    """Change the second of three places along an axis."""
    parts = [op.strided_slice(x, [axis], [n], [n + 1]) for n in range(3)]
    return op.concat([parts[0], change(parts[1]), parts[2]], axis)


def plus(c):
    return lambda x: op.add(x, c)


def behind(b, c):
    rows = op.matmul(op.reshape(c, [2, 4]), op.reshape(b, [4, 27]))
    return op.reshape(rows, [2, 3, 3, 3])


def before(b, c):
    pixels = op.matmul(op.permute_dims(c, [0, 2, 3, 1]), op.reshape(b, [4, 3]))
    return op.permute_dims(pixels, [0, 3, 1, 2])


def parallel(first=None, second=None):
    first, second = first or conv(), second or conv(padding=0)
    return lambda a, b, c: op.add(first(a, b), second(a, c))


def in_a_row(inner, outer):
    return lambda a, b, c: outer(inner(a, b), c)


CASES: tuple[Case, ...] = (
    holds(
        "add_filters_of_windows",
        **PARALLEL,
        left=parallel(),
        right=lambda a, b, c: conv()(
            a, middle(2, b, lambda x: middle(3, x, lambda y: op.add(y, c)))
        ),
        dtypes="float32",
    ),
    holds(
        "add_filters_of_windows",
        **PARALLEL | dict(c="4 3 3 1 const"),
        left=parallel(conv(strides=2), conv(strides=2, padding=(1, 0))),
        right=lambda a, b, c: conv(strides=2)(a, middle(3, b, plus(c))),
        dtypes="float32",
    ),
    refuses(
        "add_filters_of_windows",
        "different_windows",
        **PARALLEL | dict(b="4 3 3 1 const", c="4 3 1 3 const"),
        left=parallel(conv(padding=(1, 0)), conv(padding=(0, 1))),
    ),
    refuses(
        "add_filters_of_windows", "not_constant", **PARALLEL | dict(c="4 3 1 1"), left=parallel()
    ),
    refuses(
        "add_filters_of_windows",
        "different_steps",
        a="1 3 3 3",
        b="4 3 3 3 const",
        c="4 3 1 1 const",
        left=parallel(conv(), conv(strides=2)),
    ),
    holds(
        "add_identity_to_filters",
        **OWN,
        left=lambda a, b: op.add(conv()(a, b), a),
        right=lambda a, b: conv()(a, op.add(b, relax.const(IDENTITY))),
        dtypes="float32",
    ),
    refuses(
        "add_identity_to_filters",
        "not_constant",
        **OWN | dict(b="3 3 3 3"),
        left=lambda a, b: op.add(conv()(a, b), a),
    ),
    holds(
        "add_identity_to_filters",
        a="n 4 6 5",
        b="4 2 3 3 const",
        left=lambda a, b: op.add(conv(groups=2)(a, b), a),
        right=lambda a, b: conv(groups=2)(a, op.add(b, relax.const(OF_GROUPS))),
        dtypes="float32",
    ),
    refuses(
        "add_filters_of_windows",
        "groups",
        a="n 4 6 5",
        b="4 4 3 3 const",
        c="4 2 1 1 const",
        left=parallel(second=conv(padding=0, groups=2)),
    ),
    holds(
        "add_filters_of_windows",
        **PARALLEL | dict(b="3 1 3 3 const", c="3 1 3 1 const"),
        left=parallel(conv(groups=3), conv(padding=(1, 0), groups=3)),
        right=lambda a, b, c: conv(groups=3)(a, middle(3, b, plus(c))),
        dtypes="float32",
    ),
    refuses(
        "compose_convolutions",
        "groups",
        **POINT_BEHIND | dict(b="4 3 3 3 const", c="4 2 1 1 const"),
        left=in_a_row(conv(), conv(padding=0, groups=2)),
    ),
    holds(
        "add_scaled_identity_to_filters",
        **OWN,
        s="3 1 1 const",
        left=lambda a, b, s: op.add(conv()(a, b), op.multiply(a, s)),
        right=lambda a, b, s: conv()(
            a, op.add(b, op.multiply(relax.const(IDENTITY), op.reshape(s, [3, 1, 1, 1])))
        ),
        dtypes="float32",
    ),
    refuses(
        "add_scaled_identity_to_filters",
        "varies",
        **OWN,
        s="6 1 const",
        left=lambda a, b, s: op.add(conv()(a, b), op.multiply(a, s)),
    ),
    refuses(
        "add_scaled_identity_to_filters",
        "not_constant",
        **OWN,
        s="3 1 1",
        left=lambda a, b, s: op.add(conv()(a, b), op.multiply(a, s)),
    ),
    holds(
        "compose_convolutions",
        **POINT_BEHIND,
        left=in_a_row(conv(), conv(padding=0)),
        right=lambda a, b, c: conv()(a, behind(b, c)),
        dtypes="float32",
    ),
    holds(
        "compose_convolutions",
        **POINT_BEFORE,
        left=in_a_row(conv(padding=0), conv(strides=2)),
        right=lambda a, b, c: conv(strides=2)(a, before(b, c)),
        dtypes="float32",
    ),
    refuses(
        "compose_convolutions",
        "no_point",
        **POINT_BEHIND | dict(c="2 4 3 3 const"),
        left=in_a_row(conv(), conv()),
    ),
    refuses(
        "compose_convolutions", "no_point", **POINT_BEHIND, left=in_a_row(conv(), conv(padding=1))
    ),
    refuses(
        "compose_convolutions",
        "not_constant",
        **POINT_BEHIND | dict(b="4 3 3 3"),
        left=in_a_row(conv(), conv(padding=0)),
    ),
)
