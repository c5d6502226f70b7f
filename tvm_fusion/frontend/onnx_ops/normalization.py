"""Convert LayerNormalization with statistics, LpNormalization, MVN and LRN."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..tensor_types import dtype_of
from .node import Node
from .registry import other_than, register

op = relax.op


@register("LayerNormalization", since=1)  # written by exporters before ONNX defined it
def layer_normalization(node: Node) -> Any:
    """Convert LayerNormalization where its statistics are read; otherwise it is left to TVM."""
    if not node.uses(1) and not node.uses(2):
        return None
    x, scale = node.inputs[0], node.inputs[1]
    rank, dtype = len(node.shape()), node.dtype()
    axes = list(range(node.attribute("axis", -1) % rank, rank))
    wide = "float64" if dtype == "float64" else "float32"
    data = node.emit(op.astype(x, wide))
    mean = node.emit(op.mean(data, axes, keepdims=True))
    centered = node.emit(op.subtract(data, mean))
    variance = op.mean(op.multiply(centered, centered), axes, keepdims=True)
    epsilon = relax.const(node.attribute("epsilon", 1e-5), wide)
    inverse = node.emit(op.divide(relax.const(1, wide), op.sqrt(op.add(variance, epsilon))))
    result = op.multiply(op.astype(op.multiply(centered, inverse), dtype), scale)
    if node.has(2):
        result = op.add(result, node.inputs[2])
    # The statistics have the type of the computation, which is float32 unless stash_type says so.
    return [result, op.astype(mean, "float32"), op.astype(inverse, "float32")]


@register("LpNormalization", refuses=other_than(p=(1, 2)))
def lp_normalization(node: Node) -> Any:
    """Convert LpNormalization, ``x / |x|_p`` along an axis; a vector of zeros stays one."""
    data = node.wide(node.inputs[0])
    wide = dtype_of(data)
    axes, order = [node.attribute("axis", -1)], node.attribute("p", 2)
    powers = op.abs(data) if order == 1 else op.multiply(data, data)
    norm = node.emit(op.sum(powers, axes, keepdims=True))
    norm = op.sqrt(norm) if order == 2 else norm
    one, zero = relax.const(1, wide), relax.const(0, wide)
    return node.cast(op.divide(data, op.where(op.equal(norm, zero), one, norm)), node.dtype())


@register("MeanVarianceNormalization")
def mean_variance(node: Node) -> Any:
    """Convert MeanVarianceNormalization by centered squares, in the type of its data."""
    x, dtype = node.inputs[0], node.dtype()
    axes = list(node.attribute("axes", [0, 2, 3]))
    centered = node.emit(op.subtract(x, op.mean(x, axes, keepdims=True)))
    variance = op.mean(op.multiply(centered, centered), axes, keepdims=True)
    return op.divide(centered, op.add(op.sqrt(variance), relax.const(1e-9, dtype)))


@register("LRN")
def lrn(node: Node) -> Any:
    """Convert LRN for windows of even sizes and other ranks and types; the rest is left to TVM.

    The window of channel c reaches from ``c - floor((size-1)/2)`` to ``c + ceil((size-1)/2)``.
    """
    size, dtype, shape = node.attribute("size"), node.dtype(), node.shape()
    if size % 2 and len(shape) in (3, 4) and dtype == "float32":
        return None
    before = (size - 1) // 2

    def sums(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")

        def element(n: Any, c: Any, *at: Any) -> Any:
            channel = c + k - before
            inside = tirx.all(channel >= 0, channel < x.shape[1])
            value = x(n, channel, *at)
            square = tirx.if_then_else(inside, value * value, tirx.const(0, x.dtype))
            return te.sum(square, axis=k)

        return te.compute(x.shape, element, name="lrn_sum")

    x = node.inputs[0]
    total = node.emit_te(sums, x, primfunc_name_hint="lrn_sum")
    alpha, beta = node.attribute("alpha", 1e-4), node.attribute("beta", 0.75)
    scaled = op.multiply(total, relax.const(alpha / size, dtype))
    base = op.add(scaled, relax.const(node.attribute("bias", 1.0), dtype))
    return op.divide(x, op.power(base, relax.const(beta, dtype)))
