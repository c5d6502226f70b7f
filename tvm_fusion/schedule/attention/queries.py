"""The queries of attention of few rows, as factors of a half type for tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...core.expressions import variables
from .decode import Decode, streamed, width_of
from .staged_gpu import VECTOR


@dataclass(frozen=True)
class Queries:
    """Elements of the queries, and what the scores take instead of them.

    Attributes
    ----------
    element : PrimExpr
        Of the half type of keys and values.
    factor : PrimExpr or None
        Of the whole row, such as a scale, in float32: the scores take it, so that elements of a
        half type stay what they are.
    is_vector : bool
        Whether elements are read in whole vectors.
    """

    element: ir.Expr
    factor: ir.Expr | None
    is_vector: bool

    @classmethod
    def of(cls, cut: Decode) -> Queries:
        """Part the queries of a cut."""
        half, depth = str(cut.keys[0].ty.dtype), cut.pattern.depth
        factor, element = _factored(cut.pattern.q, depth.var)
        if isinstance(element, tirx.Cast) and str(element.value.ty.dtype) == half:
            element = element.value
        else:
            element = tirx.Cast(half, element)
        reads = streamed(cut.pattern, element, depth)
        is_load = isinstance(element, ir.TensorLoad) and bool(reads)
        return cls(element, factor, is_load and width_of([(element, depth)]) == VECTOR)


def _factored(query: ir.Expr, depth: ir.Var) -> tuple[ir.Expr | None, ir.Expr]:
    if isinstance(query, tirx.Mul):
        for factor, element in ((query.a, query.b), (query.b, query.a)):
            if depth not in variables(factor):
                return factor, element
    return None, query
