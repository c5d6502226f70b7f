"""Elementwise Relax operators by numpy: floating point in float64, not yet rounded.

Each takes a call and its operands, and gives None for a use whose result differs between devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .numpy_types import is_float, result_dtype, wide

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
# Integers divide in several ways, and integer powers overflow.
_BINARY_FLOAT: dict[str, Callable[..., Any]] = {"divide": np.divide, "power": np.power}
_UNARY: dict[str, Callable[..., Any]] = {
    "negative": np.negative,
    "abs": np.abs,
    # As the kernel and PyTorch do: 0 for NaN, which numpy passes on.
    "sign": lambda x: np.nan_to_num(np.sign(x)),
    "square": np.square,
    "bitwise_not": np.bitwise_not,
    "logical_not": np.logical_not,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
}
_UNARY_FLOAT: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}


def _elementwise(call: Any, operands: Sequence[Any]) -> np.ndarray:
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY | _UNARY)[name](*map(wide, operands)))


def _elementwise_float(call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    if not all(is_float(operand) for operand in operands):
        return None
    name = call.op.name.removeprefix("relax.")
    return np.asarray((_BINARY_FLOAT | _UNARY_FLOAT)[name](*map(wide, operands)))


def _astype(call: Any, operands: Sequence[Any]) -> np.ndarray:
    array, dtype = operands[0], result_dtype(call)
    return truncated(wide(array), dtype) if is_float(array) and dtype.kind in "iu" else array


def truncated(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast float64 to integers as kernels do; see :mod:`tvm_fusion.lower.integers`."""
    bits = dtype.itemsize * 8
    half = 2.0 ** ((64 if bits == 64 else 32) - 1)
    beyond = numbers >= half if dtype.kind == "u" and bits >= 32 else np.zeros(numbers.shape, bool)
    shifted = np.where(beyond, numbers - half, numbers)
    inside = (shifted >= -half) & (shifted < half)
    signed = np.where(inside, shifted, -half).astype("int64")
    return np.where(beyond, signed ^ np.int64(-half), signed).astype(dtype)


def _clip(_call: Any, operands: Sequence[Any]) -> np.ndarray | None:
    array, low, high = operands
    if array.dtype.kind in "iu":  # numpy refuses a bound that the type has not
        info = np.iinfo(array.dtype)
        low, high = (min(max(end, info.min), info.max) for end in (low, high))
    return np.minimum(np.maximum(wide(array), low), high)


def _relu(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.maximum(operands[0], 0)


def _shift(call: Any, operands: Sequence[Any]) -> np.ndarray:
    # Beyond the width, and by negative numbers, numpy gives 0 or the sign: as kernels do.
    shift = np.left_shift if call.op.name == "relax.left_shift" else np.right_shift
    return shift(*operands)


def _where(_call: Any, operands: Sequence[Any]) -> np.ndarray:
    return np.where(*operands)


#: By the operator's name.
ELEMENTWISE: dict[str, Callable[[Any, Sequence[Any]], np.ndarray | None]] = {
    **dict.fromkeys((*_BINARY, *_UNARY), _elementwise),
    **dict.fromkeys((*_BINARY_FLOAT, *_UNARY_FLOAT), _elementwise_float),
    "astype": _astype,
    "clip": _clip,
    "nn.relu": _relu,
    "left_shift": _shift,
    "right_shift": _shift,
    "where": _where,
}
