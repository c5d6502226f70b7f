"""Element by element: signs of infinity, remainders, activations in every float type."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import is_prim_expr

from ..dtypes import accumulation_dtype, is_float, is_integer
from .node import Node
from .registry import register

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


@register("Mod", takes_extents=True)
def mod(node: Node) -> Any:
    """Convert Mod of floats; integers are left to TVM.

    Python's remainder of floats, with the sign of the divisor, as ``fmod`` corrected by one
    divisor: ``floor_mod`` loses it for large quotients and for infinite divisors.
    """
    x, y = node.inputs
    if is_prim_expr(x) or is_prim_expr(y) or isinstance(x, relax.ShapeExpr):
        return None
    if isinstance(y, relax.ShapeExpr) or "float" not in node.dtype():
        return None
    dtype = node.dtype()
    wide = accumulation_dtype(dtype)
    if wide != dtype:
        x, y = op.astype(x, wide), op.astype(y, wide)
    zero = relax.const(0, wide)
    rest = node.emit(_fmod(node, x, y))
    if not node.attribute("fmod", 0):
        other_sign = op.logical_and(
            op.not_equal(rest, zero), op.not_equal(op.less(rest, zero), op.less(y, zero))
        )
        rest = op.where(other_sign, op.add(rest, y), rest)
    return op.astype(rest, dtype) if wide != dtype else rest


def _fmod(node: Node, x: Any, y: Any) -> Any:
    """Return C's fmod; LLVM's own handles infinities, TVM's constant folding does not."""
    return op.mod(x, y)


@register("Elu")
def elu(node: Node) -> Any:
    """Convert Elu: TVM's constants are float32 whatever the type of the data."""
    x, dtype = node.inputs[0], node.dtype()
    if dtype == "float32":
        return None
    alpha = relax.const(node.attribute("alpha", 1.0), dtype)
    below = op.multiply(alpha, op.subtract(op.exp(x), relax.const(1, dtype)))
    return op.where(op.less(x, relax.const(0, dtype)), below, x)


@register("Selu")
def selu(node: Node) -> Any:
    """Convert Selu: TVM's constants are float32 whatever the type of the data."""
    x, dtype = node.inputs[0], node.dtype()
    if dtype == "float32":
        return None
    alpha = relax.const(node.attribute("alpha", 1.67326319217681884765625), dtype)
    gamma = relax.const(node.attribute("gamma", 1.05070102214813232421875), dtype)
    below = op.multiply(alpha, op.subtract(op.exp(x), relax.const(1, dtype)))
    return op.multiply(gamma, op.where(op.less(x, relax.const(0, dtype)), below, x))


@register("Sign")
def sign(node: Node) -> Any:
    """Convert Sign of floats: NaN for NaN, of which Relax's sign is 0."""
    if is_prim_expr(node.inputs[0]) or "float" not in node.dtype():
        return None
    x = node.inputs[0]
    return op.where(op.isnan(x), x, op.sign(x))


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
