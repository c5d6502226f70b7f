"""Products of a few rows on a GPU, at the speed at which memory gives the large factor.

A vector of it lies along the columns, or along the terms. A block has some tiles of columns side by
side, and all terms of the sum: its threads are slices of the terms. Threads ask for several tiles
at once, before they use the first. What the slices found is added up in shared memory, in a fixed
order, so that results are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tvm import ir, sym, tirx
from tvm.target import Target

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
    unrolled,
    when,
)
from .fuse_epilogue import epilogue
from .gemv_config import Slim
from .gemv_cp_async import CopiedWalk
from .gemv_mainloop import TileSums
from .norm_rows_gpu import StagedRows

FOLDED = 32  # slices from which on they are added up in two steps


def slim_gpu(program: Program, cut: Slim, target: Target) -> tirx.PrimFunc:
    """Make the kernel of a product of few rows: one launch."""
    rows = cut.count
    # Lowering drops the thread's number, the first index.
    sums = scratch(
        [index(d) for d in (cut.threads, cut.kept)],
        cut.contraction.dtype,
        "sums",
        scope="local",
    )
    width = cut.shared(min(cut.together, rows))
    shared = scratch(
        [index(d) for d in (max(cut.slices, -(-cut.staged // width)), width)],
        cut.contraction.dtype,
        "slices",
        scope="shared",
    )
    is_folded = cut.slices >= FOLDED
    left = 1 << cut.slices.bit_length() // 2 if is_folded else cut.slices
    folded = scratch([index(left), shared.ty.shape[1]], cut.contraction.dtype, "folded", "shared")

    staged = StagedRows.of(cut, shared)
    walked = cut if staged is None else replace(cut, small=staged.value)
    copied = CopiedWalk.of(walked, target)

    def body(number: ir.Expr) -> tirx.Stmt:
        def tiles(thread: ir.Expr) -> TileSums:
            _, vector = cut.thread(thread)
            return TileSums(walked, number, vector, sums, lambda i: [thread, i])

        stmts = []
        if copied is not None:
            stmts.append(cut.every(lambda t: copied.begin(number, t, tiles(t))))
        if staged is not None:
            stmts += [cut.every(partial(staged.stage, number)), cut.every(staged.fold)]
        stmts.append(cut.every(lambda t: _sums(walked, number, sums, t, tiles(t), copied)))
        for first in range(0, rows, cut.together):
            some = range(first, min(first + cut.together, rows))
            stmts.append(cut.every(partial(_publish, cut, some, sums, shared)))
            if is_folded:
                stmts.append(cut.every(partial(_fold, cut, some, shared, folded)))
            parts = folded if is_folded else shared
            stmts.append(cut.every(partial(finish, cut, number, some, parts, staged)))
        buffers = [
            sums,
            shared,
            *([folded] if is_folded else []),
            *(staged.buffers if staged else []),
            *([copied.places] if copied else []),
        ]
        return block("slices", sequence(stmts), buffers)

    return kernel(program, threads("blockIdx.x", cut.blocks, body))


def _sums(
    cut: Slim,
    number: ir.Expr,
    sums: ir.Var,
    thread: ir.Expr,
    tiles: TileSums,
    copied: CopiedWalk | None,
) -> tirx.Stmt:
    """Add up a thread's terms: every ``slices``-th tile."""

    def clear(i: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(sums, cut.contraction.initial, [thread, i])

    start = unrolled("sum", cut.kept, clear)
    if copied is not None:
        return sequence(
            [start, block("terms", copied.steps(number, thread, tiles), tiles.registers)]
        )
    part, vector = cut.thread(thread)
    body = block("terms", _read(cut, part, tiles), tiles.registers)
    return sequence([start, cut.inside(number, vector, body)])


def _read(cut: Slim, part: ir.Expr, tiles: TileSums) -> tirx.Stmt:
    """Read some tiles at once, then use them."""

    def steps(first: ir.Expr, count: int) -> tirx.Stmt:
        def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            def one(slot: ir.Expr) -> tirx.Stmt:
                return do(slot, (first + slot) * cut.slices + part)

            return unrolled("slot", count, one)

        return sequence([each(tiles.read), each(tiles.use)])

    step = cut.ahead * cut.slices
    whole = sym.Analyzer().simplify(tirx.floordiv(cut.steps, index(step)))
    left = sym.Analyzer().simplify(cut.steps - whole * step)
    stmts = [loop("step", whole, lambda i: steps(i * cut.ahead, cut.ahead))]
    if constant(left) != 0:

        def rest(i: ir.Expr) -> tirx.Stmt:
            number_of = whole * cut.ahead + i
            return when(number_of * cut.slices + part < cut.steps, steps(number_of, 1))

        stmts.append(loop("rest", ceildiv(left, cut.slices), rest))
    return sequence(stmts)


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

        return unrolled("lane", width, element)

    return unrolled("sum", len(rows) * cut.pieces, one)


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
            unrolled("slice", -(-cut.slices // left), add),
            tirx.BufferStore(folded, load(total, [index(0)]), [first, place]),
        ]
        return when(flat < left * size, block("fold", sequence(stmts), [total]))

    return loop("sum", ceildiv(left * size, cut.threads), element)


def finish(
    cut: Slim,
    number: ir.Expr,
    rows: range,
    shared: ir.Var,
    staged: StagedRows | None,
    thread: ir.Expr,
) -> tirx.Stmt:
    """Add up what the slices found, and write the results: neighbouring threads' side by side."""
    dtype, pieces = cut.contraction.dtype, range(cut.pieces)
    totals, row_total = local("totals", [cut.pieces], dtype), local("row_total", [1], dtype)
    parts = cut.slices if cut.slices < FOLDED else shared.ty.shape[0]
    count = len(rows)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        row, column = coordinates(flat, [count, cut.side])
        across, lane = coordinates(column, [cut.lanes, cut.width])

        def add(s: ir.Expr) -> tirx.Stmt:
            def one(piece: int) -> tirx.Stmt:
                part = load(shared, [s, (row * cut.pieces + piece) * cut.side + column])
                return tirx.BufferStore(totals, load(totals, [index(piece)]) + part, [piece])

            return sequence([one(piece) for piece in pieces])

        stmts = [tirx.BufferStore(totals, tirx.const(0, dtype), [piece]) for piece in pieces]
        stmts.append(loop("slice", parts, add))
        place = cut.element(number, rows.start + row, across, lane)
        found = [load(totals, [index(piece)]) for piece in pieces]
        if staged is not None:
            add_rest, scale = staged.scale(rows.start + row, place, row_total)
            stmts.append(add_rest)
            found = [total * scale for total in found]
        stmts.append(epilogue(cut.contraction, place, *found))
        buffers = [totals] if staged is None else [totals, row_total]
        stmt = when(flat < count * cut.side, block("finish", sequence(stmts), buffers))
        return cut.inside(number, across, stmt)

    return loop("result", ceildiv(count * cut.side, cut.threads), element)
