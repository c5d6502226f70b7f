"""A tile of keys and values, packed: keys transposed, both with what is computed of them first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import block, constant, index, local, loop, sequence, substitute
from ..vector_math import vector_math
from .lanes import along, resolved, vector
from .pattern import FLOAT, Pattern
from .sizes import Sizes
from .transpose import interleaved

Where = Mapping[ir.Var, ir.Expr]
Element = Callable[[ir.Expr, ir.Expr], ir.Expr]


def pack_keys(
    pattern: Pattern,
    sizes: Sizes,
    keys: ir.Var,
    where: Where,
    start: ir.Expr,
    count: ir.Expr | int,
) -> tirx.Stmt:
    """Write ``keys[panel, depth, key] = k`` in panels as wide as a tile in registers.

    The vector that holds the last key is filled with zeros: sums of whatever is in memory may take
    very long, those of numbers close to zero do.
    """

    def element(key: ir.Expr, depth: ir.Expr) -> ir.Expr:
        at = {**where, pattern.key.var: start + key, pattern.depth.var: depth}
        return substitute(pattern.k, at)

    lanes = sizes.lanes

    def square(key: ir.Expr, many: int) -> tirx.Stmt:
        return sequence(
            [_transposed(sizes, keys, key, many, d, element) for d in range(0, sizes.depth, lanes)]
        )

    size = constant(count)
    if size is not None:
        whole, rest = size // lanes, size % lanes
        stmts = [loop("keys", whole, lambda n: square(n * lanes, lanes))]
        if rest:
            stmts.append(square(index(whole * lanes), rest))
        return sequence(stmts)
    whole = tirx.floordiv(count, index(lanes))
    rest = tirx.floormod(count, index(lanes))

    def one(n: ir.Expr) -> tirx.Stmt:
        panel, column = _placed(sizes, whole * lanes + n)

        def store(depth: ir.Expr) -> tirx.Stmt:
            value = element(whole * lanes + n, depth)
            value = tirx.if_then_else(n < rest, value, tirx.const(0, FLOAT))
            return tirx.BufferStore(keys, value, [panel, depth, column])

        return loop("d", sizes.depth, store)

    last = tirx.IfThenElse(rest > 0, loop("rest", lanes, one), None)
    return sequence([loop("keys", whole, lambda n: square(n * lanes, lanes)), last])


def _placed(sizes: Sizes, key: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Tell the panel and the column of a key."""
    width = index(sizes.width)
    return tirx.floordiv(key, width), tirx.floormod(key, width)


def _transposed(
    sizes: Sizes, keys: ir.Var, key: ir.Expr, many: int, depth: int, element: Element
) -> tirx.Stmt:
    """Read up to as many keys as there are lanes along their elements, and write them across."""
    lanes, width = sizes.lanes, min(sizes.lanes, sizes.depth - depth)
    panel, first = _placed(sizes, key)
    tile = local("square", [lanes, width], FLOAT)

    def read(i: ir.Expr) -> tirx.Stmt:
        return vector(
            width,
            lambda lane: tirx.BufferStore(
                tile,
                vector_math(resolved(element(key + i, depth + lane), lane, width), lane),
                [i, lane],
            ),
        )

    unrolled = tirx.ForKind.UNROLLED

    def clear(i: ir.Expr) -> tirx.Stmt:
        zero = tirx.const(0, FLOAT)
        return vector(width, lambda lane: tirx.BufferStore(tile, zero, [i + many, lane]))

    def write(d: ir.Expr) -> tirx.Stmt:
        return vector(
            lanes,
            lambda lane: tirx.BufferStore(
                keys, load(tile, [lane, d]), [panel, depth + d, first + lane]
            ),
        )

    stmts = [
        loop("i", many, read, unrolled),
        loop("i", lanes - many, clear, unrolled),
    ]
    if width == lanes:
        stmts.append(
            interleaved(
                tile,
                lanes,
                lambda d, row: tirx.BufferStore(
                    keys, row, [panel, depth + d, tirx.Ramp(first, index(1), lanes)]
                ),
            )
        )
    else:
        stmts.append(loop("d", width, write, unrolled))
    return block("square", sequence(stmts), [tile])


def pack_values(
    pattern: Pattern,
    sizes: Sizes,
    values: ir.Var,
    where: Where,
    start: ir.Expr,
    count: ir.Expr | int,
) -> tirx.Stmt:
    """Write ``values[key, column] = v``, and zeros behind the last column."""
    extent = constant(pattern.column.extent) or sizes.columns

    def row(key: ir.Expr) -> tirx.Stmt:
        def piece(first: ir.Expr, width: int) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                at = {**where, pattern.key.var: start + key, pattern.column.var: first + lane}
                value = vector_math(substitute(pattern.v, at), lane)
                return tirx.BufferStore(values, value, [key, first + lane])

            return vector(width, store)

        def clear(column: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(values, tirx.const(0, FLOAT), [key, column + extent])

        behind = vector(sizes.columns - extent, clear)
        return sequence([along(extent, sizes.width, piece), behind])

    return loop("key", count, row)
