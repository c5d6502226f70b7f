"""Convert Gemm over half types."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tensor_types import HALF
from .node import Node
from .registry import register

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
