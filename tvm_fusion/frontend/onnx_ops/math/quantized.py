"""Quantized operators: QuantizeLinear and its inverse, products of bytes in int32, requantization.

Narrow types, and blocks of any type, are rounded here; the rest of both linear operators is TVM's.
"""

from typing import Any

import numpy as np
from tvm import relax, tirx

from ....core.constants.narrow_types import INTEGERS, NARROW, integer_range
from ...onnx_model.types import dtype_name
from ...tensor_types import dtype_of, is_integer, static
from ..node import Node
from ..registry import Unsupported, register
from .casts import decoded, encoded

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


# Quantized operators: products of bytes in int32, convolutions, and requantization.
#
# ``y = saturate(round(x * multiplier) + zero)``, where the multiplier is that of ONNX Runtime: the
# operands' scales over the result's, in float32. Products of matrices are MatMulInteger's, and
# convolutions ConvInteger's, in int32: rewriting makes products of bytes of them.


BYTES = ("int8", "uint8")


@register("QLinearMatMul")
def matmul(node: Node) -> Any:
    """Convert the product of quantized matrices, quantized again."""
    _only_bytes(node, (0, 3))
    a_zero, b_zero = _column(node, node.inputs[2], 0), node.inputs[5]
    total = _products(node, node.inputs[0], node.inputs[3], a_zero, b_zero)
    scale = op.multiply(_column(node, _f32(node, 1), 0), _f32(node, 4))
    multiplier = node.emit(op.divide(node.emit(scale), _f32(node, 6)))
    return _requantized(node, node.cast(total, "float32"), multiplier, 7)


@register("com.microsoft::QGemm")
def gemm(node: Node) -> Any:
    """Convert the product of quantized matrices with a bias, quantized again or not."""
    _only_bytes(node, (0, 3))
    a, b = node.inputs[0], node.inputs[3]
    if node.attribute("transA", 0):
        a = node.emit(op.permute_dims(a))
    if node.attribute("transB", 0):
        b = node.emit(op.permute_dims(b))
    total = _products(node, a, b, node.inputs[2], node.inputs[5])
    if node.has(6):  # in units of the product
        total = node.emit(op.add(total, node.inputs[6]))
    alpha = relax.const(node.attribute("alpha", 1.0), "float32")
    scale = node.emit(op.multiply(op.multiply(_f32(node, 1), _f32(node, 4)), alpha))
    total = node.emit(node.cast(total, "float32"))
    if not node.has(7):
        return op.multiply(total, scale)
    return _requantized(node, total, node.emit(op.divide(scale, _f32(node, 7))), 8)


@register("com.microsoft::MatMulIntegerToFloat")
def matmul_to_float(node: Node) -> Any:
    """Convert the product of quantized matrices in floating point numbers."""
    _only_bytes(node, (0, 1))
    total = _products(node, node.inputs[0], node.inputs[1], node.inputs[4], node.inputs[5])
    scale = node.emit(op.multiply(node.inputs[2], node.inputs[3]))
    result = node.emit(op.multiply(node.cast(total, dtype_of(scale)), scale))
    return op.add(result, node.inputs[6]) if node.has(6) else result


@register("com.microsoft::DynamicQuantizeMatMul")
def dynamic_matmul(node: Node) -> Any:
    """Convert a product whose left matrix is quantized by its own range."""
    _only_bytes(node, (1,))
    x, zero, most = node.inputs[0], relax.const(0, "float32"), relax.const(255, "float32")
    high, low = op.maximum(op.max(x), zero), node.emit(op.minimum(op.min(x), zero))
    scale = node.emit(op.divide(op.subtract(high, low), most))
    start = op.clip(op.round(op.divide(op.negative(low), scale)), 0, 255)
    start = node.emit(op.astype(node.emit(start), "uint8"))
    a = node.emit(op.quantize(x, scale, start, axis=0, out_dtype="uint8"))
    total = _products(node, a, node.inputs[1], start, node.inputs[3])
    factor = node.emit(op.multiply(scale, node.inputs[2]))
    result = node.emit(op.multiply(node.cast(total, "float32"), factor))
    return op.add(result, node.inputs[4]) if node.has(4) else result


@register("QLinearConv", "com.microsoft::QLinearConv")
def convolution(node: Node) -> Any:
    """Convert the convolution of quantized tensors, quantized again."""
    if node.attribute("channels_last", 0):
        raise Unsupported("with channels last", "use channels_last=0")
    _only_bytes(node, (0, 3))
    total = _convolved(node, 0, 3, node.inputs[2], node.inputs[5])
    behind = [1] * (len(node.shape(3)) - 2)
    if node.has(8):  # in units of the product
        bias = node.emit(op.reshape(node.inputs[8], [-1, *behind]))
        total = node.emit(op.add(total, bias))
    total = node.emit(node.cast(total, "float32"))
    scale = op.multiply(_f32(node, 1), _f32(node, 4))
    multiplier = node.emit(op.divide(node.emit(scale), _f32(node, 6)))
    if len(node.shape(4)) == 1 and node.shape(4) != [1]:
        multiplier = node.emit(op.reshape(multiplier, [-1, *behind]))
    return _requantized(node, total, multiplier, 7)


@register("ConvInteger")
def integer_convolution(node: Node) -> Any:
    """Convert the convolution of bytes, exactly."""
    _only_bytes(node, (0, 1))
    return _convolved(node, 0, 1, node.inputs[2], node.inputs[3])


@register("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def arithmetic(node: Node) -> Any:
    """Convert a sum or product of quantized tensors, quantized again."""
    _only_bytes(node, (0, 3))
    a, b = (_dequantized(node, i) for i in (0, 3))
    result = node.emit((op.add if node.op_type == "QLinearAdd" else op.multiply)(a, b))
    return _quantized(node, result, 6)


@register("com.microsoft::QLinearSigmoid", "com.microsoft::QLinearLeakyRelu")
def activation(node: Node) -> Any:
    """Convert an activation of a quantized tensor, quantized again."""
    _only_bytes(node, (0,))
    x = _dequantized(node, 0)
    if node.op_type == "QLinearSigmoid":
        return _quantized(node, node.emit(op.sigmoid(x)), 3)
    slope = node.attribute("alpha", 0.01)
    return _quantized(node, node.emit(op.nn.leakyrelu(x, slope)), 3)


@register("com.microsoft::QLinearGlobalAveragePool", "com.microsoft::QLinearAveragePool")
def average_pool(node: Node) -> Any:
    """Convert means of a quantized image, of all of it or of windows, quantized again."""
    _only_bytes(node, (0,))
    x, rank = _dequantized(node, 0), len(node.shape())
    is_last = bool(node.attribute("channels_last", 0))
    if is_last:
        x = node.emit(op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))
    if node.op_type == "QLinearGlobalAveragePool":
        x = node.emit(op.mean(x, list(range(2, rank)), keepdims=True))
    else:
        if node.attribute("ceil_mode", 0) and node.attribute("count_include_pad", 0):
            raise Unsupported(
                "with ceil_mode and count_include_pad, which ONNX Runtime divides otherwise",
                "leave one out",
            )
        names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
        x = node.emit(node.apply("AveragePool", x, **_given(node, names)))
    if is_last:
        x = node.emit(op.permute_dims(x, [0, *range(2, rank), 1]))
    return _quantized(node, x, 3)


@register("com.microsoft::QLinearConcat")
def concat(node: Node) -> Any:
    """Convert the concatenation of tensors by scales of their own, quantized by one."""
    places = range(2, len(node.inputs), 3)
    _only_bytes(node, tuple(places))
    parts = [_dequantized(node, place) for place in places]
    y = node.emit(op.concat(parts, node.attribute("axis")))
    return _quantized(node, y, 0, node.dtype(2))


@register("com.microsoft::QLinearSoftmax")
def softmax(node: Node) -> Any:
    """Convert Softmax of a quantized tensor, until opset 12 over all axes from one on."""
    _only_bytes(node, (0,))
    x, shape = _dequantized(node, 0), node.shape()
    axis = node.attribute("axis", -1) % len(shape)
    if node.attribute("opset") < 13 and axis < len(shape) - 1:
        rows = int(np.prod(node.static_shape()[:axis]))
        x, axis = node.emit(op.reshape(x, [rows, -1])), 1
    y = node.emit(op.nn.softmax(x, axis))
    return _quantized(node, node.emit(op.reshape(y, shape)), 3)


@register("com.microsoft::QLinearWhere")
def where(node: Node) -> Any:
    """Convert the choice between quantized tensors, quantized again."""
    _only_bytes(node, (1, 4))
    y = op.where(node.inputs[0], _dequantized(node, 1), _dequantized(node, 4))
    return _quantized(node, node.emit(y), 7)


def _given(node: Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := node.attribute(name)) is not None}


def _only_bytes(node: Node, places: tuple[int, ...]) -> None:
    for place in places:
        if node.dtype(place) not in BYTES:
            raise Unsupported(f"of {node.dtype(place)}", "quantize to int8 or uint8")


def _f32(node: Node, place: int) -> Any:
    return node.emit(node.cast(node.inputs[place], "float32"))


def _column(node: Node, x: Any, matrix: int) -> Any:
    """Add an axis for the columns to a value that each row of a matrix has."""
    if x is None or len(x.ty.shape) != 1 or len(node.shape(matrix)) < 2:
        return x
    extent = next(iter(x.ty.shape))
    return x if str(extent) == "1" else node.emit(op.expand_dims(x, 1))


def _products(node: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """Multiply what is left of bytes without their zero points, in int32."""
    left, right = (
        node.emit(op.astype(x, "int32"))
        if zero is None
        else node.emit(op.subtract(op.astype(x, "int32"), op.astype(zero, "int32")))
        for x, zero in ((a, a_zero), (b, b_zero))
    )
    return node.emit(op.matmul(left, right))


def _convolved(node: Node, x: int, w: int, x_zero: Any, w_zero: Any) -> Any:
    """Convolve what is left of bytes without their zero points, in int32."""

    def centered(place: int, zero: Any) -> Any:
        value = node.emit(op.astype(node.inputs[place], "int32"))
        if zero is None:
            return value
        zero = node.emit(op.astype(zero, "int32"))
        if len(zero.ty.shape) == 1:  # of each output channel
            zero = node.emit(op.reshape(zero, [-1] + [1] * (len(node.shape(w)) - 1)))
        return node.emit(op.subtract(value, zero))

    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = _given(node, names)
    zero = x_zero
    if zero is not None and len(zero.ty.shape) == 1:
        zero = node.emit(op.reshape(zero, []))
    return node.emit(node.apply("Conv", centered(x, zero), centered(w, w_zero), **given))


def _dequantized(node: Node, place: int) -> Any:
    """Scale a tensor that stands before its scale and zero point."""
    x = node.emit(op.astype(node.inputs[place], "float32"))
    if node.has(place + 2):
        x = node.emit(op.subtract(x, op.astype(node.inputs[place + 2], "float32")))
    return node.emit(op.multiply(x, node.inputs[place + 1]))


def _quantized(node: Node, x: Any, place: int, dtype: str = "") -> Any:
    """Quantize by the scale and zero point at a place."""
    y = node.emit(op.round(node.emit(op.divide(x, node.inputs[place]))))
    return _offset(node, y, place + 1, dtype)


def _requantized(node: Node, total: Any, multiplier: Any, place: int) -> Any:
    """Scale a sum, and add the zero point at a place."""
    y = node.emit(op.round(node.emit(op.multiply(total, multiplier))))
    return _offset(node, y, place)


def _offset(node: Node, y: Any, place: int, otherwise: str = "") -> Any:
    dtype = node.dtype(place) if node.has(place) else otherwise or node.dtype(0)
    if node.has(place):
        y = node.emit(op.add(y, op.astype(node.inputs[place], "float32")))
    return _saturated(y, dtype)


def _saturated(y: Any, dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return op.astype(op.clip(y, int(limits.min), int(limits.max)), dtype)
