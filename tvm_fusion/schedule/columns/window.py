"""Column reductions of few terms on a GPU, such as pooling: a thread reduces a vector of columns.

  grid    batch * columns / lanes threads, vectors innermost
  thread  for every term: vector[term] = A[batch, term, lanes of k], or what stands beyond an edge
          acc[lanes] = combine of all terms
          C[batch, lanes of k] = results                              in vectors, where they are

All loads of a window are in flight together, 16 bytes each: 3x3 of 8x112x112x64 with a thread for
each element, 2 bytes a load, took 11.7 us on an H100, in vectors 4.7; of one image 6.2 and 1.8.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ...core.tir.expressions import choice, load, loads, variables
from ...core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    local,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    vectorized,
    when,
)
from ...program.program import Program
from .reduction import ColumnReduction, is_vector

THREADS = 128  # of a block


@dataclass(frozen=True)
class WindowTerm:
    """A term of a reduction over vectors that are loaded."""

    value: ir.Expr  # the term, over variables
    # Of each variable a load, or one under a condition that is the same for all columns of a
    # vector.
    reads: list[tuple[ir.Var, ir.Expr]]


def window_term(view: ColumnReduction) -> WindowTerm | None:
    """Split a term into vectors and what is computed of them; ``None`` where there are none."""
    found: list[tuple[ir.Var, ir.Expr]] = []

    def hold(value: ir.Expr, read: ir.Expr) -> ir.Expr:
        if not isinstance(read, ir.TensorLoad) or not is_vector(read, view.k, view.lanes):
            return value
        found.append((tirx.Var(f"{read.source.name}_vector", str(read.ty.dtype)), value))
        return found[-1][0]

    def chosen(call: ir.Expr) -> ir.Expr:
        parts = choice(call)
        if parts is None or view.k.var in variables(parts[0]) | variables(parts[2]):
            return call
        return call if loads(parts[0]) or loads(parts[2]) else hold(call, parts[1])

    term = tvm_ffi.structural_map(view.term, (ir.Call, chosen), order="post")
    term = tvm_ffi.structural_map(term, (ir.TensorLoad, lambda x: hold(x, x)), order="post")
    left = [x for x in loads(term) if view.k.var in variables(x)]
    return None if left or not found else WindowTerm(term, found)


def window_reduction_gpu(
    program: Program, view: ColumnReduction, term: WindowTerm
) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    view
        The reduction, of few terms.
    """
    extents = [*(a.extent for a in view.batch), index((constant(view.k.extent) or 1) // view.lanes)]
    count = product(extents)

    def of_block(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            task = number * THREADS + thread
            *batch, vector = coordinates(task, extents)
            place = dict(zip((a.var for a in view.batch), batch, strict=True))
            place |= {a.var: index(0) for a in view.stage.axes if constant(a.extent) == 1}
            return when(task < count, _window(view, term, place, vector * view.lanes))

        return threads("threadIdx.x", THREADS, of_thread)

    return kernel(program, threads("blockIdx.x", ceildiv(count, THREADS), of_block))


def _window(
    view: ColumnReduction, term: WindowTerm, place: Mapping[ir.Var, ir.Expr], first: ir.Expr
) -> tirx.Stmt:
    """Reduce a vector of columns, and store what that gives."""
    lanes, axes = view.lanes, view.stage.reduce
    terms = list(itertools.product(*(range(constant(a.extent) or 1) for a in axes)))
    held = [local(v.name, [len(terms) * lanes], str(v.ty.dtype)) for v, _ in term.reads]
    acc = local("acc", [lanes], view.dtype)
    (neutral,) = view.stage.init or ()

    def at(number: int, lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        where = zip((a.var for a in axes), map(index, terms[number]), strict=True)
        return {**place, **dict(where), view.k.var: first + lane}

    stmts: list[tirx.Stmt] = []
    for number in range(len(terms)):
        for (_, value), register in zip(term.reads, held, strict=True):

            def read(lane: ir.Expr, value=value, register=register, number=number) -> tirx.Stmt:
                # What the condition says does not depend on the lane.
                return tirx.BufferStore(
                    register, substitute(value, at(number, lane)), [number * lanes + lane]
                )

            stmts.append(vectorized(lanes, read))
    stmts.append(unrolled("lane", lanes, lambda n: tirx.BufferStore(acc, neutral, [n])))
    for number in range(len(terms)):

        def add(lane: ir.Expr, number: int = number) -> tirx.Stmt:
            own = {
                v: load(register, [number * lanes + lane])
                for (v, _), register in zip(term.reads, held, strict=True)
            }
            value = substitute(term.value, {**at(number, lane), **own})
            return tirx.BufferStore(acc, view.combine(load(acc, [lane]), value), [lane])

        stmts.append(unrolled("lane", lanes, add))
    stores, registers = _stores(view, place, first, acc)
    return block("window", sequence([*stmts, *stores]), [acc, *held, *registers])


def _stores(
    view: ColumnReduction, place: Mapping[ir.Var, ir.Expr], first: ir.Expr, acc: ir.Var
) -> tuple[Sequence[tirx.Stmt], list[ir.Var]]:
    """Store results in vectors, or one by one where columns do not lie side by side."""
    stmts, registers = [], []
    for result in view.results:
        out = local(f"{result.buffer.name}_vector", [view.lanes], str(result.buffer.dtype))
        registers.append(out)

        def compute(lane: ir.Expr, result=result, out=out) -> tirx.Stmt:
            here = {**place, view.k.var: first + lane, view.total: load(acc, [lane])}
            return tirx.BufferStore(out, substitute(result.value, here), [lane])

        def write(lane: ir.Expr, result=result, out=out) -> tirx.Stmt:
            indices = [substitute(i, {**place, view.k.var: first + lane}) for i in result.indices]
            return tirx.BufferStore(result.buffer, load(out, [lane]), indices)

        whole = is_vector(load(result.buffer, result.indices), view.k, view.lanes)
        stmts.append(unrolled("lane", view.lanes, compute))
        stores = vectorized(view.lanes, write) if whole else unrolled("lane", view.lanes, write)
        stmts.append(stores)
    return stmts, registers
