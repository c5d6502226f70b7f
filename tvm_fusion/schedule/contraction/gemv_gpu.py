"""Skinny GEMM on CUDA cores: loads of B at memory bandwidth, slice-K reduced in shared memory.

    block (batch, block_n columns) in grid, all K:
      if norm prologue:  shared A[m, k] = normalized rows                      (norm_rows_gpu)
      thread (k_slice, n_tile) in threads = slices_k * threads_n:
        acc[m, parts, tile_n] = 0                                              registers
        for k_tile in k_slice :: slices_k, stages at a time:                   (gemv_mainloop)
          load stages tiles of B and of A as vectors                           global -> registers
          acc += A * B                                                         float32 FMA
        or, for one row:  cp.async pipeline of B through shared memory         (gemv_cp_async)
      for rows_per_pass rows of m:
        partial[k_slice, row, part, n] = acc                                   shared, barrier
        if slices_k >= TWO_STEPS:  partial2 = partial folded to ~sqrt(slices_k) slices, barrier
        thread per element of C:  sum over slices, scale, epilogue, store      global

Slices are added up in a fixed order, so that results are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tvm import ir, sym, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
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
from ...program.program import Program
from .fuse_epilogue import store_results
from .gemv_config import GemvConfig
from .gemv_cp_async import CpAsyncPipeline
from .gemv_mainloop import GemvMainloop
from .norm_rows_gpu import NormalizedRows


def gemv_gpu(program: Program, cut: GemvConfig) -> tirx.PrimFunc:
    """Make the kernel of a skinny GEMM on CUDA cores."""
    m, dtype = cut.m, cut.contraction.dtype
    # Lowering drops the thread's number, the first index.
    acc = scratch([index(cut.threads), index(cut.accumulators)], dtype, "acc", scope="local")
    slices, width = (index(size) for size in cut.partials_shape)
    shared = scratch([slices, width], dtype, "partials", scope="shared")
    folded = scratch([index(cut.folded_slices), width], dtype, "partials_folded", "shared")
    in_two_steps = cut.folded_slices < cut.slices_k

    rows_a = NormalizedRows.of(cut, shared)
    main = cut if rows_a is None else replace(cut, a=rows_a.value)
    pipeline = CpAsyncPipeline.of(main)

    def body(number: ir.Expr) -> tirx.Stmt:
        def mainloop(thread: ir.Expr) -> GemvMainloop:
            _, n_tile = cut.thread_coords(thread)
            return GemvMainloop(main, number, n_tile, acc, lambda i: [thread, i])

        stmts = []
        if pipeline is not None:
            stmts.append(cut.phase(lambda t: pipeline.prologue(number, t, mainloop(t))))
        if rows_a is not None:
            stmts += [cut.phase(partial(rows_a.stage, number)), cut.phase(rows_a.fold)]
        stmts.append(cut.phase(lambda t: _accumulate(main, number, acc, t, mainloop(t), pipeline)))
        for first in range(0, m, cut.rows_per_pass):
            rows = range(first, min(first + cut.rows_per_pass, m))
            stmts.append(cut.phase(partial(_share_partials, cut, rows, acc, shared)))
            if in_two_steps:
                stmts.append(cut.phase(partial(_fold, cut, rows, shared, folded)))
            partials = folded if in_two_steps else shared
            stmts.append(cut.phase(partial(reduce_slices, cut, number, rows, partials, rows_a)))
        buffers = [
            acc,
            shared,
            *([folded] if in_two_steps else []),
            *(rows_a.buffers if rows_a else []),
            *([pipeline.ring.buffer] if pipeline else []),
        ]
        return block("skinny_gemm", sequence(stmts), buffers)

    return kernel(program, threads("blockIdx.x", cut.blocks, body))


def _accumulate(
    cut: GemvConfig,
    number: ir.Expr,
    acc: ir.Var,
    thread: ir.Expr,
    mainloop: GemvMainloop,
    pipeline: CpAsyncPipeline | None,
) -> tirx.Stmt:
    """Clear a thread's accumulators and run its main loop over its slice of K."""

    def clear(i: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(acc, cut.contraction.initial, [thread, i])

    start = unrolled("i", cut.accumulators, clear)
    if pipeline is not None:
        steps = pipeline.mainloop(number, thread, mainloop)
        return sequence([start, block("mainloop", steps, mainloop.registers)])
    k_slice, n_tile = cut.thread_coords(thread)
    body = block("mainloop", _unrolled_loads(cut, k_slice, mainloop), mainloop.registers)
    return sequence([start, cut.guard_n(number, n_tile, body)])


def _unrolled_loads(cut: GemvConfig, k_slice: ir.Expr, mainloop: GemvMainloop) -> tirx.Stmt:
    """Load ``stages`` tiles at once, then use them; the rest of K one by one."""

    def steps(first: ir.Expr, count: int) -> tirx.Stmt:
        def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            def one(slot: ir.Expr) -> tirx.Stmt:
                return do(slot, (first + slot) * cut.slices_k + k_slice)

            return unrolled("slot", count, one)

        return sequence([each(mainloop.load), each(mainloop.multiply)])

    step = cut.stages * cut.slices_k
    whole = sym.Analyzer().simplify(tirx.floordiv(cut.k_tiles, index(step)))
    left = sym.Analyzer().simplify(cut.k_tiles - whole * step)
    stmts = [loop("step", whole, lambda i: steps(i * cut.stages, cut.stages))]
    if constant(left) != 0:

        def rest(i: ir.Expr) -> tirx.Stmt:
            tile = whole * cut.stages + i
            return when(tile * cut.slices_k + k_slice < cut.k_tiles, steps(tile, 1))

        stmts.append(loop("rest", ceildiv(left, cut.slices_k), rest))
    return sequence(stmts)


def _share_partials(
    cut: GemvConfig, rows: range, acc: ir.Var, shared: ir.Var, thread: ir.Expr
) -> tirx.Stmt:
    """Write a thread's accumulators of some rows to shared memory."""
    k_slice, n_tile = cut.thread_coords(thread)
    n = cut.tile_n

    def one(number: ir.Expr) -> tirx.Stmt:
        def element(lane: ir.Expr) -> tirx.Stmt:
            value = load(acc, [thread, (rows.start * cut.parts + number) * n + lane])
            place = [k_slice, number * cut.block_n + n_tile * n + lane]
            return tirx.BufferStore(shared, value, place)

        return unrolled("lane", n, element)

    return unrolled("i", len(rows) * cut.parts, one)


def _fold(
    cut: GemvConfig, rows: range, shared: ir.Var, folded: ir.Var, thread: ir.Expr
) -> tirx.Stmt:
    """Reduce partial sums of all slices to those of fewer."""
    left = int(folded.ty.shape[0])
    size = cut.partials(len(rows))
    total = local("total", [1], cut.contraction.dtype)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        first, place = coordinates(flat, [left, size])

        def add(n: ir.Expr) -> tirx.Stmt:
            k_slice = first + n * left
            value = load(total, [index(0)]) + load(shared, [k_slice, place])
            return when(k_slice < cut.slices_k, tirx.BufferStore(total, value, [0]))

        stmts = [
            tirx.BufferStore(total, tirx.const(0, cut.contraction.dtype), [0]),
            unrolled("k_slice", -(-cut.slices_k // left), add),
            tirx.BufferStore(folded, load(total, [index(0)]), [first, place]),
        ]
        return when(flat < left * size, block("fold", sequence(stmts), [total]))

    return loop("step", ceildiv(left * size, cut.threads), element)


def reduce_slices(
    cut: GemvConfig,
    number: ir.Expr,
    rows: range,
    partials: ir.Var,
    rows_a: NormalizedRows | None,
    thread: ir.Expr,
) -> tirx.Stmt:
    """Add up the slices of each element of some rows and store its epilogue, coalesced."""
    dtype, parts, m = cut.contraction.dtype, range(cut.parts), len(rows)
    totals, row_total = local("totals", [cut.parts], dtype), local("row_total", [1], dtype)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * cut.threads + thread
        row, column = coordinates(flat, [m, cut.block_n])
        n_tile, lane = coordinates(column, [cut.threads_n, cut.tile_n])

        def add(s: ir.Expr) -> tirx.Stmt:
            def one(part: int) -> tirx.Stmt:
                found = load(partials, [s, (row * cut.parts + part) * cut.block_n + column])
                return tirx.BufferStore(totals, load(totals, [index(part)]) + found, [part])

            return sequence([one(part) for part in parts])

        stmts = [tirx.BufferStore(totals, tirx.const(0, dtype), [part]) for part in parts]
        stmts.append(loop("k_slice", cut.folded_slices, add))
        place = cut.output_index(number, rows.start + row, n_tile, lane)
        found = [load(totals, [index(part)]) for part in parts]
        if rows_a is not None:
            reduced, scale = rows_a.scale(rows.start + row, place, row_total)
            stmts.append(reduced)
            found = [total * scale for total in found]
        stmts.append(store_results(cut.contraction, place, *found))
        buffers = [totals] if rows_a is None else [totals, row_total]
        stmt = when(flat < m * cut.block_n, block("epilogue", sequence(stmts), buffers))
        return cut.guard_n(number, n_tile, stmt)

    return loop("result", ceildiv(m * cut.block_n, cut.threads), element)
