"""Operators that ONNX Runtime's graph optimizations make of standard ones."""

from typing import Any

from tvm import relax

from ..node import Node
from ..registry import other_than, register

op = relax.op
# Names of the attributes that hold the parameters of a fused activation.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
_KNOWN_ACTIVATION = other_than(activation=tuple(_ACTIVATIONS))


@register("com.microsoft::Gelu", "com.microsoft::BiasGelu", "com.microsoft::FastGelu")
def gelu(node: Node) -> Any:
    """Convert GELU with an optional bias, by erf or (FastGelu) by tanh."""
    x = node.inputs[0]
    if node.has(1):
        x = node.emit(op.add(x, node.inputs[1]))
    return op.nn.gelu_tanh(x) if node.op_type == "FastGelu" else op.nn.gelu(x)


@register("SimplifiedLayerNormalization", since=1)  # ONNX Runtime puts it in ONNX's own domain
def rms_norm(node: Node) -> Any:
    """Convert RMS normalization over the axes from ``axis`` on."""
    rank = len(node.shape())
    axes = list(range(node.attribute("axis", -1) % rank, rank))
    node.attribute("stash_type")  # computed in float32 or wider
    return [op.nn.rms_norm(*node.inputs[:2], axes, node.attribute("epsilon", 1e-5)), None]


@register("com.microsoft::SkipLayerNormalization")
@register("com.microsoft::SkipSimplifiedLayerNormalization")
def skip_norm(node: Node) -> Any:
    """Convert the normalization of ``input + skip + bias``; the fourth output is that sum."""
    is_rms = "Simplified" in node.op_type
    x, skip, gamma, *optional = node.inputs[:5]
    beta, bias = (None, optional[0]) if is_rms else optional
    total = node.emit(op.add(x, skip))
    if bias is not None:
        total = node.emit(op.add(total, bias))
    epsilon = node.attribute("epsilon", 1e-12)
    if is_rms:
        result = op.nn.rms_norm(total, gamma, [-1], epsilon)
    else:
        beta = op.zeros_like(gamma) if beta is None else beta
        result = op.nn.layer_norm(total, gamma, beta, [-1], epsilon)
    return [result, None, None, total]


@register("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def fused_matmul(node: Node) -> Any:
    """Convert ``alpha * A @ B`` of operands transposed on the way."""
    operands = []
    for i, letter in enumerate("AB"):
        axes = list(range(len(node.shape(i))))
        if node.attribute(f"transBatch{letter}", 0):  # the first axis goes behind the batch
            axes.insert(len(axes) - 2, axes.pop(0))
        if node.attribute(f"trans{letter}", 0) and len(axes) > 1:
            axes[-2:] = axes[:-3:-1]
        x = node.inputs[i]
        operands.append(x if axes == sorted(axes) else node.emit(op.permute_dims(x, axes)))
    product = op.matmul(*operands)
    alpha = node.attribute("alpha", 1.0)
    return product if alpha == 1 else op.multiply(product, relax.const(alpha, node.dtype()))


@register("com.microsoft::FusedConv", refuses=_KNOWN_ACTIVATION)
def fused_conv(node: Node) -> Any:
    """Convert a convolution, the addition of a tensor to it, and an activation."""
    activation = node.attribute("activation")
    parameters = node.attribute("activation_params", ())
    attributes = {
        name: node.attribute(name)
        for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        if node.attribute(name) is not None
    }
    x, weight, bias, other = node.inputs[:4]
    result = node.apply("Conv", x, weight, bias, **attributes)
    if other is not None:
        result = node.emit(op.add(result, other))
    if activation is None:
        return result
    return node.apply(
        activation, result, **dict(zip(_ACTIVATIONS[activation], parameters, strict=False))
    )


@register("com.microsoft::FusedGemm", refuses=_KNOWN_ACTIVATION)
def fused_gemm(node: Node) -> Any:
    """Convert Gemm and an activation."""
    activation = node.attribute("activation")
    attributes = {
        name: node.attribute(name)
        for name in ("alpha", "beta", "transA", "transB")
        if node.attribute(name) is not None
    }
    result = node.apply("Gemm", *node.inputs[:3], **attributes)
    if activation is None:
        return result
    parameters = {name: node.attribute(f"activation_{name}") for name in _ACTIVATIONS[activation]}
    given = {name: value for name, value in parameters.items() if value is not None}
    return node.apply(activation, result, **given)


@register("com.microsoft::EmbedLayerNormalization")
def embedding(node: Node) -> Any:
    """Convert the sum of embeddings of words, positions and segments, normalized."""
    ids, segments, words, places = node.inputs[:4]
    total = node.emit(op.take(words, ids, 0))
    if node.has(8):
        found = op.take(places, node.inputs[8], 0)
    else:
        steps = list(ids.ty.shape)[1]
        found = op.take(places, op.arange(0, steps, dtype="int64"), 0)
    total = node.emit(op.add(total, node.emit(found)))
    if segments is not None and node.has(4):
        total = node.emit(op.add(total, node.emit(op.take(node.inputs[4], segments, 0))))
    epsilon = node.attribute("epsilon", 1e-12)
    result = op.nn.layer_norm(total, node.inputs[5], node.inputs[6], [-1], epsilon)
    node.attribute("mask_index_type")
    if node.has(7):
        mask = op.sum(node.inputs[7], [1])
    else:
        mask = op.zeros([next(iter(ids.ty.shape))], "int32")
    return [result, mask, total]


@register("com.microsoft::GroupNorm", "com.microsoft::SkipGroupNorm")
def group_norm(node: Node) -> Any:
    """Convert group normalization of images whose channels are last, with SiLU or without."""
    x, gamma, beta = node.inputs[:3]
    if node.op_type == "SkipGroupNorm":
        skip = node.inputs[3]
        if len(node.shape(3)) == 2:  # batch and channels
            skip = node.emit(op.expand_dims(skip, [1, 2]))
        x = node.emit(op.add(x, skip))
        if node.has(4):
            x = node.emit(op.add(x, node.inputs[4]))
    axis = -1 if node.attribute("channels_last", 1) else 1
    rank = len(node.shape())
    behind = [a for a in range(1, rank) if a != axis % rank]
    groups, epsilon = node.attribute("groups"), node.attribute("epsilon", 1e-5)
    result = op.nn.group_norm(x, gamma, beta, groups, axis, behind, epsilon)
    if node.attribute("activation", 0):
        result = op.nn.silu(node.emit(result))
    return [result, x][: 2 if node.op_type == "SkipGroupNorm" else 1]
