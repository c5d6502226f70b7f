"""What attention operators of ONNX Runtime share: heads, products and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

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


def attend(node: Node, q: Any, k: Any, v: Any, biases: Sequence[Any]) -> Any:
    """Attend, over heads before the rows, and join the heads."""
    dtype = str(q.ty.dtype.dtype)
    scale = node.attribute("scale", 0.0) or 1 / math.sqrt(int(list(q.ty.shape)[3]))
    scores = node.emit(op.matmul(q, node.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = node.emit(op.multiply(scores, relax.const(scale, dtype)))
    for bias in biases:
        scores = node.emit(op.add(scores, bias))
    weights = node.emit(op.nn.softmax(scores, -1))
    return join_heads(node, node.emit(op.matmul(weights, v)))


def lowest_of(dtype: str) -> float:
    """Return the lowest finite number of a floating point type."""
    return -3.3895e38 if dtype == "bfloat16" else float(np.finfo(dtype).min)
