"""Convert elementwise operators: activations, remainders, powers."""

from functools import reduce
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import is_prim_expr

from ...operators import formulas
from ...registry import Unsupported
from ...tensor_types import accumulation_dtype, is_float, is_integer, static
from ..node import Node
from ..registry import register

op = relax.op


@register("IsInf")
def is_inf(node: Node) -> Any:
    """Convert IsInf, whose attributes choose the signs that count."""
    positive = node.attribute("detect_positive", 1)
    negative = node.attribute("detect_negative", 1)
    x, dtype = node.inputs[0], node.dtype()
    if positive and negative:
        return op.isinf(x)
    if not positive and not negative:
        return op.zeros(relax.ShapeExpr(node.shape()), "bool")
    return op.equal(x, relax.const(np.inf if positive else -np.inf, dtype))


@register("And", "Not", "Or", "Xor", takes_extents=True)
def logical(node: Node) -> None:
    """Refuse numbers, which ONNX does not take for truth values; others are left to TVM."""
    numbers = [d for d in map(node.dtype, range(len(node.inputs))) if d not in ("bool", "")]
    if numbers:
        raise Unsupported(f"of {numbers[0]}", "cast its inputs to bool")


@register("Max", "Mean", "Min", "Sum", takes_extents=True)
def of_nothing(node: Node) -> Any:
    """Convert those of no elements, which TVM broadcasts to extents of one; others are TVM's."""
    types = [getattr(value, "ty", None) for value in node.inputs]
    shapes = [ty.shape for ty in types if isinstance(ty, relax.TensorType) and ty.shape is not None]
    if len(shapes) < len(types) or 0 not in [static(e) for shape in shapes for e in shape]:
        return None
    return reduce(lambda x, y: node.emit(op.add(x, y)), node.inputs)


@register("Mod", takes_extents=True)
def mod(node: Node) -> Any:
    """Convert Mod of floats, by C's remainder or Python's; integers are left to TVM."""
    x, y = node.inputs
    if any(is_prim_expr(v) or isinstance(v, relax.ShapeExpr) for v in (x, y)):
        return None
    if not is_float(node.dtype()):
        return None
    x, y = node.wide(x), node.wide(y)
    rest = op.mod(x, y) if node.attribute("fmod", 0) else formulas.remainder(x, y, node.emit)
    return node.cast(rest, node.dtype())


@register("Div", takes_extents=True)
def divide(node: Node) -> Any:
    """Convert Div of integers by a constant with zeros, which TVM refuses; others are TVM's."""
    divisor = None if is_prim_expr(node.inputs[1]) else node.constant(1)
    if is_prim_expr(node.inputs[0]) or isinstance(node.inputs[0], relax.ShapeExpr):
        return None
    if divisor is None or not is_integer(node.dtype()) or divisor.all():
        return None
    return op.divide(*node.inputs)


@register("Elu", "Selu")
def elu(node: Node) -> Any:
    """Convert Elu and Selu: TVM's constants are float32 whatever the type of the data."""
    if node.dtype() == "float32":
        return None
    default = 1.0 if node.op_type == "Elu" else 1.67326319217681884765625
    scale = 1.0 if node.op_type == "Elu" else node.attribute("gamma", 1.05070102214813232421875)
    x, dtype = node.wide(node.inputs[0]), node.dtype()
    result = formulas.elu(x, node.attribute("alpha", default), scale, dtype=dtype)
    return node.cast(result, dtype)


@register("Sign")
def sign(node: Node) -> Any:
    """Convert Sign of floats: NaN for NaN, of which Relax's sign is 0."""
    if is_prim_expr(node.inputs[0]) or not is_float(node.dtype()):
        return None
    x = node.inputs[0]
    return op.where(op.isnan(x), x, op.sign(x))


@register("PRelu")
def prelu(node: Node) -> Any:
    """Convert PRelu of integers, which Relax's operator refuses; of floats it is left to TVM."""
    x, slope = node.inputs
    if not is_integer(node.dtype()):
        return None
    return op.where(op.less(x, relax.const(0, node.dtype())), op.multiply(x, slope), x)


@register("Shrink")
def shrink(node: Node) -> Any:
    """Convert Shrink of integers, whose bias has a fraction; of floats it is left to TVM."""
    if not is_integer(node.dtype()):
        return None
    limit, bias = (
        relax.const(node.attribute(name, default), "float64")
        for name, default in (("lambd", 0.5), ("bias", 0.0))
    )
    x = node.emit(op.astype(node.inputs[0], "float64"))
    below, above = op.less(x, op.negative(limit)), op.greater(x, limit)
    outer = op.where(above, op.subtract(x, bias), relax.const(0, "float64"))
    return op.astype(op.where(below, op.add(x, bias), outer), node.dtype())


@register("ThresholdedRelu")
def thresholded_relu(node: Node) -> Any:
    """Convert ThresholdedRelu: TVM multiplies by a float32 mask, which loses types and NaN."""
    x, dtype = node.inputs[0], node.dtype()
    threshold = relax.const(node.attribute("alpha", 1.0), dtype)
    return op.where(op.greater(x, threshold), x, relax.const(0, dtype))


@register("Swish", "com.microsoft::QuickGelu")
def swish(node: Node) -> Any:
    """Convert ``x * sigmoid(alpha * x)``; the two names differ in their default."""
    x, alpha = node.inputs[0], node.attribute("alpha", 1.0 if node.op_type == "Swish" else 1.702)
    inner = x if alpha == 1 else op.multiply(x, relax.const(alpha, node.dtype()))
    return op.multiply(x, op.sigmoid(inner))


@register("Pow")
def power(node: Node) -> Any:
    """Convert Pow; the result has the type of the base.

    Integers are raised to integers as int64, which wraps around as narrower types do.
    """
    (base, exponent), (x, y) = (node.dtype(0), node.dtype(1)), node.inputs
    if base == exponent and is_float(base):
        return None
    if is_float(base):
        return op.power(x, op.astype(y, base))
    wide = "int64" if is_integer(exponent) else accumulation_dtype(exponent)
    return op.astype(op.power(op.astype(x, wide), op.astype(y, wide)), base)
