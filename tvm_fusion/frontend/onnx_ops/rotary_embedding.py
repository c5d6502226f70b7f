"""Rotary embedding of ONNX Runtime's domain."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .attention_heads import join_heads, split_heads
from .node import Node
from .registry import Unsupported, register

op = relax.op


@register("com.microsoft::RotaryEmbedding")
def rotary_embedding(node: Node) -> Any:
    """Convert the rotation of pairs by angles of positions."""
    x, cos, sin = node.inputs[0], node.inputs[2], node.inputs[3]
    if node.attribute("scale", 1.0) != 1.0 or node.attribute("is_packed_batching", 0):
        raise Unsupported("with a scale or packed batches", "use scale=1 and padded batches")
    partial = node.attribute("rotary_embedding_dim", 0)
    half = node.static_shape(2)[1]
    shape = node.shape(0)
    heads = node.attribute("num_heads", 0)
    is_flat = len(shape) == 3
    if is_flat:
        width = shape[2] // heads if partial and heads else 2 * half
        x = split_heads(node, x, shape[2] // width)
    steps = list(x.ty.shape)[2]
    positions = node.inputs[1]
    if len(node.shape(1)) == 1:  # of the first row's first element
        positions = op.add(op.arange(0, steps, dtype=node.dtype(1)), positions)
        positions = op.expand_dims(node.emit(positions), 0)
    angles = look_up_angles(node, node.emit(positions), cos, sin)
    result = rotate(node, x, *angles, bool(node.attribute("interleaved", 0)))
    return join_heads(node, result) if is_flat else result


def look_up_angles(node: Node, positions: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Look cosines and sines up: batch, 1, length, half of the width."""
    found = [node.emit(op.take(table, positions, 0)) for table in (cos, sin)]
    return node.emit(op.expand_dims(found[0], 1)), node.emit(op.expand_dims(found[1], 1))


def rotate(node: Node, x: Any, cos: Any, sin: Any, is_interleaved: bool) -> Any:
    """Rotate the pairs of the first elements of each head; the others stay."""
    shape = list(x.ty.shape)
    width, half = int(shape[3]), int(list(cos.ty.shape)[3])

    def part(start: int, end: int, step: int = 1) -> Any:
        return node.emit(op.strided_slice(x, [3], [start], [end], [step]))

    if is_interleaved:
        first, second = part(0, 2 * half, 2), part(1, 2 * half, 2)
    else:
        first, second = part(0, half), part(half, 2 * half)
    one = op.subtract(node.emit(op.multiply(first, cos)), node.emit(op.multiply(second, sin)))
    two = op.add(node.emit(op.multiply(first, sin)), node.emit(op.multiply(second, cos)))
    rotated = [node.emit(one), node.emit(two)]
    if is_interleaved:
        pairs = node.emit(op.stack(rotated, -1))
        rotated = [node.emit(op.reshape(pairs, [*shape[:3], 2 * half]))]
    rest = [part(2 * half, width)] if width > 2 * half else []
    joined = [*rotated, *rest]
    return joined[0] if len(joined) == 1 else node.emit(op.concat(joined, 3))
