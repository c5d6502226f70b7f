"""Sums and maxima over neighbouring threads of a warp, all values at once, level by level."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx.op import tvm_warp_shuffle

from ...core.loops import index, unrolled
from ..gpu import ALL

Combine = Callable[[ir.Expr, ir.Expr], ir.Expr]
Every = Callable[[Callable[[ir.Expr, ir.Expr], tirx.Stmt]], tirx.Stmt]


def over_lanes(
    buffers: tuple[ir.Var, ir.Var],
    count: int,
    lanes: int,
    warp: int,
    every: Every,
    combine: Combine = operator.add,
    step: int = 1,
) -> tuple[list[tirx.Stmt], ir.Var]:
    """Give each of some threads the sums, or what else is said, over all of them.

    At each level a thread takes in what the one that is half as far away has. Every level is a loop
    over the threads of its own, from one buffer into the other, so that it means the same if
    threads run one after the other.

    Parameters
    ----------
    buffers : tuple of Var
        Of ``[groups, lanes, count]`` in registers; the first one holds the terms.
    count : int
        Values of a thread.
    lanes : int
        Neighbouring threads that share sums: a power of two.
    warp : int
        Threads of a warp.
    every : callable
        Runs ``body(group, lane)`` in every thread.
    combine : callable
        A sum, or a maximum.
    step : int
        From one thread to the next that shares its sums, likewise.

    Returns
    -------
    list of Stmt, Var
        What to do, and the buffer that holds the sums then.
    """
    stmts: list[tirx.Stmt] = []
    here, there = buffers
    distance = lanes // 2
    while distance >= step:

        def level(
            g: ir.Expr,
            t: ir.Expr,
            here: ir.Var = here,
            there: ir.Var = there,
            apart: int = distance,
        ) -> tirx.Stmt:
            other = tirx.bitwise_xor(tirx.Cast("int32", t), tirx.const(apart, "int32"))

            def one(number: ir.Expr) -> tirx.Stmt:
                own = tirx.BufferLoad(here, [g, t, number])
                sizes = (tirx.const(lanes, "int32"), tirx.const(warp, "int32"))
                its = tvm_warp_shuffle(tirx.const(ALL, "uint32"), own, other, *sizes)
                return tirx.BufferStore(there, combine(own, its), [g, t, number])

            return unrolled("sum", index(count), one)

        stmts.append(every(level))
        here, there = there, here
        distance //= 2
    return stmts, here
