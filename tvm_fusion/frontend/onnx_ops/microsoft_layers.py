"""Embedding and group normalization, of ONNX Runtime's domain.

Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from .node import Node
from .registry import register

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
