"""Loops along a row in vectors, with a scalar remainder."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx

from ...core.expressions import load
from ...core.loops import constant, index, loop, sequence, vectorized
from ..elementwise.cpu import by_vectors

VectorBody = Callable[[ir.Expr, int], tirx.Stmt]


def over_vectors(count: ir.Expr | int, lanes: int, body: VectorBody) -> tirx.Stmt:
    """Run ``body(start, width)`` over a row: whole vectors, then shorter ones or elements."""
    size = constant(count)
    if size is not None:
        return by_vectors(size, lanes, body)
    whole = tirx.floordiv(index(count), index(lanes))
    rest = tirx.floormod(index(count), index(lanes))
    return sequence(
        [
            loop("vector", whole, lambda n: body(n * lanes, lanes)),
            loop("rest", rest, lambda n: body(whole * lanes + n, 1)),
        ]
    )


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
