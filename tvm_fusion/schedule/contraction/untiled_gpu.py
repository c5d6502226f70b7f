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
    unrolled,
    when,
)
from .fuse_epilogue import epilogue
from .operands import SumOfProducts
from .prim_func import add_term

THREADS = 128
ROWS = 4  # results of one thread that share the elements of one operand


def sums_gpu(program: Program, contraction: SumOfProducts) -> tirx.PrimFunc:
    """One launch: a thread sums a few results, neighbouring threads neighbouring columns.

    Pieces that results need together are sums of one thread.
    """
    stage = contraction.stage
    row = _shared_axis(contraction)
    extents = [a.extent for a in stage.axes]
    pieces, together = len(contraction.totals), None
    if contraction.pieces is not None:
        together = stage.axes.index(contraction.pieces.piece)
        extents[together] = index(1)
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
        sums = local("sums", [rows * pieces], contraction.dtype)

        def at(count: ir.Expr, piece: int, inside: bool) -> list[ir.Expr]:
            where = list(place)
            if together is not None:
                where[together] = index(piece)
            if row is not None:
                where[row] = place[row] * rows + count
                if inside and not exact:  # beyond the edge: sum the last row again, and drop it
                    where[row] = tirx.min(where[row], last_row)
            return where

        def each(make: Callable[[ir.Expr, int], tirx.Stmt]) -> tirx.Stmt:
            return loop(
                "row",
                rows,
                lambda count: sequence([make(count, piece) for piece in range(pieces)]),
                tirx.ForKind.UNROLLED,
            )

        def slot(count: ir.Expr, piece: int) -> ir.Expr:
            return count * pieces + piece if pieces > 1 else count

        def finish(count: ir.Expr) -> tirx.Stmt:
            where = at(count, 0, False)
            totals = [load(sums, [slot(count, piece)]) for piece in range(pieces)]
            stmt = epilogue(contraction, where, *totals)
            return stmt if exact or row is None else when(where[row] <= last_row, stmt)

        stmts = [
            each(lambda n, piece: tirx.BufferStore(sums, contraction.initial, [slot(n, piece)])),
            over(
                stage.reduce,
                lambda reduced: each(
                    lambda n, piece: add_term(
                        contraction, (), sums, slot(n, piece), at(n, piece, True), reduced
                    )
                ),
            ),
            unrolled("row", rows, finish),
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
