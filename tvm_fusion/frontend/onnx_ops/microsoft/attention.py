"""Attention as products and softmax that kernels fuse."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, sym, tirx

from ...tensor_types import accumulation_dtype, dtype_of
from ..node import Node
from ..registry import Unsupported, register

op = relax.op


def is_static(node: Node, number: int, axis: int) -> bool:
    """Whether an input's extent is a number."""
    return isinstance(node.shape(number)[axis], int)


def split_heads(node: Node, x: Any, heads: int) -> Any:
    """Split the last axis: batch, heads, length, width."""
    batch, steps, size = list(x.ty.shape)
    split = op.reshape(x, [batch, steps, heads, tirx.floordiv(size, heads)])
    return node.emit(op.permute_dims(node.emit(split), [0, 2, 1, 3]))


def join_heads(node: Node, x: Any) -> Any:
    """Join heads again: batch, length, heads times width."""
    batch, heads, steps, width = list(x.ty.shape)
    transposed = node.emit(op.permute_dims(x, [0, 2, 1, 3]))
    return node.emit(op.reshape(transposed, [batch, steps, heads * width]))


def attend(
    node: Node,
    q: Any,
    k: Any,
    v: Any,
    biases: Sequence[Any],
    cap: float = 0.0,
    sinks: Any = None,
) -> Any:
    """Attend, over heads before the rows, and join the heads; scores of half types in float32.

    Parameters
    ----------
    cap
        Bound of the scores, ``cap * tanh(scores / cap)``, before biases; 0 for none.
    sinks : relax.Expr, optional
        A score of each head that takes its share of the softmax without a value, ``[1, heads, 1,
        1]``.
    """
    dtype = str(q.ty.dtype.dtype)
    wide = accumulation_dtype(dtype)
    scale = node.attribute("scale", 0.0) or 1 / math.sqrt(int(list(q.ty.shape)[3]))
    transposed = node.emit(op.permute_dims(k, [0, 1, 3, 2]))
    scores = node.emit(op.matmul(q, transposed, None if wide == dtype else wide))
    scores = node.emit(op.multiply(scores, relax.const(scale, wide)))
    if cap:
        bounded = node.emit(op.tanh(node.emit(op.divide(scores, relax.const(cap, wide)))))
        scores = node.emit(op.multiply(bounded, relax.const(cap, wide)))
    for bias in biases:
        scores = node.emit(op.add(scores, node.cast(bias, wide)))
    if sinks is None:
        weights = node.emit(node.cast(op.nn.softmax(scores, -1), dtype))
    else:
        *around, keys = list(scores.ty.shape)
        column = node.emit(op.broadcast_to(node.cast(sinks, wide), [*around, 1]))
        shares = node.emit(op.nn.softmax(node.emit(op.concat([scores, column], 3)), -1))
        shares = node.emit(op.strided_slice(shares, [3], [0], [keys]))
        weights = node.emit(node.cast(shares, dtype))
    return join_heads(node, node.emit(op.matmul(weights, v)))


def sum_of(node: Node, x: Any, y: Any) -> Any:
    """Add and round to the type of what products of matrices read."""
    wide, dtype = accumulation_dtype(dtype_of(y)), dtype_of(y)
    return node.emit(node.cast(op.add(node.cast(x, wide), node.cast(y, wide)), dtype))


def lowest_of(dtype: str) -> float:
    """Return the lowest finite number of a floating point type."""
    return -3.3895e38 if dtype == "bfloat16" else float(np.finfo(dtype).min)


_FEWER = "use a mask of [batch, length], or of [batch, rows, length]"


@register("com.microsoft::Attention")
def attention(node: Node) -> Any:
    """Convert attention behind one projection of queries, keys and values."""
    if node.attribute("do_rotary", 0) or node.attribute("past_present_share_buffer", 0):
        raise Unsupported("with rotary embedding or a shared cache", "use GroupQueryAttention")
    heads = node.attribute("num_heads")
    wide = accumulation_dtype(node.dtype()) if node.has(2) else node.dtype()
    out_dtype = None if wide == node.dtype() else wide
    projected = node.emit(op.matmul(node.inputs[0], node.inputs[1], out_dtype))
    if node.has(2):
        projected = sum_of(node, projected, node.inputs[2])
    total = node.static_shape(1)[1]
    sizes = node.attribute("qkv_hidden_sizes") or [total // 3] * 3
    ends = np.cumsum(sizes)[:-1].tolist()
    parts = node.emit(op.split(projected, ends, 2))
    q, k, v = (split_heads(node, node.emit(relax.TupleGetItem(parts, i)), heads) for i in range(3))
    present = None
    if node.has(4):
        # Keys and values of [2, batch, heads, length, width].
        past = [node.emit(op.take(node.inputs[4], relax.const(i, "int64"), 0)) for i in range(2)]
        k, v = (node.emit(op.concat([old, new], 2)) for old, new in zip(past, (k, v), strict=True))
    if node.uses(1):
        present = node.emit(op.stack([k, v], 0))
    biases = _masks(node, 3, k, q)
    if node.has(5):
        biases.append(node.inputs[5])
    if node.attribute("unidirectional", 0):
        biases.append(_causal(node, q, k))
    return [attend(node, q, k, v, biases), present]


@register("com.microsoft::MultiHeadAttention")
def multi_head_attention(node: Node) -> Any:
    """Convert attention of queries, keys and values that are projected already."""
    heads = node.attribute("num_heads")
    query, key, value = (node.inputs[i] for i in range(3))
    if key is None and len(node.shape(0)) == 5:  # batch, length, heads, 3, width
        q, k, v = (_part(node, query, i) for i in range(3))
    elif value is None and key is not None and len(node.shape(1)) == 5:
        q, (k, v) = split_heads(node, query, heads), (_part(node, key, i) for i in range(2))
    elif key is None or value is None:
        raise Unsupported("without keys or values", "give it query, key and value")
    else:
        if node.has(3):
            bias, start = node.inputs[3], 0
            given = []
            for i, x in enumerate((query, key, value)):
                if len(node.shape(i)) != 3:  # heads of an encoder's keys, which have no bias left
                    given.append(x)
                    continue
                width = node.static_shape(i)[2] if is_static(node, i, 2) else 0
                part = node.emit(op.strided_slice(bias, [0], [start], [start + width]))
                given.append(sum_of(node, x, part))
                start += width
            query, key, value = given
        q = split_heads(node, query, heads)
        k, v = (x if len(x.ty.shape) == 4 else split_heads(node, x, heads) for x in (key, value))
    if node.has(8) or node.has(9):
        raise Unsupported("with beams in a shared cache", "use past_key and past_value alone")
    if node.has(6):
        k = node.emit(op.concat([node.inputs[6], k], 2))
        v = node.emit(op.concat([node.inputs[7], v], 2))
    biases = _masks(node, 4, k, q)
    if node.has(5):
        biases.append(node.inputs[5])
    if node.attribute("unidirectional", 0):
        biases.append(_causal(node, q, k))
    return [attend(node, q, k, v, biases), k, v]


def _part(node: Node, x: Any, number: int) -> Any:
    """Take one of queries, keys and values that are packed behind their heads."""
    one = node.emit(op.take(x, relax.const(number, "int64"), 3))
    return node.emit(op.permute_dims(one, [0, 2, 1, 3]))


def _causal(node: Node, q: Any, k: Any) -> Any:
    """Mask keys behind a query, which stands at the end of all keys."""
    dtype = str(q.ty.dtype.dtype)
    steps, total = list(q.ty.shape)[2], list(k.ty.shape)[2]
    if isinstance(steps, tirx.IntImm) and isinstance(total, tirx.IntImm):
        rows, columns = int(steps), int(total)
        visible = np.tri(rows, columns, columns - rows, dtype=bool)
        return relax.const(np.where(visible, 0, lowest_of(dtype)), dtype)
    column = op.expand_dims(op.arange(0, total, dtype="int64"), 0)
    row = op.expand_dims(op.arange(total - steps, total, dtype="int64"), 1)
    visible = op.less_equal(node.emit(column), node.emit(row))
    zero, lowest = relax.const(0, dtype), relax.const(lowest_of(dtype), dtype)
    return node.emit(op.where(node.emit(visible), zero, lowest))


def _masks(node: Node, number: int, k: Any, q: Any) -> list[Any]:
    """Make what is added to scores of a mask: 1 or the number of keys, where there is one."""
    if not node.has(number):
        node.attribute("mask_filter_value")
        return []
    mask, rank = node.inputs[number], len(node.shape(number))
    dtype, batch, total = str(q.ty.dtype.dtype), next(iter(q.ty.shape)), list(k.ty.shape)[2]
    value = relax.const(max(node.attribute("mask_filter_value", -10000.0), lowest_of(dtype)), dtype)
    if rank == 1:
        extent = next(iter(mask.ty.shape))
        if not sym.Analyzer().can_prove_equal(extent, batch):
            raise Unsupported(f"with a mask of shape {node.shape(number)}", _FEWER)
        places = op.expand_dims(op.arange(0, total, dtype=node.dtype(number)), 0)
        seen = op.less(node.emit(places), node.emit(op.expand_dims(mask, 1)))
    elif rank in (2, 3):
        seen = op.greater(mask, relax.const(0, node.dtype(number)))
    else:
        raise Unsupported(f"with a mask of shape {node.shape(number)}", _FEWER)
    bias = node.emit(op.where(node.emit(seen), relax.const(0, dtype), value))
    return [node.emit(op.expand_dims(bias, [1] if rank == 3 else [1, 2]))]
