"""Untiled contraction on a CPU: depthwise convolutions, GEMV, and what has no columns.

    tasks in parallel: rows of results, or chunks of rows where rows are few
      copy padded operands                                                            (task_copy)
      columns contiguous:  acc[lanes] = 0; for k: acc += left * right, vectors of columns
      terms contiguous:    acc[lanes] = 0; for k by lanes: acc += ...; result = sum of lanes
      epilogue

Few elements are used twice, so what counts is that memory is read in order, and by vectors.
"""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from .....core.tir.expressions import load, loads
from .....core.tir.loops import (
    Body,
    add,
    block,
    choose,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    over,
    product,
    sequence,
    tasks,
)
from .....program.program import Program
from ....cpu.schedule import VectorRegisters, pays_threads
from ....cpu.vector_loops import by_vectors, over_vectors
from ....elementwise.cpu.kernel import ElementwiseCpuConfig, maps_cpu, outermost
from ....index.address import offset, stride
from ...problem.epilogue.fuse import store_results
from ...problem.functions.prim_func import MaterializedOperand, add_term, sum_terms, term
from ...problem.sum_of_products import SumOfProducts
from .task_copy import TaskCopy, in_task, task_copies

Operands = Sequence[MaterializedOperand]
VECTORS = 2  # vectors of accumulators


def untiled_cpu(
    program: Program,
    contraction: SumOfProducts,
    operands: Operands,
    registers: VectorRegisters,
) -> tirx.PrimFunc:
    """Make the kernel: accumulators are vectors of columns, or of the terms of one column."""
    stage = contraction.stage
    width = VECTORS * registers.lanes
    summand = term(contraction, operands)
    is_parallel = pays_threads([a.extent for a in (*stage.axes, *stage.reduce)])
    copies = untiled_copies(contraction, operands)
    if copies is not None:
        count, own = copies
        body = tasks(
            product([a.extent for a in stage.axes[:count]]),
            lambda task: _copying_task(contraction, own, count, task, width),
            is_parallel,
        )
        return kernel(program, body)
    if _by_terms(contraction, summand) or not stage.axes:
        extents = [a.extent for a in stage.axes]

        def dot(task: ir.Expr) -> tirx.Stmt:
            return _dot(contraction, operands, coordinates(task, extents), width)

        chunks: list[tuple[ir.Expr, Body]] = [(product(extents), dot)]
    else:
        chunks = _rows(contraction, operands, width)
    fill = [maps_cpu(ElementwiseCpuConfig.of([a.stage], registers)) for a in operands]
    count = add(count for count, _ in chunks)
    body = tasks(count, lambda task: choose(task, chunks), is_parallel)
    return kernel(program, body, prologue=fill, buffers=[a.buffer for a in operands])


def untiled_copies(
    contraction: SumOfProducts, operands: Operands
) -> tuple[int, list[TaskCopy]] | None:
    """Tell how many outer axes make tasks that copy their part of the materialized operands."""
    if not contraction.stage.axes or _by_terms(contraction, term(contraction, operands)):
        return None
    return task_copies(contraction, operands)


def _by_terms(contraction: SumOfProducts, summand: ir.Expr) -> bool:
    """Whether terms are contiguous in memory, and columns are not."""
    stage = contraction.stage
    along = [a.var for a in (*stage.axes, *stage.reduce)]

    def is_contiguous(axis: ir.Var) -> bool:
        steps = [stride(offset(x.source, x.indices), axis, along) for x in loads(summand)]
        return any(step is not None and constant(step) == 1 for step in steps)

    return bool(stage.reduce) and (
        not stage.axes
        or (not is_contiguous(stage.axes[-1].var) and is_contiguous(stage.reduce[-1].var))
    )


def _copying_task(
    contraction: SumOfProducts,
    copies: Sequence[TaskCopy],
    count: int,
    task: ir.Expr,
    width: int,
) -> tirx.Stmt:
    """Copy what a task reads of padded operands, then compute its rows."""
    outer, inner = contraction.stage.axes[:count], contraction.stage.axes[count:-1]
    place = coordinates(task, [a.extent for a in outer])
    where = dict(zip((a.var for a in outer), place, strict=True))
    operands = [x.operand for x in copies]
    rows = over(inner, lambda rest: _columns(contraction, operands, [*place, *rest], width))
    filled = [x.fill(where, width) for x in copies]
    return in_task(copies, sequence([*filled, rows]))


def _rows(contraction: SumOfProducts, operands: Operands, width: int) -> list[tuple[ir.Expr, Body]]:
    """List tasks: whole rows of results where they are many, chunks of rows otherwise."""
    *outer, column = contraction.stage.axes
    extents = [a.extent for a in outer]
    rows = product(extents)
    many = outermost(extents)
    if many is not None:
        shared, inner = extents[:many], outer[many:]

        def task_rows(task: ir.Expr) -> tirx.Stmt:
            place = coordinates(task, shared)
            return over(inner, lambda rest: _columns(contraction, operands, [*place, *rest], width))

        return [(product(shared), task_rows)]
    width *= 2  # a row of the only matrix at a time: the longer the chunks, the fewer streams
    size = constant(column.extent)
    whole = size // width if size is not None else tirx.floordiv(column.extent, index(width))
    rest = size % width if size is not None else tirx.floormod(column.extent, index(width))

    def chunk(task: ir.Expr) -> tirx.Stmt:
        number = tirx.max(index(whole), index(1))  # nothing runs where there are none
        first = tirx.floormod(task, number) * width
        place = coordinates(tirx.floordiv(task, number), extents)
        return _chunk(contraction, operands, place, first, width)

    def last(task: ir.Expr) -> tirx.Stmt:
        first, place = index(whole) * width, coordinates(task, extents)
        if size is not None:
            return by_vectors(
                size % width,
                width,
                lambda n, lanes: _chunk(contraction, operands, place, first + n, lanes),
            )
        return loop("rest", rest, lambda n: _chunk(contraction, operands, place, first + n, 1))

    chunks: list[tuple[ir.Expr, Body]] = []
    if size is None or size >= width:
        chunks.append((product([rows, whole]), chunk))
    if size is None or size % width:
        chunks.append((rows, last))
    return chunks


def _columns(
    contraction: SumOfProducts,
    operands: Operands,
    place: list[ir.Expr],
    width: int,
) -> tirx.Stmt:
    """Sum a row of results, some vectors of columns at a time, then the rest one by one."""
    stage = contraction.stage
    extent = stage.axes[-1].extent
    size = constant(extent)

    def chunk(first: ir.Expr, lanes: int) -> tirx.Stmt:
        return _chunk(contraction, operands, place, first, lanes)

    if size is not None:
        return by_vectors(size, 2 * width, chunk, "chunk")
    return over_vectors(extent, width, chunk, "chunk")


def _chunk(
    contraction: SumOfProducts,
    operands: Operands,
    place: Sequence[ir.Expr],
    first: ir.Expr,
    lanes: int,
) -> tirx.Stmt:
    """Sum adjacent columns in registers."""
    acc = local("acc", [lanes], contraction.dtype)

    def each(make: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return loop("lane", lanes, make, tirx.ForKind.VECTORIZED)

    def element(lane: ir.Expr) -> tuple[ir.Expr, list[ir.Expr]]:
        return lane, [*place, first + lane]

    stmts = [
        *sum_terms(contraction, operands, acc, each, element),
        each(lambda lane: store_results(contraction, element(lane)[1], load(acc, [lane]))),
    ]
    return block("columns", sequence(stmts), [acc])


def _dot(
    contraction: SumOfProducts,
    operands: Operands,
    place: list[ir.Expr],
    width: int,
) -> tirx.Stmt:
    """Sum one result in a vector of partial sums."""
    stage = contraction.stage
    *outer, last = stage.reduce
    acc = local("acc", [width], contraction.dtype)
    size = constant(last.extent)
    whole = size // width if size is not None else tirx.floordiv(index(last.extent), index(width))
    rest = size % width if size is not None else tirx.floormod(index(last.extent), index(width))

    def each(make: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return loop("lane", width, make, tirx.ForKind.VECTORIZED)

    def inner(reduced: list[ir.Expr]) -> tirx.Stmt:
        parts = []
        if size is None or size >= width:
            parts.append(
                loop(
                    "chunk",
                    whole,
                    lambda n: each(
                        lambda lane: add_term(
                            contraction, operands, acc, lane, place, [*reduced, n * width + lane]
                        )
                    ),
                )
            )
        if size is None or size % width:
            parts.append(
                loop(
                    "rest",
                    rest,
                    lambda n: add_term(
                        contraction,
                        operands,
                        acc,
                        index(0),
                        place,
                        [*reduced, index(whole) * width + n],
                    ),
                )
            )
        return sequence(parts)

    total = local("result", [1], contraction.dtype)
    zero = index(0)
    stmts = [
        each(lambda lane: tirx.BufferStore(acc, contraction.initial, [lane])),
        over(outer, inner),
        tirx.BufferStore(total, contraction.initial, [zero]),
        loop(
            "lane",
            width,
            lambda lane: tirx.BufferStore(total, load(total, [zero]) + load(acc, [lane]), [zero]),
        ),
        store_results(contraction, place, load(total, [zero])),
    ]
    return block("element", sequence(stmts), [acc, total])
