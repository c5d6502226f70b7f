"""Quantized operators: products of bytes in int32, convolutions, and requantization.

``y = saturate(round(x * multiplier) + zero)``, where the multiplier is that of ONNX Runtime: the
operands' scales over the result's, in float32. Products of matrices are MatMulInteger's, and
convolutions ConvInteger's, in int32: rewriting makes products of bytes of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of
from .node import Node
from .registry import Unsupported, register

op = relax.op
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


@register("com.microsoft::QLinearGlobalAveragePool")
def global_average_pool(node: Node) -> Any:
    """Convert the mean of each channel of a quantized image, quantized again."""
    if node.attribute("channels_last", 0):
        raise Unsupported("with channels last", "use channels_last=0")
    _only_bytes(node, (0,))
    axes = list(range(2, len(node.shape())))
    return _quantized(node, node.emit(op.mean(_dequantized(node, 0), axes, keepdims=True)), 3)


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
    given = {name: value for name in names if (value := node.attribute(name)) is not None}
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


def _quantized(node: Node, x: Any, place: int) -> Any:
    """Quantize by the scale and zero point at a place."""
    y = node.emit(op.round(node.emit(op.divide(x, node.inputs[place]))))
    return _offset(node, y, place + 1)


def _requantized(node: Node, total: Any, multiplier: Any, place: int) -> Any:
    """Scale a sum, and add the zero point at a place."""
    y = node.emit(op.round(node.emit(op.multiply(total, multiplier))))
    return _offset(node, y, place)


def _offset(node: Node, y: Any, place: int) -> Any:
    dtype = node.dtype(place) if node.has(place) else node.dtype(0)
    if node.has(place):
        y = node.emit(op.add(y, op.astype(node.inputs[place], "float32")))
    return _saturated(y, dtype)


def _saturated(y: Any, dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return op.astype(op.clip(y, int(limits.min), int(limits.max)), dtype)
