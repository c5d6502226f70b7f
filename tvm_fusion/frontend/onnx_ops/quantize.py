"""Convert QuantizeLinear and DequantizeLinear of narrow types, and with blocks of any type."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from ...core.constants.narrow_types import INTEGERS, NARROW, integer_range
from ..onnx_model.types import dtype_name
from ..registry import Unsupported
from ..tensor_types import is_integer, static
from .casts import decoded, encoded
from .node import Node
from .registry import register

op = relax.op
_LIMIT = 2.0**30  # of a quotient that becomes an integer, and is clipped to far less


@register("QuantizeLinear")
def quantize(node: Node) -> Any:
    """Convert QuantizeLinear to a narrow type, in blocks, or by a scale of 0; others are TVM's.

    NaN becomes 0 of each type of integers.
    """
    wanted, block = node.attribute("output_dtype", 0), node.attribute("block_size", 0)
    target = dtype_name(wanted) if wanted else "uint8"
    if node.has(2):
        target = node.narrow_dtype(2) or node.dtype(2)
    precision = node.attribute("precision", 0)
    scales = node.constant(1)
    is_divided = scales is None or bool(np.all(np.asarray(scales, "float64") != 0))
    if target not in NARROW and not block and not precision and is_divided:
        return None
    dtype = dtype_name(precision) if precision else node.dtype(1)
    if not precision and node.dtype(0) != dtype:
        dtype = "float32"
    axis = node.attribute("axis", 1)
    scale = _spread(node, node.cast(node.inputs[1], dtype), axis, block)
    ratio = node.emit(op.divide(node.cast(node.inputs[0], dtype), scale))
    saturate = bool(node.attribute("saturate", 1))
    if target not in INTEGERS and not is_integer(target):
        if target == "float4_e2m1fn" and node.has(2):
            zero = decoded(node, node.inputs[2], target)
            ratio = op.add(node.cast(ratio, "float32"), _spread(node, zero, axis, block))
        else:
            _require_zero(node, target)
        return encoded(node, node.emit(ratio), target, saturate)
    rounded = node.emit(op.round(node.cast(ratio, "float32")))
    number = op.astype(node.emit(op.clip(rounded, -_LIMIT, _LIMIT)), "int32")
    if node.has(2):
        number = op.add(number, _spread(node, _numbers(node, 2, "int32"), axis, block))
    low, high = _range(target)
    number = node.emit(op.clip(node.emit(number), low, high))
    number = node.emit(op.where(op.isnan(rounded), relax.const(0, "int32"), number))
    return encoded(node, number, target) if target in NARROW else op.astype(number, target)


@register("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> Any:
    """Convert DynamicQuantizeLinear; the scale of zeros is 1, as in ONNX Runtime."""
    x, dtype = node.inputs[0], node.dtype()
    zero, most = relax.const(0, dtype), relax.const(255, dtype)
    high, low = op.maximum(zero, op.max(x)), node.emit(op.minimum(zero, op.min(x)))
    scale = node.emit(op.divide(op.subtract(high, low), most))
    scale = node.emit(op.where(op.equal(scale, zero), relax.const(1, dtype), scale))
    start = op.round(op.clip(op.subtract(zero, op.divide(low, scale)), 0, 255))
    start = node.emit(op.astype(start, "uint8"))
    return [op.quantize(x, scale, start, axis=0, out_dtype="uint8"), scale, start]


@register("DequantizeLinear")
def dequantize(node: Node) -> Any:
    """Convert DequantizeLinear of a narrow type or in blocks; all others are left to TVM."""
    source, block = node.narrow_dtype(0), node.attribute("block_size", 0)
    wanted, axis = node.attribute("output_dtype", 0), node.attribute("axis", 1)
    if not source and not block and not wanted:
        return None
    value = node.emit(_numbers(node, 0, "float32"))
    if node.has(2) and source.startswith("float8"):
        _require_zero(node, source)
    elif node.has(2):
        zero = _spread(node, node.emit(_numbers(node, 2, "float32")), axis, block)
        value = op.subtract(value, zero)
    scale = _spread(node, node.cast(node.inputs[1], "float32"), axis, block)
    result = node.emit(op.multiply(node.emit(value), scale))
    return node.cast(result, dtype_name(wanted) if wanted else node.dtype(1))


def _numbers(node: Node, index: int, dtype: str) -> Any:
    """Return an input's numbers, decoded where it is narrow."""
    narrow, value = node.narrow_dtype(index), node.inputs[index]
    return node.cast(decoded(node, value, narrow) if narrow else value, dtype)


def _range(dtype: str) -> tuple[int, int]:
    if dtype in INTEGERS:
        return integer_range(dtype)
    return int(tirx.min_value(dtype).value), int(tirx.max_value(dtype).value)


def _require_zero(node: Node, dtype: str) -> None:
    """Raise for a zero point of 8-bit floats other than zero, which ONNX does not define."""
    zero = node.constant(2) if node.has(2) else None
    if zero is not None and (zero & 0x7F).any():
        raise Unsupported(f"of {dtype} with a zero point other than zero", "leave it out")


def _spread(node: Node, value: Any, axis: int, block: int) -> Any:
    """Bring a scale or zero point into a form that broadcasts over the data.

    It has one element, one for each index along an axis, or one for each block along it.
    """
    value = node.emit(value)
    extents = list(value.ty.shape.values)
    if not extents or (len(extents) == 1 and static(extents[0]) == 1):
        return node.emit(op.reshape(value, relax.ShapeExpr([])))
    shape = node.shape(0)
    axis %= len(shape)
    if not block:
        target = [1] * len(shape)
        target[axis] = extents[0]
        return node.emit(op.reshape(value, relax.ShapeExpr(target)))
    size = node.static_shape(0)[axis]
    value = node.emit(op.repeat(value, block, axis))
    if int(value.ty.shape.values[axis]) == size:
        return value
    return node.emit(op.strided_slice(value, [axis], [0], [size]))
