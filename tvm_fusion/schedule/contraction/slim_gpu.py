"""Products of a few rows on a GPU, at the speed at which memory gives the large factor.

A vector of it lies along the columns. A block has some vectors of columns side by side, and all
terms of the sum: its threads are slices of the terms, each slice as many threads as there are
vectors. Threads ask for several terms at once, before they use the first. What the slices found is
added up in shared memory, in their order, so that results are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import ir, sym, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Program
from ..address import same
from ..loops import (
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
    substitute,
    threads,
    when,
)
from .graft import epilogue
from .slim import Slim


def slim_gpu(program: Program, cut: Slim) -> tirx.PrimFunc:
    """Make the kernel of a product of few rows: one launch."""
    rows = cut.count
    sums = _own(cut, "sums", [rows * cut.pieces * cut.width], cut.contraction.dtype)
    shared = scratch(
        [index(d) for d in (cut.slices, min(cut.together, rows) * cut.pieces * cut.side)],
        cut.contraction.dtype,
        "slices",
        scope="shared",
    )

    def body(number: ir.Expr) -> tirx.Stmt:
        stmts = [_every(cut, partial(_sums, cut, number, sums))]
        for first in range(0, rows, cut.together):
            some = range(first, min(first + cut.together, rows))
            stmts.append(_every(cut, partial(_publish, cut, some, sums, shared)))
            stmts.append(_every(cut, partial(_finish, cut, number, some, shared)))
        return block("slices", sequence(stmts), [sums, shared])

    return kernel(program, threads("blockIdx.x", cut.blocks, body))


def _every(cut: Slim, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Run ``body(slice, vector)`` in every thread; behind it, what they wrote is known to all."""

    def thread(number: ir.Expr) -> tirx.Stmt:
        lanes = index(cut.lanes)
        return body(tirx.floordiv(number, lanes), tirx.floormod(number, lanes))

    return threads("threadIdx.x", cut.threads, thread)


def _own(cut: Slim, name: str, shape: Sequence[int], dtype: str) -> ir.Var:
    """Declare registers; lowering drops the thread's number, the first index."""
    return scratch([index(d) for d in (cut.threads, *shape)], dtype, name, scope="local")


def _sums(cut: Slim, number: ir.Expr, sums: ir.Var, part: ir.Expr, vector: ir.Expr) -> tirx.Stmt:
    """Add up a thread's terms: every ``slices``-th, some at once."""
    thread, width = part * cut.lanes + vector, cut.width
    terms = product([a.extent for a in cut.reduce])
    registers = [
        local(f"{x.source.name}_vector", [cut.ahead * cut.pieces * width], str(x.ty.dtype))
        for x in cut.streamed
    ]

    def where(
        row: ir.Expr | int, piece: ir.Expr, lane: ir.Expr, term: ir.Expr
    ) -> dict[ir.Var, ir.Expr]:
        place = cut.place(number, row, piece, vector, lane)
        found = {a.var: p for a, p in zip(cut.contraction.stage.axes, place, strict=True)}
        along = coordinates(term, [a.extent for a in cut.reduce])
        found |= {a.var: index(0) for a in cut.contraction.stage.reduce}
        return found | {a.var: p for a, p in zip(cut.reduce, along, strict=True)}

    def read(slot: ir.Expr, term: ir.Expr) -> tirx.Stmt:
        def one(x: ir.TensorLoad, register: ir.Var, piece: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = substitute(x, where(0, piece, lane, term))
                held = (slot * cut.pieces + piece) * width + lane
                return tirx.BufferStore(register, value, [held])

            return loop("lane", width, element, tirx.ForKind.VECTORIZED)

        def each(piece: ir.Expr) -> tirx.Stmt:
            pairs = zip(cut.streamed, registers, strict=True)
            return sequence([one(x, register, piece) for x, register in pairs])

        return loop("piece", cut.pieces, each, tirx.ForKind.UNROLLED)

    def use(slot: ir.Expr, term: ir.Expr) -> tirx.Stmt:
        def row(r: ir.Expr, piece: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                held = (slot * cut.pieces + piece) * width + lane

                def swap(x: ir.TensorLoad) -> ir.Expr:
                    pairs = zip(cut.streamed, registers, strict=True)
                    return next((load(own, [held]) for y, own in pairs if same(x, y)), x)

                summand = substitute(cut.contraction.term(), {}, swap)
                mine = [thread, (r * cut.pieces + piece) * width + lane]
                value = load(sums, mine) + substitute(summand, where(r, piece, lane, term))
                return tirx.BufferStore(sums, value, mine)

            return loop("lane", width, element, tirx.ForKind.UNROLLED)

        def each(r: ir.Expr) -> tirx.Stmt:
            return loop("piece", cut.pieces, lambda p: row(r, p), tirx.ForKind.UNROLLED)

        return loop("row", cut.count, each, tirx.ForKind.UNROLLED)

    def steps(first: ir.Expr, count: int) -> tirx.Stmt:
        def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            def one(slot: ir.Expr) -> tirx.Stmt:
                return do(slot, (first + slot) * cut.slices + part)

            return loop("slot", count, one, tirx.ForKind.UNROLLED)

        return sequence([each(read), each(use)])

    step = cut.ahead * cut.slices
    whole = sym.Analyzer().simplify(tirx.floordiv(terms, index(step)))
    left = sym.Analyzer().simplify(terms - whole * step)
    start = loop(
        "sum",
        cut.count * cut.pieces * width,
        lambda i: tirx.BufferStore(sums, cut.contraction.initial, [thread, i]),
        tirx.ForKind.UNROLLED,
    )
    stmts = [loop("step", whole, lambda i: steps(i * cut.ahead, cut.ahead))]
    if constant(left) != 0:

        def rest(i: ir.Expr) -> tirx.Stmt:
            number_of = whole * cut.ahead + i
            return when(number_of * cut.slices + part < terms, steps(number_of, 1))

        stmts.append(loop("rest", ceildiv(left, cut.slices), rest))
    body = block("terms", sequence(stmts), registers)
    return sequence([start, cut.inside(number, vector, body)])


def _publish(
    cut: Slim, rows: range, sums: ir.Var, shared: ir.Var, part: ir.Expr, vector: ir.Expr
) -> tirx.Stmt:
    """Write some rows of a thread's sums where all threads see them."""
    thread, width = part * cut.lanes + vector, cut.width

    def one(number: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            value = load(sums, [thread, (rows.start * cut.pieces + number) * width + lane])
            return tirx.BufferStore(
                shared, value, [part, number * cut.side + vector * width + lane]
            )

        return loop("lane", width, element, tirx.ForKind.UNROLLED)

    return loop("sum", len(rows) * cut.pieces, one, tirx.ForKind.UNROLLED)


def _finish(
    cut: Slim, number: ir.Expr, rows: range, shared: ir.Var, part: ir.Expr, vector: ir.Expr
) -> tirx.Stmt:
    """Add up what the slices found, and write the results: neighbouring threads' side by side."""
    thread = part * cut.lanes + vector
    totals = local("totals", [cut.pieces], cut.contraction.dtype)
    count = len(rows)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        row, column = coordinates(flat, [count, cut.side])
        across, lane = coordinates(column, [cut.lanes, cut.width])

        def add(s: ir.Expr) -> tirx.Stmt:
            def one(piece: int) -> tirx.Stmt:
                found = load(shared, [s, (row * cut.pieces + piece) * cut.side + column])
                return tirx.BufferStore(totals, load(totals, [index(piece)]) + found, [piece])

            return sequence([one(piece) for piece in range(cut.pieces)])

        start = [
            tirx.BufferStore(totals, tirx.const(0, cut.contraction.dtype), [piece])
            for piece in range(cut.pieces)
        ]
        place = cut.place(number, rows.start + row, 0, across, lane)
        found = [load(totals, [index(piece)]) for piece in range(cut.pieces)]
        stmts = [
            *start,
            loop("slice", cut.slices, add),
            epilogue(cut.contraction, place, *found),
        ]
        stmt = when(flat < count * cut.side, block("finish", sequence(stmts), [totals]))
        return cut.inside(number, across, stmt)

    return loop("result", ceildiv(count * cut.side, cut.threads), element)
