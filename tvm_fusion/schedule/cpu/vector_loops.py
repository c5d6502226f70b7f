"""Loops along a row on a CPU, in vectors; the rest of it in shorter ones or by elements."""

from collections.abc import Callable
from functools import partial

from tvm import ir, tirx

from ...core.tir.loops import constant, index, loop, sequence

VECTORS = 4  # vectors of an explicit vector loop
VectorBody = Callable[[ir.Expr, int], tirx.Stmt]  # of a start and a width


def vectors(size: int, widest: int) -> list[tuple[int, int, int]]:
    """Divide a row into vectors: triples of a start, a width and a number of such vectors.

    As many of the widest as fit, then each half as wide as the one before; a row that fits into one
    register is one vector.
    """
    if size <= widest // VECTORS:
        return [(0, size, 1)]
    cuts, start, width = [], 0, widest
    while start < size:
        count = (size - start) // width
        if count:
            cuts.append((start, width, count))
            start += count * width
        width //= 2
    return cuts


def by_vectors(size: int, widest: int, body: VectorBody, name: str = "vector") -> tirx.Stmt:
    """Run ``body(start, width)`` over all vectors of a row."""
    return sequence(
        [
            loop(name, count, partial(at_vector, body, start, width))
            for start, width, count in vectors(size, widest)
        ]
    )


def at_vector(body: VectorBody, start: int, width: int, number: ir.Expr) -> tirx.Stmt:
    """Run a body at one of several adjacent vectors."""
    return body(number * width + start, width)


def over_vectors(
    count: ir.Expr | int, lanes: int, body: VectorBody, name: str = "vector"
) -> tirx.Stmt:
    """Run ``body(start, width)`` over a row: whole vectors, then shorter ones or elements."""
    size = constant(count)
    if size is not None:
        return by_vectors(size, lanes, body, name)
    whole = tirx.floordiv(index(count), index(lanes))
    rest = tirx.floormod(index(count), index(lanes))
    return sequence(
        [
            loop(name, whole, lambda n: body(n * lanes, lanes)),
            loop("rest", rest, lambda n: body(whole * lanes + n, 1)),
        ]
    )
