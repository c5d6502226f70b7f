"""Operators that compute each element from the elements at the same (broadcast) position."""

import math
from typing import Any

import numpy as np
from tvm import relax

from .operator import Operator

R, nn = relax.op, relax.op.nn

erf = np.vectorize(math.erf, otypes=["float64"])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def selu(x: Any) -> Any:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1))


def sign(x: Any) -> Any:
    return np.nan_to_num(np.sign(x))  # what is neither above nor below 0 has the sign 0


def round_half_even_distance(x: Any) -> Any:
    return np.abs(np.abs(x - np.floor(x)) - 0.5)


def integer_distance(x: Any) -> Any:
    return np.abs(x - np.round(x))


def quotient_distance(x: Any, y: Any) -> Any:
    return integer_distance(x / y)


def difference(x: Any, y: Any) -> Any:
    return np.abs(x - y)


def _prelu(x: Any, slope: Any, axis: int) -> Any:
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.where(x > 0, x, x * slope.reshape(shape))


def _cast(x: Any, dtype: str) -> Any:
    kind = dtype if dtype == "bool" else "int64" if dtype.startswith("int") else "float64"
    return x.astype(kind)


def _astype_distance(x: Any, dtype: str) -> Any:
    # Towards zero: the pieces meet at every integer but zero.
    jumps = np.where(np.abs(x) < 0.5, 1 - np.abs(x), integer_distance(x))
    return jumps if dtype.startswith("int") else np.full(1, np.inf if dtype != "bool" else 0.0)


# Relax name, numpy function, noise
_UNARY: list[tuple[str, Any, Any, float]] = [
    ("abs", R.abs, np.abs, 1),
    ("negative", R.negative, np.negative, 1),
    ("exp", R.exp, np.exp, 4),
    ("log", R.log, np.log, 4),
    ("sqrt", R.sqrt, np.sqrt, 1),
    ("rsqrt", R.rsqrt, lambda x: 1 / np.sqrt(x), 2),
    ("square", R.square, np.square, 1),
    ("sin", R.sin, np.sin, 4),
    ("cos", R.cos, np.cos, 4),
    ("tan", R.tan, np.tan, 8),
    ("tanh", R.tanh, np.tanh, 8),
    ("asin", R.asin, np.arcsin, 8),
    ("acos", R.acos, np.arccos, 8),
    ("atan", R.atan, np.arctan, 8),
    ("asinh", R.asinh, np.arcsinh, 8),
    ("acosh", R.acosh, np.arccosh, 8),
    ("atanh", R.atanh, np.arctanh, 8),
    ("erf", R.erf, erf, 8),
    ("sigmoid", R.sigmoid, sigmoid, 4),
    ("nn.relu", nn.relu, lambda x: np.maximum(x, 0), 1),
    ("nn.relu6", nn.relu6, lambda x: np.clip(x, 0, 6), 1),
    ("nn.gelu", nn.gelu, gelu, 8),
    ("nn.gelu_tanh", nn.gelu_tanh, gelu_tanh, 8),
    ("nn.silu", nn.silu, lambda x: x * sigmoid(x), 4),
    ("nn.selu", nn.selu, selu, 8),
]
_UNARY_EXACT: list[tuple[str, Any, Any, Any]] = [
    ("sign", R.sign, sign, np.abs),
    ("floor", R.floor, np.floor, integer_distance),
    ("ceil", R.ceil, np.ceil, integer_distance),
    ("trunc", R.trunc, np.trunc, integer_distance),
    ("round", R.round, np.round, round_half_even_distance),
    ("isnan", R.isnan, np.isnan, None),
    ("isinf", R.isinf, np.isinf, None),
    ("isfinite", R.isfinite, np.isfinite, None),
    ("logical_not", R.logical_not, np.logical_not, None),
    ("bitwise_not", R.bitwise_not, np.invert, None),
]
_BINARY: list[tuple[str, Any, Any, float]] = [
    ("add", R.add, np.add, 1),
    ("subtract", R.subtract, np.subtract, 1),
    ("multiply", R.multiply, np.multiply, 1),
    ("divide", R.divide, np.divide, 1),
    ("power", R.power, np.power, 16),
    ("maximum", R.maximum, np.maximum, 1),
    ("minimum", R.minimum, np.minimum, 1),
    ("atan2", R.atan2, np.arctan2, 8),
    ("log_add_exp", R.log_add_exp, np.logaddexp, 8),
]
_BINARY_EXACT: list[tuple[str, Any, Any, Any]] = [
    ("floor_divide", R.floor_divide, np.floor_divide, quotient_distance),
    ("floor_mod", R.floor_mod, np.mod, quotient_distance),
    ("equal", R.equal, np.equal, difference),
    ("not_equal", R.not_equal, np.not_equal, difference),
    ("greater", R.greater, np.greater, difference),
    ("greater_equal", R.greater_equal, np.greater_equal, difference),
    ("less", R.less, np.less, difference),
    ("less_equal", R.less_equal, np.less_equal, difference),
    ("logical_and", R.logical_and, np.logical_and, None),
    ("logical_or", R.logical_or, np.logical_or, None),
    ("logical_xor", R.logical_xor, np.logical_xor, None),
    ("bitwise_and", R.bitwise_and, np.bitwise_and, None),
    ("bitwise_or", R.bitwise_or, np.bitwise_or, None),
    ("bitwise_xor", R.bitwise_xor, np.bitwise_xor, None),
    ("left_shift", R.left_shift, np.left_shift, None),
    ("right_shift", R.right_shift, np.right_shift, None),
]

# TVM computes them by 1 + tanh, 1 + erf, exp - 1 and, tanh itself, 1 - exp, of which little is left
# where those are near -1 and 1; so does log(1 + exp), which is softplus.
_CANCELLING = ("nn.gelu", "nn.gelu_tanh", "nn.selu", "tanh")
UNARY = [name for name, *_ in _UNARY]
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")

OPERATORS = [
    *[
        Operator(name, build, ref, noise=noise, absolute=float(name in _CANCELLING))
        for name, build, ref, noise in _UNARY + _BINARY
    ],
    *[
        Operator(name, build, ref, distance, exact=name != "floor_mod")
        for name, build, ref, distance in _UNARY_EXACT + _BINARY_EXACT
    ],
    Operator(
        "nn.leakyrelu",
        lambda x, alpha: nn.leakyrelu(x, alpha),
        lambda x, alpha: np.where(x > 0, x, x * alpha),
    ),
    Operator(
        "nn.softplus",
        lambda x, beta: nn.softplus(x, beta),
        lambda x, beta: np.logaddexp(0, beta * x) / beta,
        noise=8,
        absolute=1,
    ),
    Operator("nn.prelu", lambda x, slope, axis: nn.prelu(x, slope, axis), _prelu),
    Operator(
        "clip",
        lambda x, low, high: R.clip(x, low, high),
        lambda x, low, high: np.clip(x, low, high),
        exact=True,
    ),
    Operator("where", R.where, np.where, exact=True),
    Operator(
        "masked_fill",
        lambda x, mask, fill: R.masked_fill(x, mask, relax.const(fill, x.ty.dtype.dtype)),
        lambda x, mask, fill: np.where(mask, fill, x),
        exact=True,
    ),
    Operator(
        "astype",
        lambda x, dtype: R.astype(x, dtype),
        _cast,
        _astype_distance,
    ),
]
