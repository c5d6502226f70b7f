"""Column reduction on a GPU: vectors of columns, the terms of a column split over a block.

  grid    batch * (columns / (vectors * lanes)) blocks
  block   threads * vectors threads, vectors innermost
  thread  acc[lanes] = neutral                                                   registers
    for terms, every threads-th, UNROLL at a time:
      load the vectors of all of them; acc = combine(acc, term)                  16 bytes a load
      store what is asked for of each element                                    in vectors, too
    partial[lane][thread] = acc                                                  shared memory
  while there are several partial results: barrier; four become one
  first threads: results of a column each

A channels-last image has few columns and many pixels: neighbouring columns in neighbouring threads
alone would leave each of them thousands of loads one after the other.
"""

from tvm import ir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.tir.expressions import load
from ...core.tir.loops import (
    block,
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
    unrolled,
    vectorized,
    when,
)
from ...program.program import Program
from ..index.address import same
from .config import ColumnConfig
from .reduction import ColumnReduction

UNROLL = 8  # terms of a thread whose loads are in flight together
_RADIX = 4


def column_reduction_gpu(
    program: Program, view: ColumnReduction, config: ColumnConfig
) -> tirx.PrimFunc:
    """Make the kernel."""
    columns = view.lanes * config.vectors
    partial = scratch([columns * config.threads], view.dtype, "partial", "shared")
    size = config.threads * config.vectors
    extents = [*(a.extent for a in view.batch), index((constant(view.k.extent) or 1) // columns)]

    def body(number: ir.Expr) -> tirx.Stmt:
        *batch, first = coordinates(number, extents)
        place = dict(zip((a.var for a in view.batch), batch, strict=True))
        place |= {a.var: index(0) for a in view.stage.axes if constant(a.extent) == 1}
        work = _ColumnBlock(view, config, partial, place, first * columns)
        phases = [work.sum]
        left = config.threads
        while left > 1:
            parts = _RADIX if left % _RADIX == 0 else 2
            left //= parts
            phases.append(work.joining(left, parts))
        phases.append(work.store)
        stmts = [threads("threadIdx.x", size, phase) for phase in phases]
        return block("columns", sequence(stmts), [partial])

    return kernel(program, threads("blockIdx.x", product(extents), body))


class _ColumnBlock:
    """What the threads of a block do with its columns."""

    def __init__(
        self,
        view: ColumnReduction,
        config: ColumnConfig,
        partial: ir.Var,
        place: dict[ir.Var, ir.Expr],
        first: ir.Expr,
    ) -> None:
        self._view, self._config, self._partial = view, config, partial
        self._place, self._first = place, first

    def _slot(self, column: ir.Expr, thread: ir.Expr) -> list[ir.Expr]:
        return [column * self._config.threads + thread]

    def sum(self, thread: ir.Expr) -> tirx.Stmt:
        """Combine a thread's terms, and store what that gives."""
        view, config, lanes = self._view, self._config, self._view.lanes
        own, vector = coordinates(thread, [config.threads, config.vectors])
        column = vector * lanes
        acc = local("acc", [lanes], view.dtype)
        extents = [a.extent for a in view.stage.reduce]
        terms = int(product(extents))
        steps = -(-terms // config.threads)
        each = min(UNROLL, steps)
        vectors = view.vectors
        held = [local(f"{x.source.name}_vector", [each * lanes], str(x.ty.dtype)) for x in vectors]
        made = [
            local(f"{e.buffer.name}_vector", [lanes], str(e.buffer.dtype)) for e in view.elements
        ]

        def where(term: ir.Expr, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
            at_term = coordinates(term, extents)
            reduced = dict(zip((a.var for a in view.stage.reduce), at_term, strict=True))
            return {**self._place, **reduced, view.k.var: self._first + column + lane}

        def read(term: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            near = tirx.min(term, index(terms - 1)) if steps * config.threads != terms else term
            stmts = []
            for x, register in zip(vectors, held, strict=True):

                def one(lane: ir.Expr, x=x, register=register) -> tirx.Stmt:
                    indices = [substitute(i, where(near, lane)) for i in x.indices]
                    value = load(x.source, indices)
                    return tirx.BufferStore(register, value, [number * lanes + lane])

                stmts.append(vectorized(lanes, one))
            return sequence(stmts)

        def add(term: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            def value(expr: ir.Expr, lane: ir.Expr) -> ir.Expr:
                def swap(found: ir.TensorLoad) -> ir.Expr:
                    pairs = zip(vectors, held, strict=True)
                    register = next((r for x, r in pairs if same(x, found)), None)
                    return found if register is None else load(register, [number * lanes + lane])

                return substitute(substitute(expr, {}, swap), where(term, lane))

            def one(lane: ir.Expr) -> tirx.Stmt:
                combined = view.combine(load(acc, [lane]), value(view.term, lane))
                return tirx.BufferStore(acc, combined, [lane])

            stmts = [unrolled("lane", lanes, one)]
            for element, out in zip(view.elements, made, strict=True):

                def compute(lane: ir.Expr, element=element, out=out) -> tirx.Stmt:
                    return tirx.BufferStore(out, value(element.value, lane), [lane])

                def write(lane: ir.Expr, element=element, out=out) -> tirx.Stmt:
                    indices = [substitute(i, where(term, lane)) for i in element.indices]
                    return tirx.BufferStore(element.buffer, load(out, [lane]), indices)

                stmts += [unrolled("lane", lanes, compute), vectorized(lanes, write)]
            stmt = sequence(stmts)
            return stmt if steps * config.threads == terms else when(term < terms, stmt)

        def some(start: ir.Expr, count: int) -> tirx.Stmt:
            def term(number: ir.Expr) -> ir.Expr:
                return (start + number) * config.threads + own

            reads = unrolled("term", count, lambda n: read(term(n), n))
            adds = unrolled("term", count, lambda n: add(term(n), n))
            return sequence([reads, adds])

        (neutral,) = view.stage.init or ()
        stmts = [unrolled("lane", lanes, lambda n: tirx.BufferStore(acc, neutral, [n]))]
        whole = steps // each
        stmts.append(loop("step", whole, lambda n: some(n * each, each)))
        if steps % each:
            stmts.append(some(index(whole * each), steps % each))

        def keep(lane: ir.Expr) -> tirx.Stmt:
            slot = self._slot(column + lane, own)
            return tirx.BufferStore(self._partial, load(acc, [lane]), slot)

        stmts.append(unrolled("lane", lanes, keep))
        return block("terms", sequence(stmts), [acc, *held, *made])

    def joining(self, left: int, parts: int):
        """Combine partial results ``left`` apart, of as many threads as are left."""
        view, config = self._view, self._config

        def phase(thread: ir.Expr) -> tirx.Stmt:
            columns = view.lanes * config.vectors
            size = config.threads * config.vectors

            def one(number: ir.Expr) -> tirx.Stmt:
                column, own = coordinates(number * size + thread, [columns, left])
                first = load(self._partial, self._slot(column, own))
                for part in range(1, parts):
                    other = load(self._partial, self._slot(column, own + part * left))
                    first = view.combine(first, other)
                stmt = tirx.BufferStore(self._partial, first, self._slot(column, own))
                return when(number * size + thread < columns * left, stmt)

            return unrolled("part", -(-columns * left // size), one)

        return phase

    def store(self, thread: ir.Expr) -> tirx.Stmt:
        """Store the results of a column."""
        view, columns = self._view, self._view.lanes * self._config.vectors
        total = load(self._partial, self._slot(thread, index(0)))
        here = {**self._place, view.k.var: self._first + thread}
        stmts: list[tirx.Stmt] = []
        for result in view.results:
            value = substitute(result.value, {**here, view.total: total})
            indices = [substitute(i, here) for i in result.indices]
            stmts.append(tirx.BufferStore(result.buffer, value, indices))
        return when(thread < columns, sequence(stmts))
