"""Convert arithmetic of elements: types by PyTorch's rules, divisions, logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from ...operators import formulas
from ...tensor_types import HALF, dtype_of, is_float, is_integer
from ..call import Call, name_of
from ..registry import register

op = relax.op

# Results of floating point, of integers too.
_OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "acos": op.acos,
    "acosh": op.acosh,
    "asin": op.asin,
    "asinh": op.asinh,
    "atan": op.atan,
    "atanh": op.atanh,
    "cos": op.cos,
    "cosh": op.cosh,
    "erf": op.erf,
    "exp": op.exp,
    "log": op.log,
    "rsqrt": op.rsqrt,
    "sigmoid": op.sigmoid,
    "silu": op.nn.silu,
    "sin": op.sin,
    "sinh": op.sinh,
    "sqrt": op.sqrt,
    "tan": op.tan,
    "tanh": op.tanh,
}
# Numbers of any kind to the same kind; of integers some do nothing.
_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "abs": op.abs,
    "neg": op.negative,
    "sign": op.sign,
    "square": op.square,
    "relu": op.nn.relu,
}
_ROUNDING = {"ceil": op.ceil, "floor": op.floor, "trunc": op.trunc}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "maximum": op.maximum,
    "minimum": op.minimum,
    "atan2": op.atan2,
}
_COMPARISONS = {
    "eq": op.equal,
    "ne": op.not_equal,
    "lt": op.less,
    "le": op.less_equal,
    "gt": op.greater,
    "ge": op.greater_equal,
}
_BITWISE = {
    "bitwise_and": (op.bitwise_and, op.logical_and),
    "bitwise_or": (op.bitwise_or, op.logical_or),
    "bitwise_xor": (op.bitwise_xor, op.logical_xor),
    "__and__": (op.bitwise_and, op.logical_and),
    "__or__": (op.bitwise_or, op.logical_or),
    "__xor__": (op.bitwise_xor, op.logical_xor),
}
_SHIFTS = {
    "bitwise_left_shift": op.left_shift,
    "bitwise_right_shift": op.right_shift,
    "__lshift__": op.left_shift,
    "__rshift__": op.right_shift,
}
_OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor", "default")


def _register() -> None:
    for name, function in _OF_FLOATS.items():
        register(name)(_of_floats(function))
    for name, function in _OF_NUMBERS.items():
        register(name)(_of_numbers(function))
    for name, function in _ROUNDING.items():
        register(name)(_rounding(function))
    for table, converter in ((_BINARY, _binary), (_SHIFTS, _binary), (_COMPARISONS, _comparison)):
        for name, binary in table.items():
            register(*(f"{name}.{overload}" for overload in _OVERLOADS))(converter(binary))
    for name, both in _BITWISE.items():
        register(*(f"{name}.{overload}" for overload in _OVERLOADS))(_bitwise(*both))
    for name in ("logical_and", "logical_or", "logical_xor"):
        register(name)(_logical(getattr(op, name)))


def operands(call: Call, dtype: str, first: str = "self", second: str = "other") -> tuple[Any, Any]:
    """Return two operands in the dtype in which torch computes."""
    return call.tensor(first, dtype), call.tensor(second, dtype)


def computed(call: Call, function: Callable[..., Any], *tensors: Any) -> Any:
    """Compute with tensors of the result's dtype; truth values as numbers, 0 and 1."""
    if call.dtype != "bool":
        return call.emit(function(*tensors))
    result = call.emit(function(*(call.cast(x, "int8") for x in tensors)))
    return call.cast(result, "bool")


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Call], Any]:
    return lambda call: function(call.tensor("self", call.dtype))


def _of_numbers(function: Callable[[Any], Any]) -> Callable[[Call], Any]:
    return lambda call: computed(call, function, call.tensor("self", call.dtype))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        x = call.tensor("self")
        return function(x) if is_float(call.dtype) else x

    return convert


def _names(call: Call) -> tuple[str, str]:
    names = [a.name for a in call.node.target._schema.arguments]
    return names[0], names[1]


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        return computed(call, function, *operands(call, call.dtype, *_names(call)))

    return convert


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        first, second = _names(call)
        dtype = name_of(torch.result_type(call.meta(first), _number(call.meta(second))))
        if dtype == "bool":
            dtype = "int8"
        return function(*operands(call, dtype, first, second))

    return convert


def _number(value: Any) -> Any:
    return 1 if isinstance(value, torch.SymInt) else value


def _bitwise(
    of_integers: Callable[[Any, Any], Any], of_bools: Callable[[Any, Any], Any]
) -> Callable[[Call], Any]:
    def convert(call: Call) -> Any:
        function = of_bools if call.dtype == "bool" else of_integers
        return function(*operands(call, call.dtype, *_names(call)))

    return convert


def _logical(function: Callable[[Any, Any], Any]) -> Callable[[Call], Any]:
    return lambda call: function(*operands(call, "bool"))


@register("logical_not")
def logical_not(call: Call) -> Any:
    """Negate truth values; numbers are true unless they are zero."""
    return op.logical_not(call.tensor("self", "bool"))


@register("bitwise_not")
def bitwise_not(call: Call) -> Any:
    """Negate bits."""
    x = call.tensor("self")
    return op.logical_not(x) if call.dtype == "bool" else op.bitwise_not(x)


@register("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def add(call: Call) -> Any:
    """Add, or subtract, the second operand times alpha."""
    x, y = operands(call, call.dtype)
    alpha = call.get("alpha", 1)
    name = call.node.target.__name__
    times = x if name.startswith("rsub") else y
    if alpha != 1:
        times = computed(call, op.multiply, times, call.as_tensor(alpha, call.dtype))
    if name.startswith("rsub"):
        return op.subtract(y, times)
    return computed(call, op.add if name.startswith("add") else op.subtract, x, times)


@register(*(f"mul.{overload}" for overload in _OVERLOADS))
def multiply(call: Call) -> Any:
    """Multiply, truth values too."""
    return _by_scalars(call, op.multiply)


def _by_scalars(call: Call, function: Callable[[Any, Any], Any]) -> Any:
    """Multiply or divide; by scalars that a half type cannot hold in float32, as torch does."""
    if not any(_exceeds(call.meta(name), call.dtype) for name in _names(call)):
        return computed(call, function, *operands(call, call.dtype, *_names(call)))
    x, y = operands(call, "float32", *_names(call))
    return call.cast(call.emit(function(x, y)), call.dtype)


def _exceeds(value: Any, dtype: str) -> bool:
    """Say whether a scalar loses its size in a half type; one known only at run time may."""
    if dtype not in HALF:
        return False
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and name_of(value.dtype) not in (dtype, "bool")
    if not isinstance(value, int | float):
        return False
    limits = torch.finfo(getattr(torch, dtype))
    size = abs(value)
    return limits.max < size < math.inf or 0 < size < limits.tiny


@register("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: Call) -> Any:
    """Choose elements."""
    return op.where(call.tensor("condition", "bool"), *operands(call, call.dtype))


@register("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor")
def clamp(call: Call) -> Any:
    """Limit values from below, from above, or both."""
    x, dtype = call.tensor("self", call.dtype), call.dtype
    low = call.get("min", None)
    high = call.get("max", None)
    is_constant = all(isinstance(limit, int | float) for limit in (low, high))
    if is_float(dtype) and is_constant and low <= high:
        return op.clip(x, low, high)
    if low is not None:
        x = call.emit(op.maximum(x, call.as_tensor(low, dtype)))
    if high is not None:
        x = call.emit(op.minimum(x, call.as_tensor(high, dtype)))
    return x


@register("isnan", "isinf", "isfinite")
def test(call: Call) -> Any:
    """Test for infinities and numbers that are none; integers are neither."""
    x, name = call.tensor("self"), call.node.target.__name__.split(".")[0]
    if not is_float(dtype_of(x)):
        return op.full(call.shape(), relax.const(name == "isfinite", "bool"), "bool")
    return getattr(op, name)(x)


@register("round", "round.decimals")
def round_half_even(call: Call) -> Any:
    """Round to the nearest, ties to even, at a decimal place."""
    x, decimals = call.tensor("self"), call.get("decimals", 0)
    if not is_float(call.dtype):
        return x
    if decimals == 0:
        return op.round(x)
    wide = "float64" if call.dtype == "float64" else "float32"
    x, scale = call.cast(x, wide), relax.const(10.0 ** abs(decimals), wide)
    up, down = (op.multiply, op.divide) if decimals > 0 else (op.divide, op.multiply)
    return call.cast(call.emit(down(op.round(up(x, scale)), scale)), call.dtype)


_register()


@register("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: Call) -> Any:
    """Divide in floating point, integers too."""
    return _by_scalars(call, op.divide)


@register("div.Tensor_mode", "div.Scalar_mode")
def divide_rounding(call: Call) -> Any:
    """Divide and round down or towards zero."""
    mode, (x, y) = call["rounding_mode"], operands(call, call.dtype)
    if mode is None:
        return op.divide(x, y)
    if mode == "floor":
        return _floor_divide(call, x, y)
    quotient = call.emit(op.divide(x, y))
    return op.trunc(quotient) if is_float(call.dtype) else quotient


@register("floor_divide", "floor_divide.Scalar")
def floor_divide(call: Call) -> Any:
    """Divide and round down."""
    return _floor_divide(call, *operands(call, call.dtype))


def _floor_divide(call: Call, x: Any, y: Any) -> Any:
    """Round down the quotient of what is left without its remainder, as torch and Python do."""
    if is_integer(call.dtype):
        return op.floor_divide(x, y)
    if call.dtype in HALF:
        x, y = call.cast(x, "float32"), call.cast(y, "float32")
    quotient = call.emit(op.floor_divide(x, y))
    return call.cast(quotient, call.dtype)


@register("fmod.Tensor", "fmod.Scalar")
def fmod(call: Call) -> Any:
    """Take the remainder with the sign of the dividend."""
    return op.mod(*operands(call, call.dtype))


@register("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: Call) -> Any:
    """Take the remainder with the sign of the divisor."""
    x, y = operands(call, call.dtype)
    if is_integer(call.dtype):
        return op.floor_mod(x, y)
    return formulas.remainder(x, y, call.emit)


@register("reciprocal")
def reciprocal(call: Call) -> Any:
    """Divide one by each."""
    return op.divide(relax.const(1, call.dtype), call.tensor("self", call.dtype))


@register("log2", "log10")
def log_of_base(call: Call) -> Any:
    """Take a logarithm to the base 2 or 10."""
    scale = 1.4426950408889634 if "log2" in call.node.target.__name__ else 0.4342944819032518
    wide = call.wide(call.tensor("self", call.dtype))
    result = op.multiply(op.log(wide), relax.const(scale, dtype_of(wide)))
    return call.cast(call.emit(result), call.dtype)


@register("log1p")
def log1p(call: Call) -> Any:
    """Take log(1 + x): near zero 2 atanh(x / (2 + x)), which keeps the digits of x."""
    x = call.wide(call.tensor("self", call.dtype))
    one, two = relax.const(1, dtype_of(x)), relax.const(2, dtype_of(x))
    is_near = op.less(op.abs(x), relax.const(0.25, dtype_of(x)))
    near = op.multiply(two, op.atanh(op.divide(x, op.add(two, x))))
    result = op.where(is_near, near, op.log(op.add(one, x)))
    return call.cast(call.emit(result), call.dtype)


@register("expm1")
def expm1(call: Call) -> Any:
    """Take exp(x) - 1: near zero 2 sinh(x / 2) exp(x / 2), which keeps the digits of x."""
    x = call.wide(call.tensor("self", call.dtype))
    one, two = relax.const(1, dtype_of(x)), relax.const(2, dtype_of(x))
    half = call.emit(op.multiply(x, relax.const(0.5, dtype_of(x))))
    near = op.multiply(op.multiply(two, op.sinh(half)), op.exp(half))
    is_near = op.less(op.abs(x), one)
    result = op.where(is_near, near, op.subtract(op.exp(x), one))
    return call.cast(call.emit(result), call.dtype)
