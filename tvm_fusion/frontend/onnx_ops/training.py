"""Convert Dropout and BatchNormalization with their training modes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..registry import Unsupported
from ..tensor_types import accumulation_dtype
from .node import Node
from .registry import register

op = relax.op


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
