"""Results of attention: stored through the epilogue, and rows that are masked completely."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from ...core.loops import loop, substitute
from ..contraction.problem.fuse_epilogue import store_results
from .online_softmax import assign, float_
from .pattern import FLOAT, Pattern


def store_result(pattern: Pattern, at: Mapping[ir.Var, ir.Expr], value: ir.Expr) -> tirx.Stmt:
    """Store an element of the result, the epilogue applied to it."""
    product = pattern.product
    if str(product.total.ty.dtype) != FLOAT:
        value = tirx.Cast(str(product.total.ty.dtype), value)
    return store_results(product, pattern.place(at), value)


def masked_row(
    pattern: Pattern, at: Mapping[ir.Var, ir.Expr], total: ir.TensorLoad
) -> list[tirx.Stmt]:
    """Sum the values of a row weighted by ``masked_weight``, which a guard puts for NaN."""

    def add(key: ir.Expr) -> tirx.Stmt:
        known = {**at, pattern.key.var: key}
        term = substitute(pattern.masked_weight, known) * substitute(pattern.v, known)
        return assign(total, total + term)

    return [assign(total, float_(0)), loop("key", pattern.key.extent, add)]
