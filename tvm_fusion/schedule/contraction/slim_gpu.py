"""Products of a few rows on a GPU, at the speed at which memory gives the large factor.

A vector of it lies along the columns, or along the terms. A block has some tiles of columns side by
side, and all terms of the sum: its threads are slices of the terms. Threads ask for several tiles
at once, before they use the first. What the slices found is added up in shared memory, in a fixed
order, so that results are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import ir, sym, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
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
    sequence,
    threads,
    when,
)
from .graft import epilogue
from .slim import Slim
from .tile_sums import TileSums

FOLDED = 32  # slices from which on they are added up in two steps


def slim_gpu(program: Program, cut: Slim) -> tirx.PrimFunc:
    """Make the kernel of a product of few rows: one launch."""
    rows = cut.count
    # Lowering drops the thread's number, the first index.
    sums = scratch(
        [index(d) for d in (cut.threads, cut.kept)],
        cut.contraction.dtype,
        "sums",
        scope="local",
    )
    shared = scratch(
        [index(d) for d in (cut.slices, cut.shared(min(cut.together, rows)))],
        cut.contraction.dtype,
        "slices",
        scope="shared",
    )
    is_folded = cut.slices >= FOLDED
    left = 1 << cut.slices.bit_length() // 2 if is_folded else cut.slices
    folded = scratch([index(left), shared.ty.shape[1]], cut.contraction.dtype, "folded", "shared")

    def body(number: ir.Expr) -> tirx.Stmt:
        stmts = [_every(cut, partial(_sums, cut, number, sums))]
        for first in range(0, rows, cut.together):
            some = range(first, min(first + cut.together, rows))
            stmts.append(_every(cut, partial(_publish, cut, some, sums, shared)))
            if is_folded:
                stmts.append(_every(cut, partial(_fold, cut, some, shared, folded)))
            parts = folded if is_folded else shared
            stmts.append(_every(cut, partial(finish, cut, number, some, parts)))
        return block("slices", sequence(stmts), [sums, shared, *([folded] if is_folded else [])])

    return kernel(program, threads("blockIdx.x", cut.blocks, body))


def _every(cut: Slim, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Run something in every thread; behind it, what they wrote is known to all."""
    return threads("threadIdx.x", cut.threads, body)


def _sums(cut: Slim, number: ir.Expr, sums: ir.Var, thread: ir.Expr) -> tirx.Stmt:
    """Add up a thread's terms: every ``slices``-th tile, some at once."""
    part, vector = cut.thread(thread)
    tiles = TileSums(cut, number, vector, sums, lambda i: [thread, i])

    def steps(first: ir.Expr, count: int) -> tirx.Stmt:
        def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            def one(slot: ir.Expr) -> tirx.Stmt:
                return do(slot, (first + slot) * cut.slices + part)

            return loop("slot", count, one, tirx.ForKind.UNROLLED)

        return sequence([each(tiles.read), each(tiles.use)])

    step = cut.ahead * cut.slices
    whole = sym.Analyzer().simplify(tirx.floordiv(cut.steps, index(step)))
    left = sym.Analyzer().simplify(cut.steps - whole * step)
    start = loop(
        "sum",
        cut.kept,
        lambda i: tirx.BufferStore(sums, cut.contraction.initial, [thread, i]),
        tirx.ForKind.UNROLLED,
    )
    stmts = [loop("step", whole, lambda i: steps(i * cut.ahead, cut.ahead))]
    if constant(left) != 0:

        def rest(i: ir.Expr) -> tirx.Stmt:
            number_of = whole * cut.ahead + i
            return when(number_of * cut.slices + part < cut.steps, steps(number_of, 1))

        stmts.append(loop("rest", ceildiv(left, cut.slices), rest))
    body = block("terms", sequence(stmts), tiles.registers)
    return sequence([start, cut.inside(number, vector, body)])


def _publish(cut: Slim, rows: range, sums: ir.Var, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
    """Write some rows of a thread's sums where all threads see them."""
    part, vector = cut.thread(thread)
    width = cut.width

    def one(number: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            value = load(sums, [thread, (rows.start * cut.pieces + number) * width + lane])
            return tirx.BufferStore(
                shared, value, [part, number * cut.side + vector * width + lane]
            )

        return loop("lane", width, element, tirx.ForKind.UNROLLED)

    stmts = [loop("sum", len(rows) * cut.pieces, one, tirx.ForKind.UNROLLED)]
    if cut.row_sum is not None:
        # All tiles of a slice have met the same terms.
        before = cut.count * cut.pieces * width + rows.start

        def row(r: ir.Expr) -> tirx.Stmt:
            place = [part, len(rows) * cut.pieces * cut.side + r]
            return tirx.BufferStore(shared, load(sums, [thread, before + r]), place)

        stmts.append(when(vector < 1, loop("row", len(rows), row, tirx.ForKind.UNROLLED)))
    return sequence(stmts)


def _fold(cut: Slim, rows: range, shared: ir.Var, folded: ir.Var, thread: ir.Expr) -> tirx.Stmt:
    """Add slices up into fewer."""
    left = int(folded.ty.shape[0])
    size = cut.shared(len(rows))
    total = local("total", [1], cut.contraction.dtype)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        first, place = coordinates(flat, [left, size])

        def add(n: ir.Expr) -> tirx.Stmt:
            part = first + n * left
            value = load(total, [index(0)]) + load(shared, [part, place])
            return when(part < cut.slices, tirx.BufferStore(total, value, [0]))

        stmts = [
            tirx.BufferStore(total, tirx.const(0, cut.contraction.dtype), [0]),
            loop("slice", -(-cut.slices // left), add, tirx.ForKind.UNROLLED),
            tirx.BufferStore(folded, load(total, [index(0)]), [first, place]),
        ]
        return when(flat < left * size, block("fold", sequence(stmts), [total]))

    return loop("sum", ceildiv(left * size, cut.threads), element)


def finish(cut: Slim, number: ir.Expr, rows: range, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
    """Add up what the slices found, and write the results: neighbouring threads' side by side."""
    dtype, has_row_sum = cut.contraction.dtype, cut.row_sum is not None
    totals = local("totals", [cut.pieces + has_row_sum], dtype)
    count = len(rows)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        row, column = coordinates(flat, [count, cut.side])
        across, lane = coordinates(column, [cut.lanes, cut.width])

        places = [(row * cut.pieces + piece) * cut.side + column for piece in range(cut.pieces)]
        places += [count * cut.pieces * cut.side + row] * has_row_sum

        def add(s: ir.Expr) -> tirx.Stmt:
            def one(n: int, place: ir.Expr) -> tirx.Stmt:
                value = load(totals, [index(n)]) + load(shared, [s, place])
                return tirx.BufferStore(totals, value, [n])

            return sequence([one(n, place) for n, place in enumerate(places)])

        start = [tirx.BufferStore(totals, tirx.const(0, dtype), [n]) for n in range(len(places))]
        place = cut.element(number, rows.start + row, across, lane)
        found = [load(totals, [index(piece)]) for piece in range(cut.pieces)]
        if cut.row_sum is not None:
            scale = cut.row_sum.of(place, load(totals, [index(cut.pieces)]), cut.contraction.stage)
            found = [total * scale for total in found]
        stmts = [
            *start,
            loop("slice", shared.ty.shape[0], add),
            epilogue(cut.contraction, place, *found),
        ]
        stmt = when(flat < count * cut.side, block("finish", sequence(stmts), [totals]))
        return cut.inside(number, across, stmt)

    return loop("result", ceildiv(count * cut.side, cut.threads), element)
