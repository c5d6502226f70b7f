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
    rows, width = cut.count, cut.width
    sums = _own(cut, "sums", [rows * width], cut.contraction.dtype)
    shared = scratch(
        [index(d) for d in (cut.slices, min(cut.together, rows) * cut.side)],
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
        local(f"{x.source.name}_vector", [cut.ahead * width], str(x.ty.dtype)) for x in cut.streamed
    ]

    def where(row: ir.Expr | int, lane: ir.Expr, term: ir.Expr) -> dict[ir.Var, ir.Expr]:
        place = cut.place(number, row, vector, lane)
        found = {a.var: p for a, p in zip(cut.contraction.stage.axes, place, strict=True)}
        along = coordinates(term, [a.extent for a in cut.reduce])
        found |= {a.var: index(0) for a in cut.contraction.stage.reduce}
        return found | {a.var: p for a, p in zip(cut.reduce, along, strict=True)}

    def read(slot: ir.Expr, term: ir.Expr) -> tirx.Stmt:
        def one(x: ir.TensorLoad, register: ir.Var) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = substitute(x, where(0, lane, term))
                return tirx.BufferStore(register, value, [slot * width + lane])

            return loop("lane", width, element, tirx.ForKind.VECTORIZED)

        return sequence([one(*pair) for pair in zip(cut.streamed, registers, strict=True)])

    def use(slot: ir.Expr, term: ir.Expr) -> tirx.Stmt:
        def row(r: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                def swap(x: ir.TensorLoad) -> ir.Expr:
                    pairs = zip(cut.streamed, registers, strict=True)
                    held = (load(own, [slot * width + lane]) for y, own in pairs if same(x, y))
                    return next(held, x)

                summand = substitute(cut.contraction.term(), {}, swap)
                value = load(sums, [thread, r * width + lane])
                value = value + substitute(summand, where(r, lane, term))
                return tirx.BufferStore(sums, value, [thread, r * width + lane])

            return loop("lane", width, element, tirx.ForKind.UNROLLED)

        return loop("row", cut.count, row, tirx.ForKind.UNROLLED)

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
        cut.count * width,
        lambda i: tirx.BufferStore(sums, cut.contraction.initial, [thread, i]),
        tirx.ForKind.UNROLLED,
    )
    stmts = [start, loop("step", whole, lambda i: steps(i * cut.ahead, cut.ahead))]
    if constant(left) != 0:

        def rest(i: ir.Expr) -> tirx.Stmt:
            number_of = whole * cut.ahead + i
            return when(number_of * cut.slices + part < terms, steps(number_of, 1))

        stmts.append(loop("rest", ceildiv(left, cut.slices), rest))
    exists = cut.inside(number, vector)
    body = block("terms", sequence(stmts[1:]), registers)
    return sequence([start, body if exists is None else when(exists, body)])


def _publish(
    cut: Slim, rows: range, sums: ir.Var, shared: ir.Var, part: ir.Expr, vector: ir.Expr
) -> tirx.Stmt:
    """Write some rows of a thread's sums where all threads see them."""
    thread, width = part * cut.lanes + vector, cut.width

    def row(r: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            value = load(sums, [thread, (rows.start + r) * width + lane])
            return tirx.BufferStore(shared, value, [part, r * cut.side + vector * width + lane])

        return loop("lane", width, element, tirx.ForKind.UNROLLED)

    return loop("row", len(rows), row, tirx.ForKind.UNROLLED)


def _finish(
    cut: Slim, number: ir.Expr, rows: range, shared: ir.Var, part: ir.Expr, vector: ir.Expr
) -> tirx.Stmt:
    """Add up what the slices found, and write the results: neighbouring threads' side by side."""
    thread = part * cut.lanes + vector
    total = local("total", [1], cut.contraction.dtype)
    count = len(rows)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        row, column = coordinates(flat, [count, cut.side])
        across, lane = coordinates(column, [cut.lanes, cut.width])

        def add(s: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(total, load(total, [0]) + load(shared, [s, flat]), [0])

        stmts = [
            tirx.BufferStore(total, load(shared, [index(0), flat]), [0]),
            loop("slice", cut.slices - 1, lambda s: add(s + 1)),
            epilogue(
                cut.contraction, cut.place(number, rows.start + row, across, lane), load(total, [0])
            ),
        ]
        stmt = when(flat < count * cut.side, block("finish", sequence(stmts), [total]))
        exists = cut.inside(number, across)
        return stmt if exists is None else when(exists, stmt)

    return loop("result", ceildiv(count * cut.side, cut.threads), element)
