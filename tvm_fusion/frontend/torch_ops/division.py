"""Convert division, rounded or not, and remainders."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .. import formulas
from ..tensor_types import HALF, is_float, is_integer
from .call import Call
from .elementwise import operands
from .registry import register

op = relax.op


@register("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: Call) -> Any:
    """Divide in floating point, integers too."""
    return op.divide(*operands(call, call.dtype))


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
