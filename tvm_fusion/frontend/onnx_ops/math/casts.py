"""Convert casts of floats to integers, from and to narrow types, stored as bytes, and BitCast."""

from typing import Any

from onnx import helper
from tvm import DataType, relax, te, tirx

from ....core.constants.narrow_types import INTEGERS, NARROW, decode, encode
from ...onnx_model.types import dtype_name
from ...registry import Unsupported
from ...tensor_types import dtype_of, is_float, is_integer
from ..node import Node
from ..registry import register

op = relax.op
# What a float is limited to before it becomes an integer: conversion of others is undefined.
_LIMIT = 2.0**30


@register("Cast", "CastLike", takes_extents=True)
def cast(node: Node) -> Any:
    """Convert Cast and CastLike of floats to integers and of narrow types; TVM does the others."""
    source = node.narrow_dtype(0)
    if node.op_type == "Cast":
        target = dtype_name(node.attribute("to"))
    else:
        target = node.narrow_dtype(1) or dtype_of(node.inputs[1])
    if not source and target not in NARROW:
        given = node.inputs[0]
        if isinstance(given, relax.ShapeExpr) and target == "int64":
            return given
        # TVM's converter computes remainders of what the type does not hold; kernels have one rule.
        is_tensor = isinstance(given.ty, relax.TensorType)
        truncates = is_tensor and is_float(dtype_of(given)) and is_integer(target)
        return op.astype(given, target) if truncates else None
    value = node.inputs[0]
    if not isinstance(value.ty, relax.TensorType):
        raise Unsupported(f"of an extent to {target}", "cast it to int64")
    saturate = bool(node.attribute("saturate", 1))
    if source:
        value = decoded(node, value, source)
    if target in NARROW:
        return encoded(node, value, target, saturate, node.attribute("round_mode", "up"))
    if target == "bool":
        return op.not_equal(value, relax.const(0, dtype_of(value)))
    return node.cast(value, target)


def decoded(node: Node, value: Any, dtype: str) -> Any:
    """Bind the numbers that a tensor of codes stands for: float32, int32 for integers."""

    def compute(code: te.Tensor) -> te.Tensor:
        return te.compute(code.shape, lambda *i: decode(code(*i), dtype), name="decoded")

    return node.emit_te(compute, value, primfunc_name_hint=f"decode_{dtype}")


def encoded(
    node: Node, value: Any, dtype: str, saturate: bool = True, round_mode: str = "up"
) -> Any:
    """Bind the codes of numbers of any type."""
    if dtype not in INTEGERS:
        value = node.cast(value, "float32")
    elif is_float(dtype_of(value)):
        wide = node.cast(value, "float32")
        value = op.astype(node.emit(op.clip(wide, -_LIMIT, _LIMIT)), "int32")
    else:
        value = node.cast(value, "int32")

    def compute(number: te.Tensor) -> te.Tensor:
        return te.compute(
            number.shape,
            lambda *i: encode(number(*i), dtype, saturate, round_mode),
            name="encoded",
        )

    return node.emit_te(compute, node.emit(value), primfunc_name_hint=f"encode_{dtype}")


@register("BitCast")
def bit_cast(node: Node) -> Any:
    """Convert BitCast between types of the same width."""
    to = helper.tensor_dtype_to_np_dtype(node.attribute("to")).name
    dtype, x = node.dtype(), node.inputs[0]
    if dtype == to:
        return x
    if to == "bool":
        raise Unsupported("to bool", "compare with zero")
    if dtype == "bool":
        return relax.op.astype(x, to)
    if DataType(dtype).bits != DataType(to).bits:
        raise Unsupported(f"of {dtype} to {to}", "cast between types of one width")
    if is_integer(dtype) and is_integer(to):
        return relax.op.astype(x, to)  # keeps the bits

    def reinterpret(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *at: tirx.reinterpret(to, data(*at)), name="bitcast")

    return node.emit_te(reinterpret, x, primfunc_name_hint="bitcast")
