"""Rows of the laws of exponentials, roots, powers and signs."""

import numpy as np
from tvm import relax

from tests.rewrite.laws.law_cases import Case, holds, refuses

op = relax.op
A, AB = {"a": "n 5"}, {"a": "n 5", "b": "n 5"}
BROADCAST = {"a": "n 5", "b": "5"}
ROW = np.asarray([0.5, -2.0, 3.0, 0.75, 1.5])


EXPONENTIALS = (
    holds("multiply_exponentials", **BROADCAST),
    refuses("multiply_exponentials", "no_match", **AB, left=lambda a, b: op.add(a, op.exp(b))),
    holds("split_exponential", **BROADCAST),
    holds(
        "split_exponential",
        **BROADCAST,
        left=lambda a, b: op.exp(op.add(op.tanh(a), op.sigmoid(b))),
        right=lambda a, b: op.multiply(op.exp(op.tanh(a)), op.exp(op.sigmoid(b))),
    ),
    holds("divide_exponentials", **BROADCAST),
    holds(
        "divide_exponentials",
        **BROADCAST,
        left=lambda a, b: op.divide(op.exp(a), op.exp(op.tanh(b))),
        right=lambda a, b: op.exp(op.subtract(a, op.tanh(b))),
    ),
    holds("invert_exponential", **A),
    holds("root_of_exponential", **A),
    holds("power_of_exponential", **A, k=ROW),
    refuses("power_of_exponential", "small_exponent", **A, k=0.1),
    refuses("power_of_exponential", "small_exponent", **A, k="5 const"),
    holds("logarithm_of_root", **A),
    holds("logarithm_of_reciprocal", **A),
    holds(
        "logarithm_of_power",
        **A,
        k=3.0,
        left=lambda a, k: op.log(op.power(op.abs(a), k)),
        right=lambda a, k: op.multiply(k, op.log(op.abs(a))),
    ),
    refuses("logarithm_of_power", "may_be_negative", **A, k=2.0),
    refuses(
        "logarithm_of_power",
        "zero_exponent",
        **A,
        k=0.0,
        left=lambda a, k: op.log(op.power(op.abs(a), k)),
    ),
    holds("add_logarithms", **BROADCAST),
    holds("subtract_logarithms", **BROADCAST),
    holds(
        "logarithm_of_product",
        **BROADCAST,
        left=lambda a, b: op.log(op.multiply(op.exp(a), b)),
        right=lambda a, b: op.add(op.log(op.exp(a)), op.log(b)),
    ),
    refuses("logarithm_of_product", "may_be_negative", **BROADCAST),
    holds(
        "logarithm_of_quotient",
        **BROADCAST,
        left=lambda a, b: op.log(op.divide(a, op.abs(b))),
        right=lambda a, b: op.subtract(op.log(a), op.log(op.abs(b))),
    ),
    refuses("logarithm_of_quotient", "may_be_negative", **BROADCAST),
    holds("logarithm_of_exponential", **A),
    holds("exponential_of_logarithm", **A),
)
ROOTS = (
    holds("square_root_twice", **A),
    holds("root_of_square", **A),
    holds(
        "split_root",
        **BROADCAST,
        left=lambda a, b: op.sqrt(op.multiply(op.exp(a), op.abs(b))),
        right=lambda a, b: op.multiply(op.sqrt(op.exp(a)), op.sqrt(op.abs(b))),
    ),
    refuses("split_root", "may_be_negative", **BROADCAST),
    holds("multiply_roots", **BROADCAST),
    holds("divide_roots", **BROADCAST),
    holds("reciprocal_root", **A),
    holds("reciprocal_root", **A, backwards=True),
    holds("divide_by_root", **BROADCAST),
    holds("divide_by_reciprocal_root", **BROADCAST),
    holds("reciprocal_root_twice", **A),
    holds("multiply_by_reciprocal_root", **A),
    holds(
        "root_of_reciprocal",
        **A,
        left=lambda a: op.sqrt(op.divide(relax.const(1, a.ty.dtype.dtype), op.abs(a))),
        right=lambda a: op.rsqrt(op.abs(a)),
    ),
    refuses("root_of_reciprocal", "may_be_negative", **A),
    holds("square_as_product", **A, dtypes="float32 float16 int32"),
    holds("square_as_product", **A, backwards=True),
    holds("multiply_squares", **BROADCAST),
    holds("multiply_squares", **AB, dtypes="int32"),
    holds("divide_squares", **BROADCAST),
)


def _power(exponent, right):
    return holds("power_as_products", **A, k=exponent, right=lambda a, k: right(a))


POWERS = (
    _power(0.0, lambda a: op.full(a.ty.shape, relax.const(1, a.ty.dtype.dtype))),
    _power(1.0, lambda a: a),
    _power(2.0, op.square),
    _power(3.0, lambda a: op.multiply(op.square(a), a)),
    _power(4.0, lambda a: op.square(op.square(a))),
    _power(0.5, op.sqrt),
    _power(0.25, lambda a: op.sqrt(op.sqrt(a))),
    _power(0.75, lambda a: op.multiply(op.sqrt(a), op.sqrt(op.sqrt(a)))),
    _power(1.5, lambda a: op.multiply(op.sqrt(a), a)),
    holds(
        "power_as_products",
        **A,
        k=-0.5,
        left=lambda a, k: op.power(op.abs(a), k),
        right=lambda a, k: op.rsqrt(op.abs(a)),
    ),
    refuses("power_as_products", "may_be_negative", **A, k=-0.5),
    _power(-1.0, lambda a: op.divide(relax.const(1, a.ty.dtype.dtype), a)),
    _power(-2.0, lambda a: op.divide(relax.const(1, a.ty.dtype.dtype), op.square(a))),
    refuses("power_as_products", "exponent", **A, k=2.5),
    refuses("power_as_products", "exponent", **A, k=ROW),
    holds("multiply_powers", **A, k=ROW, l=-1.25),
    refuses("multiply_powers", "exponent", **A, k=0.1, l=0.2),
    refuses("multiply_powers", "integers", **A, k=2, l=3, dtypes="int8"),
    refuses("multiply_powers", "exponent", **A, k="5 const", l=1.0),
    holds("multiply_by_power", **A, k=ROW),
    refuses("multiply_by_power", "exponent", **A, k=1e8),
    holds("power_of_power", **A, k=2.0, l=3.0),
    holds(
        "power_of_power",
        **A,
        k=2.0,
        l=0.5,
        left=lambda **t: op.power(op.power(op.abs(t["a"]), t["k"]), t["l"]),
        right=lambda a, **_: op.power(op.abs(a), relax.const(1, a.ty.dtype.dtype)),
    ),
    refuses("power_of_power", "may_be_negative", **A, k=2.0, l=0.5),
    refuses("power_of_power", "exponent", **A, k=20.0, l=2.0),
    refuses("power_of_power", "exponent", **A, k=2.0, l=-0.5),
    holds("power_of_product", **BROADCAST, k=1.5),
    holds("power_of_product", **BROADCAST, k=3.0),
)


def _of(name, **names):
    """Write rows for several functions that stand for f."""
    functions = ("tanh", "erf", "sin", "tan", "sinh", "asinh", "atan", "asin", "sign", "trunc")
    if name == "even_of_negative":
        functions = ("abs", "square", "cos", "cosh")
    return tuple(holds(name, **names, f=getattr(op, f)) for f in functions)


SIGNS = (
    holds(
        "absolute_of_nonnegative", **A, left=lambda a: op.abs(op.exp(a)), right=lambda a: op.exp(a)
    ),
    holds(
        "absolute_of_nonnegative",
        **A,
        left=lambda a: op.abs(op.multiply(a, a)),
        right=lambda a: op.multiply(a, a),
    ),
    refuses("absolute_of_nonnegative", "may_be_negative", **A),
    refuses(
        "absolute_of_nonnegative",
        "may_be_negative",
        **A,
        left=lambda a: op.abs(op.multiply(a, a)),
        dtypes="int32",
    ),
    holds(
        "absolute_of_nonpositive",
        **A,
        left=lambda a: op.abs(op.negative(op.exp(a))),
        right=lambda a: op.negative(op.negative(op.exp(a))),
    ),
    refuses("absolute_of_nonpositive", "may_be_positive", **A),
    holds("absolute_twice", **A, dtypes="float32 float16 int32"),
    holds("multiply_absolutes", **BROADCAST),
    refuses("multiply_absolutes", "integers", **AB, dtypes="int32"),
    holds("divide_absolutes", **BROADCAST),
    holds("square_of_absolute", **A, dtypes="float32 float16 int32"),
    holds("absolute_of_difference", **BROADCAST, dtypes="float32 float16 int32"),
    holds("square_of_difference", **BROADCAST, dtypes="float32 float16 int32"),
    refuses("absolute_of_difference", "unsigned", **BROADCAST, dtypes="uint8"),
    holds("sign_times_absolute", **A, dtypes="float32 float16 int32"),
    holds("sign_times_itself", **A, dtypes="float32 float16 int32"),
    *_of("odd_of_negative", **A),
    holds("odd_of_negative", **A, f=op.sin, backwards=True),
    *_of("even_of_negative", **A),
    holds("even_of_negative", **A, f=op.square, dtypes="int32 uint8"),
    refuses("even_of_negative", "unsigned", **A, f=op.abs, dtypes="uint8"),
    holds("round_twice", **A, f=op.floor, g=op.ceil),
    holds("round_twice", **A, f=op.trunc, g=op.trunc),
)
CASES: tuple[Case, ...] = (*EXPONENTIALS, *ROOTS, *POWERS, *SIGNS)
