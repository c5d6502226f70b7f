"""Untiled contraction on a GPU: depthwise and odd transposed convolutions, column splits.

    thread (128 a block) per ROWS results of adjacent columns:
      acc[rows, parts] = 0                                        registers
      for k:  acc += left * right                                 global, coalesced along columns
      epilogue of each row, masked at the edge

Few elements are used twice, so what counts is that adjacent threads read contiguous elements.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ....core.expressions import load, variables
from ....core.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    threads,
    unrolled,
    when,
)
from ....program.program import Program
from ..problem.fuse_epilogue import store_results
from ..problem.prim_func import sum_terms
from ..problem.sum_of_products import SumOfProducts

THREADS = 128
ROWS = 4  # results of a thread that reuse the elements of one operand


def untiled_gpu(program: Program, contraction: SumOfProducts) -> tirx.PrimFunc:
    """Make the kernel: a thread sums a few results, with all parts of a column split."""
    stage = contraction.stage
    row = _shared_axis(contraction)
    extents = [a.extent for a in stage.axes]
    parts, part_axis = len(contraction.totals), None
    if contraction.column_split is not None:
        part_axis = stage.axes.index(contraction.column_split.part)
        extents[part_axis] = index(1)
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
        acc = local("acc", [rows * parts], contraction.dtype)

        def at(count: ir.Expr, part: int, inside: bool) -> list[ir.Expr]:
            where = list(place)
            if part_axis is not None:
                where[part_axis] = index(part)
            if row is not None:
                where[row] = place[row] * rows + count
                if inside and not exact:  # beyond the edge: sum the last row again, not stored
                    where[row] = tirx.min(where[row], last_row)
            return where

        def each(make: Callable[[ir.Expr, int], tirx.Stmt]) -> tirx.Stmt:
            return loop(
                "row",
                rows,
                lambda count: sequence([make(count, part) for part in range(parts)]),
                tirx.ForKind.UNROLLED,
            )

        def slot(count: ir.Expr, part: int) -> ir.Expr:
            return count * parts + part if parts > 1 else count

        def finish(count: ir.Expr) -> tirx.Stmt:
            where = at(count, 0, False)
            totals = [load(acc, [slot(count, part)]) for part in range(parts)]
            stmt = store_results(contraction, where, *totals)
            return stmt if exact or row is None else when(where[row] <= last_row, stmt)

        def element(count: ir.Expr, part: int) -> tuple[ir.Expr, list[ir.Expr]]:
            return slot(count, part), at(count, part, True)

        sums = sum_terms(contraction, (), acc, each, element)
        stmts = [*sums, unrolled("row", rows, finish)]
        return when(flat < points, block("element", sequence(stmts), [acc]))

    grid = threads(
        "blockIdx.x",
        ceildiv(points, THREADS),
        lambda number: threads("threadIdx.x", THREADS, lambda thread: body(number, thread)),
    )
    return kernel(program, grid)


def _shared_axis(contraction: SumOfProducts) -> int | None:
    """Return an axis along which the operand that depends on the columns is reused."""
    stage = contraction.stage
    if len(stage.axes) < 2:
        return None
    column = stage.axes[-1].var
    for operand in (contraction.left, contraction.right):
        used = variables(operand)
        if column in used:
            free = [n for n, a in enumerate(stage.axes[:-1]) if a.var not in used]
            return free[-1] if free else None
    return None
