"""Attention of ONNX Runtime's domain whose queries share keys, of prompts or behind a cache.

Semantics: ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ..tensor_types import dtype_of
from .attention_heads import attend, is_static, lowest_of, split_heads
from .node import Node
from .registry import Unsupported, register
from .rotary_embedding import look_up_angles, rotate

op = relax.op


@register("com.microsoft::GroupQueryAttention")
def group_query_attention(node: Node) -> Any:
    """Convert causal attention whose queries share keys, of prompts or behind a cache.

    Rows of one batch have as many keys as ``seqlens_k`` says; a cache grows by concatenation. A
    cache in a buffer of fixed length, which both extents would have, is not told apart from that
    where the total length is not known; so it has to be.
    """
    for name in ("k_quant_type", "v_quant_type"):
        if node.attribute(name, "NONE") != "NONE":
            raise Unsupported("with a quantized cache", "use a cache of floating point numbers")
    if node.attribute("smooth_softmax", 0) > 0 or node.attribute("softcap", 0.0):
        raise Unsupported("with smooth or capped softmax", "write it as single operators")
    heads, shared = node.attribute("num_heads"), node.attribute("kv_num_heads")
    if node.has(1):
        q = split_heads(node, node.inputs[0], heads)
        k, v = (split_heads(node, node.inputs[i], shared) for i in (1, 2))
    else:
        width = node.static_shape(0)[2] // (heads + 2 * shared) if is_static(node, 0, 2) else 0
        ends = [heads * width, (heads + shared) * width]
        parts = node.emit(op.split(node.inputs[0], ends, 2))
        items = [node.emit(relax.TupleGetItem(parts, i)) for i in range(3)]
        q, k, v = (
            split_heads(node, x, n) for x, n in zip(items, (heads, shared, shared), strict=True)
        )
    steps = list(q.ty.shape)[2]
    before: Any = 0
    if node.has(3):
        before = list(node.inputs[3].ty.shape)[2]
    if isinstance(before, int) or (isinstance(before, tirx.IntImm) and int(before) == 0):
        before = 0
    total = node.constant(6)
    known = isinstance(steps, tirx.IntImm) and isinstance(before, int | tirx.IntImm)
    grows = known and total is not None and int(total.reshape(-1)[0]) == int(before) + int(steps)
    if not (isinstance(before, int) or grows):
        raise Unsupported(
            "whose cache may be a buffer of fixed length",
            "give it a constant total_sequence_length: that of the cache and the new tokens",
        )
    if node.has(3) and not node.uses(1):
        raise Unsupported("behind a cache that it does not return", "return present_key")
    lengths = node.emit(op.add(node.cast(node.inputs[5], "int64"), relax.const(1, "int64")))
    lengths = node.emit(op.reshape(lengths, [-1, 1]))
    cached = node.emit(op.subtract(lengths, relax.const(int(steps), "int64"))) if grows else None
    if node.attribute("do_rotary", 0):
        if node.has(9):
            positions = node.inputs[9]
        else:
            positions = node.emit(op.expand_dims(op.arange(0, steps, dtype="int64"), 0))
            if cached is not None:
                positions = node.emit(op.add(positions, cached))
        angles = look_up_angles(node, positions, node.inputs[7], node.inputs[8])
        is_interleaved = bool(node.attribute("rotary_interleaved", 0))
        cos, sin = (node.wide(x) for x in angles)
        rotated = [rotate(node, node.wide(x), cos, sin, is_interleaved) for x in (q, k)]
        dtype = dtype_of(q)
        q, k = (node.emit(node.cast(x, dtype)) for x in rotated)
    if grows and int(before):
        if int(steps) != 1:
            raise Unsupported(
                "of several new tokens behind a cache", "give it one token, or the whole prompt"
            )
        k, v = (_appended(node, node.inputs[i], x, cached) for i, x in ((3, k), (4, v)))
    biases = [_causal_from(node, q, k, lengths, node.attribute("local_window_size", -1))]
    if node.has(10):
        biases.append(node.inputs[10])
    if any(node.has(i) for i in (11, 12, 13, 14, 15, 16)):
        raise Unsupported("with sinks, scales or norms of keys", "write it as single operators")
    repeats = heads // shared
    keys, values = (node.emit(op.repeat(x, repeats, 1)) if repeats > 1 else x for x in (k, v))
    return [attend(node, q, keys, values, biases), k, v]


def _appended(node: Node, past: Any, new: Any, cached: Any) -> Any:
    """Put a new key or value behind the cached ones of its row; what follows is zero."""
    length = list(past.ty.shape)[2]
    wide = node.emit(op.concat([past, new], 2))
    places = node.emit(op.expand_dims(op.arange(0, length + 1, dtype="int64"), 0))
    is_new, is_old = (
        node.emit(op.expand_dims(node.emit(test(places, cached)), [1, 3]))
        for test in (op.equal, op.less)
    )
    zero = relax.const(0, str(new.ty.dtype.dtype))
    return node.emit(op.where(is_new, new, node.emit(op.where(is_old, wide, zero))))


def _causal_from(node: Node, q: Any, k: Any, lengths: Any, window: int) -> Any:
    """Mask what a query must not see, where each row of the batch has a length of its own."""
    steps, total = list(q.ty.shape)[2], list(k.ty.shape)[2]
    dtype = str(q.ty.dtype.dtype)
    column = op.reshape(op.arange(0, total, dtype="int64"), [1, 1, total])
    row = op.reshape(op.arange(0, steps, dtype="int64"), [1, steps, 1])
    is_cached = not (isinstance(total, tirx.IntImm) and int(total) == int(steps))
    if is_cached:  # the newest token is the row's last one
        last = op.subtract(op.expand_dims(lengths, 2), relax.const(1, "int64"))
        row = op.add(row, node.emit(last))
    visible = op.less_equal(node.emit(column), node.emit(row))
    if window > 0:
        nearest = op.subtract(node.emit(row), relax.const(window, "int64"))
        visible = op.logical_and(visible, op.greater(node.emit(column), node.emit(nearest)))
    lowest = relax.const(lowest_of(dtype), dtype)
    mask = op.where(node.emit(visible), relax.const(0, dtype), lowest)
    return node.emit(op.expand_dims(node.emit(mask), 1))
