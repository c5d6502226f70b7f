"""Pack a tile of keys and values: keys transposed into panels, values row by row.

Prologues of k and v are computed here, once for all queries of a task. Where queries are lanes,
these are what is transposed.

for key in vectors of `lanes` keys, d in vectors of `lanes`:
    square[lanes, lanes] = k[key .. + lanes, d .. + lanes]          0 beyond the last key
    keys[panel, d .. + lanes, column .. + lanes] = transpose(square)     in registers, by shuffles
for key:
    values[key, :] = v[key, :], then zeros up to whole tiles of columns
"""

from collections.abc import Callable

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    constant,
    index,
    local,
    loop,
    sequence,
    simplified,
    vectorized,
)
from ...cpu.transpose import adjacent, squares, transposed
from ...cpu.vector_loops import over_vectors
from ...math.vector_math import vector_math
from ..problem.pattern import FLOAT
from .config import CpuConfig
from .softmax import resolved

Element = Callable[[ir.Expr, ir.Expr], ir.Expr]


def pack_panels(
    config: CpuConfig, panels: ir.Var, element: Element, count: ir.Expr | int
) -> tirx.Stmt:
    """Write ``panels[panel, depth, key] = k``, as wide as a tile in registers.

    The vector that holds the last key is padded with zeros: arithmetic on whatever is in memory may
    be very slow, as it is on denormal numbers.

    Parameters
    ----------
    element
        Gives ``k`` of a key and an element.
    """
    lanes = config.lanes

    def square(key: ir.Expr, many: int) -> tirx.Stmt:
        return sequence(
            [
                _transposed(config, panels, key, many, d, side, element)
                for d, side in squares(config.depth, lanes)
            ]
        )

    size = constant(count)
    if size is not None:
        whole, rest = size // lanes, size % lanes
        stmts = [loop("keys", whole, lambda n: square(n * lanes, lanes))]
        if rest:
            stmts.append(square(index(whole * lanes), rest))
        return sequence(stmts)
    whole = simplified(tirx.floordiv(count, index(lanes)))
    rest = simplified(tirx.floormod(count, index(lanes)))
    whole_vectors = loop("keys", whole, lambda n: square(n * lanes, lanes))
    if constant(rest) == 0:
        return whole_vectors

    def one(n: ir.Expr) -> tirx.Stmt:
        panel, column = _placed(config, whole * lanes + n)

        def store(depth: ir.Expr) -> tirx.Stmt:
            value = element(whole * lanes + n, depth)
            value = tirx.if_then_else(n < rest, value, tirx.const(0, FLOAT))
            return tirx.BufferStore(panels, value, [panel, depth, column])

        return loop("d", config.depth, store)

    last = tirx.IfThenElse(rest > 0, loop("rest", lanes, one), None)
    return sequence([whole_vectors, last])


def _placed(config: CpuConfig, key: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Return the panel and the column of a key."""
    width = index(config.width)
    return tirx.floordiv(key, width), tirx.floormod(key, width)


def _transposed(
    config: CpuConfig,
    panels: ir.Var,
    key: ir.Expr,
    many: int,
    depth: int,
    width: int,
    element: Element,
) -> tirx.Stmt:
    """Load up to a vector of keys along some of their elements, and store them transposed."""
    lanes = config.lanes
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

    def turned(row: int) -> tirx.Stmt:
        return transposed(
            [load(tile, [index(row + i), adjacent(0, width)]) for i in range(width)],
            lambda d, vector: tirx.BufferStore(
                panels, vector, [panel, index(depth + d), adjacent(first + row, width)]
            ),
        )

    stmts = [
        loop("i", many, read, unrolled),
        loop("i", lanes - many, clear, unrolled),
        *(turned(row) for row in range(0, lanes, width)),
    ]
    return block("square", sequence(stmts), [tile])


def pack_rows(
    rows: ir.Var, element: Element, extent: int, widest: int, count: ir.Expr | int
) -> tirx.Stmt:
    """Write ``rows[key, column] = v``, padded with zeros.

    Parameters
    ----------
    element
        Gives ``v`` of a key and an element.
    extent
        Elements of a key.
    widest
        Elements of the widest vector.
    """

    def row(key: ir.Expr) -> tirx.Stmt:
        def run(first: ir.Expr, width: int) -> tirx.Stmt:
            def store(lane: ir.Expr) -> tirx.Stmt:
                value = vector_math(element(key, first + lane), lane)
                return tirx.BufferStore(rows, value, [key, first + lane])

            return vectorized(width, store)

        def clear(column: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(rows, tirx.const(0, FLOAT), [key, column + extent])

        padding = vectorized(int(rows.ty.shape[1]) - extent, clear)
        return sequence([over_vectors(extent, widest, run), padding])

    return loop("key", count, row)
