"""Convert norms, with statistics and training modes, and Dropout."""

from typing import Any

from tvm import relax, te, tirx

from ...registry import Unsupported
from ...tensor_types import accumulation_dtype, dtype_of
from ..node import Node
from ..registry import other_than, register

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


@register("Dropout")
def dropout(node: Node) -> Any:
    """Convert Dropout of inference, which keeps everything; the mask is true, of ONNX's type."""
    if node.opset >= 12 and node.has(2):
        training = node.constant(2)
        ratio = node.constant(1)
        if training is None:
            raise Unsupported(
                "whose training_mode is an input of the model", "leave training_mode out"
            )
        dropped = 0.5 if not node.has(1) else None if ratio is None else float(ratio.reshape(-1)[0])
        if training.any() and dropped != 0:
            raise Unsupported(
                "in training mode, which draws random numbers",
                "export the model for inference (model.eval() in PyTorch)",
            )
    x = node.inputs[0]
    if not node.uses(1):
        return x
    dtype = "bool" if node.opset >= 10 else node.dtype()
    return [x, op.full(relax.ShapeExpr(node.shape()), relax.const(1, dtype), dtype)]


@register("BatchNormalization")
def batch_normalization(node: Node) -> Any:
    """Convert BatchNormalization in training mode by the statistics of the batch.

    ``running = running * momentum + batch * (1 - momentum)``, the variance of the population.
    """
    if node.opset < 14 or not node.attribute("training_mode", 0):
        if any(node.uses(i) for i in range(1, 5)):
            raise Unsupported(
                "with outputs for statistics, which belong to training",
                "export the model for inference (model.eval() in PyTorch)",
            )
        return None
    x, scale, bias, mean, variance = node.inputs
    rank, dtype = len(node.shape()), node.dtype()
    wide = accumulation_dtype(dtype)
    momentum = node.attribute("momentum", 0.9)
    axes = [axis for axis in range(rank) if axis != 1]
    channels = [1, -1] + [1] * (rank - 2)

    def as_wide(value: Any) -> Any:
        return node.emit(op.astype(value, wide))

    data = as_wide(x)
    batch_mean = node.emit(op.mean(data, axes, keepdims=True))
    centered = node.emit(op.subtract(data, batch_mean))
    batch_variance = node.emit(op.mean(op.multiply(centered, centered), axes, keepdims=True))
    epsilon = relax.const(node.attribute("epsilon", 1e-5), wide)
    result = op.divide(centered, op.sqrt(op.add(batch_variance, epsilon)))
    result = op.multiply(result, op.reshape(as_wide(scale), channels))
    result = op.add(result, op.reshape(as_wide(bias), channels))

    def running(old: Any, new: Any, index: int) -> Any:
        kept = op.multiply(as_wide(old), relax.const(momentum, wide))
        added = op.multiply(op.reshape(new, [-1]), relax.const(1 - momentum, wide))
        return op.astype(op.add(kept, added), node.dtype(index))

    return [
        op.astype(result, dtype),
        running(mean, batch_mean, 3),
        running(variance, batch_variance, 4),
    ]
