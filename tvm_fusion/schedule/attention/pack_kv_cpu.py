"""Pack a tile of keys and values: keys transposed into panels, values row by row.

Prologues of k and v are computed here, once for all queries of a task.

for key in vectors of `lanes` keys, d in vectors of `lanes`:
    square[lanes, lanes] = k[key .. + lanes, d .. + lanes]          0 beyond the last key
    keys[panel, d .. + lanes, column .. + lanes] = transpose(square)     in registers, by shuffles
for key:
    values[key, :] = v[key, :], then zeros up to whole tiles of columns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import block, constant, index, local, loop, sequence, substitute, vectorized
from ..transpose_cpu import transposed
from ..vector_loops import over_vectors
from ..vector_math import vector_math
from .config_cpu import CpuConfig
from .pattern import FLOAT, Pattern
from .vectors_cpu import resolved

Where = Mapping[ir.Var, ir.Expr]
Element = Callable[[ir.Expr, ir.Expr], ir.Expr]


def pack_keys(
    pattern: Pattern,
    config: CpuConfig,
    keys: ir.Var,
    where: Where,
    start: ir.Expr,
    count: ir.Expr | int,
) -> tirx.Stmt:
    """Write ``keys[panel, depth, key] = k`` in panels as wide as a tile in registers.

    The vector that holds the last key is padded with zeros: arithmetic on whatever is in memory may
    be very slow, as it is on denormal numbers.
    """

    def element(key: ir.Expr, depth: ir.Expr) -> ir.Expr:
        at = {**where, pattern.key.var: start + key, pattern.depth.var: depth}
        return substitute(pattern.k, at)

    lanes = config.lanes

    def square(key: ir.Expr, many: int) -> tirx.Stmt:
        return sequence(
            [
                _transposed(config, keys, key, many, d, element)
                for d in range(0, config.depth, lanes)
            ]
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
        panel, column = _placed(config, whole * lanes + n)

        def store(depth: ir.Expr) -> tirx.Stmt:
            value = element(whole * lanes + n, depth)
            value = tirx.if_then_else(n < rest, value, tirx.const(0, FLOAT))
            return tirx.BufferStore(keys, value, [panel, depth, column])

        return loop("d", config.depth, store)

    last = tirx.IfThenElse(rest > 0, loop("rest", lanes, one), None)
    return sequence([loop("keys", whole, lambda n: square(n * lanes, lanes)), last])


def _placed(config: CpuConfig, key: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Give the panel and the column of a key."""
    width = index(config.width)
    return tirx.floordiv(key, width), tirx.floormod(key, width)


def _transposed(
    config: CpuConfig, keys: ir.Var, key: ir.Expr, many: int, depth: int, element: Element
) -> tirx.Stmt:
    """Load up to a vector of keys along their elements, and store them transposed."""
    lanes, width = config.lanes, min(config.lanes, config.depth - depth)
    panel, first = _placed(config, key)
    tile = local("square", [lanes, width], FLOAT)

    def read(i: ir.Expr) -> tirx.Stmt:
        return vectorized(
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
        return vectorized(width, lambda lane: tirx.BufferStore(tile, zero, [i + many, lane]))

    def write(d: ir.Expr) -> tirx.Stmt:
        return vectorized(
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
        whole = tirx.Ramp(index(0), index(1), lanes)
        stmts.append(
            transposed(
                [load(tile, [index(i), whole]) for i in range(lanes)],
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
    config: CpuConfig,
    values: ir.Var,
    where: Where,
    start: ir.Expr,
    count: ir.Expr | int,
) -> tirx.Stmt:
    """Write ``values[key, column] = v``, padded with zeros."""
    extent = constant(pattern.column.extent) or config.columns

    def row(key: ir.Expr) -> tirx.Stmt:
        def run(first: ir.Expr, width: int) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                at = {**where, pattern.key.var: start + key, pattern.column.var: first + lane}
                value = vector_math(substitute(pattern.v, at), lane)
                return tirx.BufferStore(values, value, [key, first + lane])

            return vectorized(width, store)

        def clear(column: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(values, tirx.const(0, FLOAT), [key, column + extent])

        padding = vectorized(config.columns - extent, clear)
        return sequence([over_vectors(extent, config.width, run), padding])

    return loop("key", count, row)
