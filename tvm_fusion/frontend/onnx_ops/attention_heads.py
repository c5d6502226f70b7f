"""What attention operators of ONNX Runtime share: heads, products and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..tensor_types import accumulation_dtype, dtype_of
from .node import Node

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
    cap : float
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
