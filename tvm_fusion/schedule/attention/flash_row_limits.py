"""Limits of visible keys that rows read from memory: the extremes of a block, by each of its warps.

for each bound, lane t of a warp:
    low, high = keys, -1
    for rows t, t + 32, .. of the block:  limit = clamp(load(row), -1, keys);  low, high = extremes
    low, high over the lanes of the warp                              shuffles: all have the same

A thread keeps the limits of its own rows of fragments in registers, too: tiles that not all rows
see whole test these.

Packed sequences have neighbouring rows of one or few sequences, so that a block visits the keys of
these alone, whatever the order of the limits is. Each warp reads all rows: they are few, and lie in
the first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import index, sequence, substitute, unrolled
from ..gpu.warp import LANES, butterfly
from .flash_problem import FlashProblem
from .mask_bounds import Bound
from .online_softmax import assign

DTYPE = "int32"


def row_limits(
    problem: FlashProblem,
    rows: int,
    position: Callable[[ir.Expr], dict[ir.Var, ir.Expr]],
    lane: ir.Expr,
    limits: ir.Var,
) -> tirx.Stmt:
    """Find the extremes of limits among the rows of a block; a whole warp executes it together.

    Parameters
    ----------
    problem : FlashProblem
        The attention.
    rows : int
        Of a block.
    position : callable
        Gives the position of a row of the block.
    lane : Expr
        The thread of the warp.
    limits : Var
        Gets the smallest and the largest limit of each bound that is loaded.
    """
    keys = index(problem.pattern.key.extent)

    def of_bound(number: int, bound: Bound) -> list[tirx.Stmt]:
        low, high = (load(limits, [index(2 * number + i)]) for i in range(2))

        def one(i: ir.Expr) -> tirx.Stmt:
            row = tirx.min(i * LANES + lane, index(rows - 1))
            limit = clamped_limit(problem, bound, position(row))
            return sequence(
                [assign(low, tirx.min(low, limit)), assign(high, tirx.max(high, limit))]
            )

        stmts = [assign(low, tirx.Cast(DTYPE, keys)), assign(high, tirx.const(-1, DTYPE))]
        stmts.append(unrolled("row", -(-rows // LANES), one))  # all loads at once
        distance = LANES // 2
        while distance:
            for value, combine in ((low, tirx.min), (high, tirx.max)):
                other = butterfly(value, lane, distance)
                stmts.append(assign(value, combine(value, other)))
            distance //= 2
        return stmts

    found = enumerate(problem.loaded_bounds)
    return sequence([stmt for number, bound in found for stmt in of_bound(number, bound)])


def clamped_limit(problem: FlashProblem, bound: Bound, at: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """Read the limit of a row, as near as it is to the keys: 32 bits hold it."""
    limit, keys = substitute(bound.limit, at), index(problem.pattern.key.extent)
    return tirx.Cast(DTYPE, tirx.max(tirx.min(limit, keys), index(-1)))
