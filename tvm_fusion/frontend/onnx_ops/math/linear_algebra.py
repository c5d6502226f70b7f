"""Convert Gemm over half types, and Det by Gaussian elimination."""

from typing import Any

import numpy as np
from tvm import relax

from ...registry import Unsupported
from ...tensor_types import HALF, dtype_of
from ..node import Node
from ..registry import register

op = relax.op


@register("Gemm")
def gemm(node: Node) -> Any:
    """Convert ``alpha * A @ B + beta * C`` of half types, summed in float32 and rounded once.

    Other types are left to TVM, which multiplies A by alpha.
    """
    if node.dtype() not in HALF:
        return None
    a, b = (
        node.emit(op.permute_dims(node.inputs[i])) if node.attribute(name, 0) else node.inputs[i]
        for i, name in enumerate(("transA", "transB"))
    )
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    result = node.emit(op.matmul(a, b, "float32"))
    if alpha != 1:
        result = node.emit(op.multiply(result, relax.const(alpha, "float32")))
    if node.has(2):
        c = node.emit(op.astype(node.inputs[2], "float32"))
        c = c if beta == 1 else node.emit(op.multiply(c, relax.const(beta, "float32")))
        result = node.emit(op.add(result, c))
    return op.astype(result, node.dtype())


# Each row is some operators of its own.
_ROWS = 16


@register("Det")
def determinant(node: Node) -> Any:
    """Convert Det: eliminate column by column with the largest element as the pivot.

    ::

        for each column:
            p = argmax |column|;  det *= column[p];  swap row p with the first: det *= -1 if p > 0
            a = a[1:, 1:] - a[1:, 0] * a[0, 1:] / column[p]
    """
    shape = node.static_shape()
    rows = shape[-1]
    if len(shape) < 2 or shape[-2] != rows:
        raise Unsupported(f"of shape {shape}", "give it square matrices")
    if rows > _ROWS:
        raise Unsupported(f"of {rows} rows", f"give it at most {_ROWS}")
    wide = node.wide(node.inputs[0])
    dtype = dtype_of(wide)
    batch = int(np.prod(shape[:-2], dtype="int64"))
    a = node.emit(op.reshape(wide, [batch, rows, rows]))
    det = relax.const(np.ones(batch), dtype)
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    for left in range(rows, 0, -1):
        column = _columns(node, a, 0, 1)
        largest = node.emit(op.argmax(op.abs(op.reshape(column, [batch, left])), 1, keepdims=True))
        numbers = relax.const(np.arange(left)[None, :], "int64")
        is_pivot = node.emit(op.reshape(op.equal(numbers, largest), [batch, left, 1]))
        row = node.emit(op.sum(op.where(is_pivot, a, zero), [1], keepdims=True))
        pivot = _columns(node, row, 0, 1)
        moved = op.greater(largest, relax.const(0, "int64"))
        sign = op.where(moved, op.negative(one), one)
        value = op.multiply(op.reshape(pivot, [batch]), op.reshape(sign, [batch]))
        det = node.emit(op.multiply(det, value))
        if left == 1:
            break
        # The first row stands where the pivot's stood.
        swapped = node.emit(op.where(is_pivot, op.strided_slice(a, [1], [0], [1]), a))
        below = node.emit(op.strided_slice(swapped, [1], [1], [left]))
        divisor = op.where(op.equal(pivot, zero), one, pivot)
        factors = op.divide(_columns(node, below, 0, 1), divisor)
        rest, right = _columns(node, below, 1, left), _columns(node, row, 1, left)
        a = node.emit(op.subtract(rest, op.multiply(factors, right)))
    return node.cast(op.reshape(det, shape[:-2]), node.dtype())


def _columns(node: Node, a: Any, low: int, high: int) -> Any:
    """Take columns of [batch, rows, columns]."""
    return node.emit(op.strided_slice(a, [2], [low], [high]))
