"""Convert logarithms and exponentials that TVM lacks, with all digits near zero."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tensor_types import dtype_of
from .call import Call
from .registry import register

op = relax.op


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
