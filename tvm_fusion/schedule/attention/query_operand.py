"""The queries of flash-decoding as the B operand of tensor cores, in a half type."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...core.expressions import variables
from .flash_decode import FlashDecodeConfig
from .kv_pipeline import VECTOR
from .kv_vectors import contiguous_loads, vector_width
from .pattern import Pattern


@dataclass(frozen=True)
class QueryOperand:
    """Elements of the queries, and a factor of the scores masked_weight of them.

    Attributes
    ----------
    element : PrimExpr
        Of the half type of keys and values.
    factor : PrimExpr or None
        Of the whole row, such as the softmax scale, in float32: applied to the scores, so that
        elements of a half type are not rounded again.
    is_vector : bool
        Whether elements are loaded in whole vectors.
    """

    element: ir.Expr
    factor: ir.Expr | None
    is_vector: bool

    @classmethod
    def of(cls, config: FlashDecodeConfig) -> QueryOperand:
        """Separate the scale of the queries from their elements."""
        pattern: Pattern = config.pattern
        half, depth = str(config.keys[0].ty.dtype), pattern.depth
        factor, element = _factored(pattern.q, depth.var)
        if isinstance(element, tirx.Cast) and str(element.value.ty.dtype) == half:
            element = element.value
        else:
            element = tirx.Cast(half, element)
        is_load = isinstance(element, ir.TensorLoad) and bool(
            contiguous_loads(pattern, element, depth)
        )
        return cls(element, factor, is_load and vector_width([(element, depth)]) == VECTOR)


def _factored(query: ir.Expr, depth: ir.Var) -> tuple[ir.Expr | None, ir.Expr]:
    if isinstance(query, tirx.Mul):
        for factor, element in ((query.a, query.b), (query.b, query.a)):
            if depth not in variables(factor):
                return factor, element
    return None, query
