"""Embedding, group normalization and products with packed weights, of ONNX Runtime's domain.

Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..rounded_rows import rounded_rows, widened_rows
from .node import Node
from .registry import Unsupported, register

op = relax.op


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


@register("com.microsoft::MatMulNBits")
def packed_matmul(node: Node) -> Any:
    """Convert the product with weights of 4 or 8 bits whose blocks of terms share a scale."""
    bits, size = node.attribute("bits", 4), node.attribute("block_size")
    terms, columns = node.attribute("K"), node.attribute("N")
    # Level 4 asks for activations of int8; at others they stay as they are, which is more precise.
    rounds = node.attribute("accuracy_level", 0) == _INT8 and terms % size == 0
    if bits not in (4, 8):
        raise Unsupported(f"of {bits} bits", "use 4 or 8 bits")
    if node.has(4) or node.attribute("weight_prepacked", 0):
        raise Unsupported("with reordered weights", "leave g_idx out")
    dtype, blocks = node.dtype(), -(-terms // size)
    width = blocks * size
    # Unpacked as they are: two readers of the weights themselves keep these from being folded.
    values = node.emit(op.astype(_numbers(node, node.inputs[1], bits), dtype))
    zeros = relax.const(1 << (bits - 1), dtype)
    if node.has(3):
        zeros = node.inputs[3]
        if node.dtype(3) == "uint8":
            held = -(-blocks * bits // 8)
            rows = node.emit(op.reshape(zeros, [columns, held]))
            rows = _numbers(node, rows, bits)
            if held * 8 // bits != blocks:
                rows = node.emit(op.strided_slice(rows, [1], [0], [blocks]))
            zeros = node.emit(op.astype(rows, dtype))
        zeros = node.emit(op.reshape(zeros, [columns, blocks, 1]))
    scales = node.emit(op.reshape(node.inputs[2], [columns, blocks, 1]))
    weights = node.emit(op.multiply(node.emit(op.subtract(values, zeros)), scales))
    weights = node.emit(op.reshape(weights, [columns, width]))
    if width != terms:
        weights = node.emit(op.strided_slice(weights, [1], [0], [terms]))
    x = node.inputs[0]
    if rounds:
        x = widened_rows(node.emit, *rounded_rows(node.emit, x, size), x)
    result = op.matmul(x, node.emit(op.permute_dims(weights)))
    return op.add(node.emit(result), node.inputs[5]) if node.has(5) else result


_INT8 = 4  # an accuracy level


def _numbers(node: Node, packed: Any, bits: int) -> Any:
    """Unpack the numbers of bytes along the last axis, the low half of a byte first."""
    if bits == 8:
        return packed
    low = node.emit(op.bitwise_and(packed, relax.const(np.uint8(15), "uint8")))
    high = node.emit(op.right_shift(packed, relax.const(np.uint8(4), "uint8")))
    *around, count = list(packed.ty.shape)
    halves = [node.emit(op.expand_dims(x, len(around) + 1)) for x in (low, high)]
    joined = node.emit(op.concat(halves, len(around) + 1))
    return node.emit(op.reshape(joined, [*around, 2 * count]))
