"""A contraction as plain sums on a GPU, for shapes that tiles in shared memory do not fit.

Depthwise convolutions, odd transposed ones: few elements are used twice, so what counts is that
neighbouring threads read neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ...fusion.expressions import load, variables
from ...fusion.program import Program
from ..loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    over,
    product,
    sequence,
    threads,
    when,
)
from .canonical import add_term
from .graft import epilogue
from .operands import SumOfProducts

THREADS = 128
ROWS = 4  # results of one thread that share the elements of one operand


def sums_gpu(program: Program, contraction: SumOfProducts) -> tirx.PrimFunc:
    """One launch: a thread sums a few results, neighbouring threads neighbouring columns."""
    stage = contraction.stage
    row = _shared_axis(contraction)
    extents = [a.extent for a in stage.axes]
    rows, exact, last_row = 1, True, index(0)
    if row is not None:
        size = constant(extents[row])
        last_row = index(extents[row]) - 1
        rows = ROWS if size is None else min(size, ROWS)
        exact = size is not None and size % rows == 0
        extents[row] = ceildiv(extents[row], rows)
    points = product(extents)

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        place = coordinates(flat, extents)
        sums = local("sums", [rows], contraction.dtype)

        def at(count: ir.Expr, inside: bool) -> list[ir.Expr]:
            if row is None:
                return place
            where = place[row] * rows + count
            if inside and not exact:  # beyond the edge: sum the last row again, and drop it
                where = tirx.min(where, last_row)
            return [*place[:row], where, *place[row + 1 :]]

        def each(make: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            return loop("row", rows, make, tirx.ForKind.UNROLLED)

        def finish(count: ir.Expr) -> tirx.Stmt:
            where = at(count, False)
            stmt = epilogue(contraction, where, load(sums, [count]))
            return stmt if exact or row is None else when(where[row] <= last_row, stmt)

        stmts = [
            each(lambda count: tirx.BufferStore(sums, contraction.initial, [count])),
            over(
                stage.reduce,
                lambda reduced: each(
                    lambda count: add_term(contraction, (), sums, count, at(count, True), reduced)
                ),
            ),
            each(finish),
        ]
        return when(flat < points, block("element", sequence(stmts), [sums]))

    grid = threads(
        "blockIdx.x",
        ceildiv(points, THREADS),
        lambda number: threads("threadIdx.x", THREADS, lambda thread: body(number, thread)),
    )
    return kernel(program, grid)


def _shared_axis(contraction: SumOfProducts) -> int | None:
    """Return an axis along which the operand that runs along the columns is the same."""
    stage = contraction.stage
    if len(stage.axes) < 2:
        return None
    column = stage.axes[-1].var
    for factor in (contraction.left, contraction.right):
        used = variables(factor)
        if column in used:
            free = [n for n, a in enumerate(stage.axes[:-1]) if a.var not in used]
            return free[-1] if free else None
    return None
