"""Vectors on a CPU: reduced to one element, conditions that hold for all lanes resolved."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx

from ...core.expressions import load
from ...core.loops import index, sequence, vectorized


def reduce_vector(
    buffer: ir.Var, width: int, combine: Callable[[ir.Expr, ir.Expr], ir.Expr]
) -> tirx.Stmt:
    """Reduce a vector to its first element, halves with halves."""
    stmts: list[tirx.Stmt] = []
    while width > 1:
        width //= 2

        def half(lane: ir.Expr, width: int = width) -> tirx.Stmt:
            pair = combine(load(buffer, [lane]), load(buffer, [lane + width]))
            return tirx.BufferStore(buffer, pair, [lane])

        stmts.append(vectorized(width, half))
    return sequence(stmts)


def resolved(expr: ir.Expr, lane: ir.Expr, width: int) -> ir.Expr:
    """Simplify the conditions of a vector that hold for all of its lanes or for none."""
    if not isinstance(lane, ir.Var):
        return sym.Analyzer().simplify(expr)
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(width)))
    return analyzer.simplify(expr)
