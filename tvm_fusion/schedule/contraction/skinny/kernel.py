"""Skinny GEMM on a GPU: few rows of A, slice-K reduced in shared memory.

    block (batch, block_n columns) in grid, all K:
      main loop: acc of every thread, of its slice of K                  registers
        on CUDA cores     (gemv_mainloop)        slice: a thread
        on tensor cores   (mma_mainloop)  slice: a warp
        slices in lanes: added up by warp shuffles
      for rows_per_pass rows of m:
        partials[k_slice, row, part, n] = acc                            shared, barrier
        if there are TWO_STEPS partial sums of a column:
          partials_folded = their square root of them                    shared, barrier
        thread per element of C:  sum over slices, norm scale, epilogue, store     global
                                  (sums over heads before the epilogue: head_sums)

Slices are added up in a fixed order, so that results are reproducible.
"""

from functools import partial

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    ceildiv,
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
from ....program.program import Program
from ...gpu.launch import min_blocks_per_sm
from ..problem.epilogue.fuse import store_results
from ..tile.results.concat_parts import ConcatParts
from .gemv_config import GemvConfig
from .gemv_mainloop import GemvMainloop
from .head_sums import HeadSums
from .mma_config import SkinnyMmaConfig
from .mma_mainloop import SkinnyMmaMainloop
from .norm_rows import NormalizedRows


def skinny_gemm_gpu(
    program: Program,
    config: GemvConfig,
    concat_parts: ConcatParts | None = None,
    loads_early: bool = False,
) -> tirx.PrimFunc:
    """Make the kernel of a skinny GEMM, which may store other parts of a concatenation.

    Parameters
    ----------
    loads_early
        Whether B is loaded before all kernels before have ended.
    """
    slices, width = (index(size) for size in config.partials_shape)
    dtype, is_folded = config.contraction.dtype, config.folded_slices < config.shared_slices
    shared = scratch([slices, width], dtype, "partials", scope="shared")
    folded = scratch([index(config.folded_slices), width], dtype, "partials_folded", "shared")

    heads = HeadSums.of(config)

    def body(number: ir.Expr) -> tirx.Stmt:
        mainloop: GemvMainloop | SkinnyMmaMainloop
        if isinstance(config, SkinnyMmaConfig):
            mainloop = SkinnyMmaMainloop(config, number, loads_early)
        else:
            mainloop = GemvMainloop(config, number, shared, loads_early)
        stmts = []
        if concat_parts is not None:
            workers = config.blocks * config.threads
            stmts.append(
                config.phase(lambda i: concat_parts.stmt(number * config.threads + i, workers))
            )
        stmts.append(mainloop.stmt())
        for first in range(0, config.m, config.rows_per_pass):
            rows = range(first, min(first + config.rows_per_pass, config.m))
            stmts.append(config.phase(partial(mainloop.share_partials, rows, shared)))
            if is_folded:
                stmts.append(
                    config.phase(partial(_reduce_to_fewer_slices, config, rows, shared, folded))
                )
            partials = folded if is_folded else shared
            reduce = partial(_reduce_slices, config, number, rows, partials, mainloop.rows, heads)
            stmts.append(config.phase(reduce))
            if heads is not None:
                stmts += heads.stmts(number, rows)
        buffers = [*mainloop.buffers, shared, *([folded] if is_folded else [])]
        buffers += [] if heads is None else heads.buffers
        made = block("skinny_gemm", sequence(stmts), buffers)
        if config.cluster > 1:  # a block's rank is its number modulo the cluster's size
            block_stmt = made
            made = threads("clusterCtaIdx.x", config.cluster, lambda _: block_stmt)
        return (
            min_blocks_per_sm(made, config.min_blocks_per_sm) if config.min_blocks_per_sm else made
        )

    return kernel(program, threads("blockIdx.x", config.blocks, body))


def _reduce_to_fewer_slices(
    config: GemvConfig, rows: range, shared: ir.Var, folded: ir.Var, thread: ir.Expr
) -> tirx.Stmt:
    """Reduce partial sums of all slices to those of fewer."""
    left = int(folded.ty.shape[0])
    size = config.partials(len(rows))
    total = local("total", [1], config.contraction.dtype)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * config.threads + thread
        first, place = coordinates(flat, [left, size])

        def add(n: ir.Expr) -> tirx.Stmt:
            k_slice = first + n * left
            value = load(total, [index(0)]) + load(shared, [k_slice, place])
            return when(k_slice < config.shared_slices, tirx.BufferStore(total, value, [0]))

        stmts = [
            tirx.BufferStore(total, tirx.const(0, config.contraction.dtype), [0]),
            unrolled("k_slice", -(-config.shared_slices // left), add),
            tirx.BufferStore(folded, load(total, [index(0)]), [first, place]),
        ]
        return when(flat < left * size, block("fold", sequence(stmts), [total]))

    return loop("step", ceildiv(left * size, config.threads), element)


def _reduce_slices(
    config: GemvConfig,
    number: ir.Expr,
    rows: range,
    partials: ir.Var,
    rows_a: NormalizedRows | None,
    heads: HeadSums | None,
    thread: ir.Expr,
) -> tirx.Stmt:
    """Add up the slices of each element of some rows and store its epilogue, coalesced.

    With sums over heads, elements are kept for the epilogue.
    """
    dtype, parts, m = config.contraction.dtype, range(config.parts), len(rows)
    totals, row_total = local("totals", [config.parts], dtype), local("row_total", [1], dtype)

    def element(step: ir.Expr) -> tirx.Stmt:
        flat = step * config.threads + thread
        row, column = coordinates(flat, [m, config.block_n])
        n_tile, lane = coordinates(column, [config.threads_n, config.tile_n])

        def add(s: ir.Expr) -> tirx.Stmt:
            def one(part: int) -> tirx.Stmt:
                found = load(partials, [s, (row * config.parts + part) * config.block_n + column])
                return tirx.BufferStore(totals, load(totals, [index(part)]) + found, [part])

            return sequence([one(part) for part in parts])

        stmts = [tirx.BufferStore(totals, tirx.const(0, dtype), [part]) for part in parts]
        stmts.append(loop("k_slice", config.folded_slices, add))
        place = config.output_index(number, rows.start + row, n_tile, lane)
        found = [load(totals, [index(part)]) for part in parts]
        if rows_a is not None:
            reduced, scale = rows_a.scale(rows.start + row, place, row_total)
            stmts.append(reduced)
            found = [total * scale for total in found]
        if heads is None:
            stmts.append(store_results(config.contraction, place, *found))
        else:
            stmts.append(heads.keep(row, column, found))
        buffers = [totals] if rows_a is None else [totals, row_total]
        stmt = when(flat < m * config.block_n, block("epilogue", sequence(stmts), buffers))
        return config.guard_n(number, n_tile, stmt)

    return loop("result", ceildiv(m * config.block_n, config.threads), element)
