"""Rows of the laws of order, conditions, bits, casts, slices and concatenations."""

import numpy as np
from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses
from tvm_fusion.rewrite.laws.choices.order import INCREASING

op = relax.op
ALL = "float32 float16 int32"
A, AB = {"a": "n 5"}, {"a": "n 5", "b": "5"}
ABC = {"a": "n 5", "b": "5", "c": "n 5"}
P = {"p": "n 5:bool"}


def _lattice(join, meet, dtypes, limits):
    """Write rows for both operators of a lattice."""
    found = []
    for name in (join, meet):
        found += [
            holds(f"idempotent_{name}", **A, dtypes=dtypes),
            holds(f"absorb_{name}", **AB, dtypes=dtypes.split()[-1]),
            refuses(f"absorb_{name}", "type", a="5", b="n 5", dtypes=dtypes.split()[-1]),
            holds(f"distribute_{name}", **ABC, dtypes=dtypes),
            holds(f"distribute_constants_{name}", **A, k=limits[0], l=limits[1], dtypes=dtypes),
            holds(f"associate_{name}", **ABC, dtypes=dtypes),
        ]
    return found


LATTICES = (
    *_lattice("maximum", "minimum", ALL, (3, np.arange(5) - 2)),
    *_lattice("logical_or", "logical_and", "bool", (True, np.arange(5) < 2)),
    *_lattice("bitwise_or", "bitwise_and", "int32 uint8", (5, np.arange(5))),
)
NOT_ABSORBED = tuple(
    refuses(f"absorb_{name}", "may_be_nan", **AB, dtypes="float32 float16")
    for name in ("maximum", "minimum")
)
MAX, MIN = {"choose": op.maximum}, {"choose": op.minimum}
ORDER = (
    holds(
        "largest_is_known",
        **A,
        left=lambda a: op.maximum(op.sigmoid(a), relax.const(0, a.ty.dtype.dtype)),
        right=lambda a: op.sigmoid(a),
    ),
    refuses("largest_is_known", "unknown_order", **AB),
    holds(
        "smallest_is_known",
        **A,
        left=lambda a: op.minimum(op.tanh(a), relax.const(1, a.ty.dtype.dtype)),
        right=lambda a: op.tanh(a),
    ),
    refuses(
        "smallest_is_known",
        "may_be_nan",
        **AB,
        left=lambda a, b: op.minimum(op.tanh(a), op.exp(op.abs(b))),
    ),
    refuses(
        "largest_is_known",
        "may_be_nan",
        **AB,
        left=lambda a, b: op.maximum(op.exp(op.abs(b)), op.tanh(a)),
    ),
    refuses("smallest_is_known", "unknown_order", **AB),
    holds(
        "clip_as_maximum",
        **A,
        dtypes=ALL,
        left=lambda a: op.clip(a, -1, 6),
        right=lambda a: op.minimum(
            op.maximum(a, relax.const(-1, a.ty.dtype.dtype)), relax.const(6, a.ty.dtype.dtype)
        ),
    ),
    refuses("clip_as_maximum", "unordered_bounds", **A, left=lambda a: op.clip(a, 6, -1)),
    refuses(
        "clip_as_maximum",
        "other_type",
        **A,
        left=lambda a: op.clip(a, -1, 6),
        dtypes="uint8",
    ),
    holds(
        "clip_of_constants",
        **A,
        low=-1,
        high=6,
        dtypes=ALL,
        right=lambda a, low, high: op.clip(a, -1.0, 6.0),
    ),
    refuses("clip_of_constants", "unordered_bounds", **A, low=6, high=-1),
    refuses("clip_of_constants", "unordered_bounds", **A, low=np.arange(5), high=7),
    holds("relu_as_maximum", **A, dtypes=ALL),
    holds("relu_as_maximum", **A, dtypes=ALL, backwards=True),
    holds("order_of_sums", **ABC, **MAX),
    holds("order_of_sums", **ABC, **MIN, backwards=True),
    refuses("order_of_sums", "integers", **ABC, **MIN, dtypes="int32"),
    *(
        case
        for law, apply in (("products", op.multiply), ("quotients", op.divide))
        for choose in (op.maximum, op.minimum)
        for case in (
            holds(
                f"order_of_{law}",
                **ABC,
                left=lambda a, b, c, f=apply, m=choose: m(f(a, op.abs(c)), f(b, op.abs(c))),
                right=lambda a, b, c, f=apply, m=choose: f(m(a, b), op.abs(c)),
            ),
            refuses(f"order_of_{law}", "may_be_negative", **ABC, choose=choose),
        )
    ),
    *(holds("order_of_increasing", **AB, **MAX, f=getattr(op, f)) for f in INCREASING),
    *(
        holds("order_of_increasing", **AB, **MIN, f=f)
        for f in (op.asinh, op.atan, op.asin, op.nn.relu, lambda x: op.clip(x, -1, 2))
    ),
    holds("order_of_increasing", **AB, **MAX, f=op.nn.relu, dtypes="int32"),
    holds("maximum_of_negatives", **AB),
    holds("maximum_of_negatives", **AB, backwards=True),
    refuses("maximum_of_negatives", "integers", **AB, dtypes="int32"),
    holds("minimum_of_negatives", **AB),
    holds("minimum_of_negatives", **AB, backwards=True),
    holds("maximum_of_negative", **A),
    holds("maximum_of_negative", **A, dtypes="int32"),
    refuses("maximum_of_negative", "unsigned", **A, dtypes="uint8"),
    holds("sum_of_both", **AB, dtypes=ALL),
    holds("product_of_both", **AB, dtypes=ALL),
    holds("difference_of_both", **AB),
    refuses("difference_of_both", "integers", **AB, dtypes="int32"),
)


def _cast(dtype):
    return lambda x: op.astype(x, dtype)


CASTS = (
    holds("cast_to_itself", a="n 5:float32", to=_cast("float32"), dtypes="float32"),
    refuses("cast_to_itself", "type", a="n 5:float32", to=_cast("float16")),
    *(
        holds("cast_twice", a=f"n 5:{a}", to=_cast(b), again=_cast(c), dtypes="float32")
        for a, b, c in (
            ("float16", "float32", "float16"),
            ("float16", "float64", "float32"),
            ("int8", "float16", "float32"),
            ("uint8", "int32", "int8"),
            ("int32", "float64", "float32"),
            ("bool", "int32", "float32"),
            ("float32", "float32", "float16"),
        )
    ),
    *(
        refuses("cast_twice", "narrowing", a=f"n 5:{a}", to=_cast(b), again=_cast(a))
        for a, b in (
            ("float32", "float16"),
            ("float32", "bfloat16"),
            ("bfloat16", "float16"),
            ("float16", "bfloat16"),
            ("int32", "float32"),
            ("int16", "float16"),
            ("uint16", "float16"),
            ("int8", "uint8"),
            ("float32", "int32"),
            ("int32", "bool"),
        )
    ),
)


def _const(value):
    return relax.const(value, "bool")


LOGIC = (
    holds("not_twice", **A, dtypes="bool"),
    holds("neither_of", **AB, dtypes="bool"),
    holds("not_both_of", **AB, dtypes="bool"),
    holds("and_always", **A, dtypes="bool"),
    holds("and_never", **A, dtypes="bool"),
    holds("or_never", **A, dtypes="bool"),
    holds("or_always", **A, dtypes="bool"),
    holds("and_opposite", **A, dtypes="bool"),
    holds("or_opposite", **A, dtypes="bool"),
    *(holds(law, **AB, dtypes=ALL) for law in ("greater_as_less", "greater_equal_as_less_equal")),
    *(holds(law, **AB, dtypes="int32") for law in ("not_less", "not_less_equal")),
    *(
        refuses(law, "may_be_nan", **names, dtypes="float32 float16")
        for law in ("not_less", "not_less_equal")
        for names in (AB, {"a": "n 5", "b": 1.0}, {"a": 1.0, "b": "n 5"})
    ),
    *(holds(law, **AB, dtypes=ALL) for law in ("not_of_equal", "not_of_not_equal")),
    holds("invert_twice", **A, dtypes="int32 uint8"),
    holds("inverted_and", **AB, dtypes="int32 uint8"),
    holds("inverted_or", **AB, dtypes="int32 uint8"),
    *(
        holds("shift_together", a="n 5", b="5", s="5:int32 0..31", f=f, shift=s, dtypes="int32")
        for f in (op.bitwise_and, op.bitwise_or, op.bitwise_xor)
        for s in (op.left_shift, op.right_shift)
    ),
    *(
        holds("shift_twice", **A, k=3, l=np.arange(5), shift=s, dtypes="int32")
        for s in (op.left_shift, op.right_shift)
    ),
    refuses("shift_twice", "too_far", **A, k=30, l=2, shift=op.left_shift, dtypes="int32"),
    refuses("shift_twice", "too_far", **A, k=3, l=-2, shift=op.left_shift, dtypes="int32"),
    refuses(
        "shift_twice",
        "unknown_value",
        **A,
        k="5 const",
        l=2,
        shift=op.left_shift,
        dtypes="int32",
    ),
    holds(
        "shift_as_product",
        **A,
        k=3,
        dtypes="int32",
        right=lambda a, k: op.multiply(a, relax.const(8, "int32")),
    ),
    refuses("shift_as_product", "unknown_value", **A, k=31, dtypes="int32"),
)
LINE = {"a": "n 5", "b": "n 5", "c": "5"}
SELECT = (
    holds("choose_either", **P, **A, dtypes=ALL),
    refuses("choose_either", "type", **P, a="5"),
    holds(
        "choose_always",
        **AB,
        left=lambda a, b: op.where(_const(True), a, b),
        right=lambda a, b: a,
    ),
    holds(
        "choose_never",
        **AB,
        left=lambda a, b: op.where(_const(False), b, a),
        right=lambda a, b: a,
    ),
    refuses(
        "choose_always",
        "no_match",
        a="n 5",
        b="5",
        left=lambda a, b: op.where(_const(np.asarray([True, False] * 2 + [True])), a, b),
    ),
    refuses(
        "choose_never",
        "no_match",
        a="n 5",
        b="5",
        left=lambda a, b: op.where(_const(np.asarray([True, False] * 2 + [True])), a, b),
    ),
    holds("choose_by_opposite", **P, **AB, dtypes=ALL),
    holds("choose_again_first", **P, **LINE, dtypes=ALL),
    holds("choose_again_second", **P, **LINE, dtypes=ALL),
    holds("choose_by_both", **P, q="5:bool", **AB, dtypes=ALL),
    holds("choose_by_either", **P, q="5:bool", **AB, dtypes=ALL),
    *(
        case
        for law, known, other in (
            ("choose_smaller", "a", "b"),
            ("choose_larger", "b", "a"),
            ("choose_smaller_or_equal", "a", "b"),
            ("choose_larger_or_equal", "b", "a"),
        )
        for case in (
            holds(law, **AB, dtypes="int32"),
            holds(law, **{known: np.arange(5.0) - 2, other: "n 5"}),
            refuses(law, "may_be_nan", **{other: np.arange(5.0) - 2, known: "n 5"}),
            refuses(law, "may_be_nan", **AB, dtypes="float32 float16"),
        )
    ),
    *(
        holds("choose_operand", **P, **AB, f=f)
        for f in (op.exp, op.negative, op.rsqrt, op.cos, lambda x: op.astype(x, "float16"))
    ),
    *(
        holds(f"choose_{side}_operand", **P, **LINE, f=f)
        for side in ("first", "second")
        for f in (op.add, op.subtract, op.multiply, op.divide, op.maximum, op.power)
    ),
    holds("choose_constants", **P, k=2.0, l=np.arange(5.0), f=op.sqrt),
    refuses("choose_constants", "unknown_value", **P, k="5 const", l=2.0, f=op.exp),
    holds("choose_together", **P, a="n 5", b="5", c="n 5", d="n 5", f=op.multiply),
    holds("choose_together", **P, a="n 5", b="5", c="n 5", d="n 5", f=op.divide),
)


def _cut(axes, begin, end, strides=None):
    return lambda x: op.strided_slice(x, axes, begin, end, strides)


SLICES = (
    holds("slice_all", **A, at=_cut([1], [0], [5])),
    refuses("slice_all", "strides", **A, at=_cut([1], [4], [-6], [-1])),
    refuses("slice_all", "type", **A, at=_cut([1], [0], [4])),
    holds(
        "slice_twice",
        a="n 17",
        at=_cut([1], [1], [16], [2]),
        again=_cut([-1], [2], [-1], [3]),
        right=lambda a: _cut([1], [5], [12], [6])(a),
    ),
    holds(
        "slice_twice",
        a="7 17",
        at=_cut([1], [1], [16]),
        again=_cut([0, 1], [2, 0], [4, 9]),
        right=lambda a: _cut([1, 0], [1, 2], [10, 4], [1, 1])(a),
    ),
    refuses(
        "slice_twice", "symbolic", **A, at=_cut([1], [4], [-6], [-1]), again=_cut([1], [0], [2])
    ),
    *(
        holds("slice_of_unary", a="n 5 -3..3", f=f, at=_cut([1], [1], [4], [2]))
        for f in (op.exp, op.negative, op.nn.relu)
    ),
    holds(
        "slice_of_binary",
        a="n 5",
        b="5",
        f=op.subtract,
        at=_cut([1], [1], [4]),
        right=lambda a, b: op.subtract(_cut([1], [1], [4], [1])(a), _cut([0], [1], [4], [1])(b)),
    ),
    holds(
        "slice_of_binary",
        a="n 1 -9..9",
        b="n 5 1..4",
        f=op.divide,
        at=_cut([1], [1], [4]),
        right=lambda a, b: op.divide(a, _cut([1], [1], [4], [1])(b)),
    ),
    refuses("slice_of_binary", "symbolic", **AB, f=op.add, at=_cut([1], [4], [-6], [-1])),
)
JOINED = {"a": "n 3 -3..3", "b": "n 4 -3..3"}


def _join(*pieces, axis=1):
    return op.concat(list(pieces), axis)


def _part(x, begin, end):
    return _cut([1], [begin], [end], [1])(x)


CONCATS = (
    holds("concat_one", **A, left=lambda a: _join(a), right=lambda a: a),
    refuses("concat_one", "several_inputs", **JOINED, left=lambda a, b: _join(a, b)),
    holds(
        "concat_of_concat",
        **JOINED,
        left=lambda a, b: _join(b, _join(a, b, axis=-1), a),
        right=lambda a, b: _join(b, a, b, a),
    ),
    refuses(
        "concat_of_concat",
        "no_nested_concat",
        a="4 4",
        b="4 4",
        left=lambda a, b: _join(_join(a, b, axis=0), _join(a, b, axis=0)),
    ),
    holds(
        "concat_of_slices",
        **A,
        left=lambda a: _join(_part(a, 0, 2), _part(a, 2, 5)),
        right=lambda a: a,
    ),
    holds(
        "concat_of_slices",
        a="n 9",
        left=lambda a: _join(a, _part(a, 1, 4), _part(a, 4, 6), _part(a, 7, 9)),
        right=lambda a: _join(a, _part(a, 1, 6), _part(a, 7, 9)),
    ),
    refuses(
        "concat_of_slices",
        "no_adjacent_slices",
        a="n 9",
        left=lambda a: _join(_part(a, 4, 6), _part(a, 1, 4)),
    ),
    refuses(
        "concat_of_slices",
        "no_adjacent_slices",
        a="5 5",
        left=lambda a: _join(_part(a, 0, 2), _part(a, 2, 4), axis=0),
    ),
    holds(
        "slice_of_concat",
        **JOINED,
        left=lambda a, b: _cut([1], [4], [6])(_join(a, b)),
        right=lambda a, b: _part(b, 1, 3),
    ),
    holds(
        "slice_of_concat",
        **JOINED,
        c="n 2",
        left=lambda a, b, c: _cut([1], [3], [9])(_join(a, b, c)),
        right=lambda a, b, c: _join(b, c),
    ),
    refuses(
        "slice_of_concat",
        "slices_all_inputs",
        **JOINED,
        left=lambda a, b: _cut([1], [2], [4])(_join(a, b)),
    ),
    holds(
        "concat_of_unary",
        **JOINED,
        left=lambda a, b: _join(op.exp(a), op.exp(b)),
        right=lambda a, b: op.exp(_join(a, b)),
    ),
    refuses(
        "concat_of_unary",
        "different_operators",
        **JOINED,
        left=lambda a, b: _join(op.exp(a), op.tanh(b)),
    ),
    holds(
        "unary_of_concat",
        **JOINED,
        left=lambda a, b: op.exp(_join(a, b)),
        right=lambda a, b: _join(op.exp(a), op.exp(b)),
    ),
    refuses("unary_of_concat", "one_input", a="n 3", left=lambda a: op.exp(_join(a))),
)
CASES: tuple[Case, ...] = (
    *LATTICES,
    *NOT_ABSORBED,
    *ORDER,
    *CASTS,
    *LOGIC,
    *SELECT,
    *SLICES,
    *CONCATS,
)
