"""The parallel loop of attention on a CPU: a task for each block of queries of each head."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ...core.loops import ceildiv, coordinates, kernel, product, tasks
from ...program.program import Program
from .pattern import Pattern

Where = dict[ir.Var, ir.Expr]


def query_blocks(
    program: Program,
    pattern: Pattern,
    queries: ir.Expr,
    block: int,
    task: Callable[[Where, ir.Expr], tirx.Stmt],
) -> tirx.PrimFunc:
    """Make a kernel of tasks.

    Parameters
    ----------
    program : Program
        What the kernel computes.
    pattern : Pattern
        The attention.
    queries : Expr
        Of a head.
    block : int
        Queries of a task.
    task : callable
        Writes a task: by the indices of its head, and its first query.
    """
    extents = [*(a.extent for a in pattern.batch), ceildiv(queries, block)]

    def numbered(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, extents)
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return task(where, part * block)

    return kernel(program, tasks(product(extents), numbered))
