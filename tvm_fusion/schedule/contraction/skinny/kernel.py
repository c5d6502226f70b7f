"""Skinny GEMM on a GPU: few rows of A, slice-K reduced in shared memory.

    block (batch, block_n columns) in grid, all K:
      main loop: acc of every thread, of its slice of K                  registers
        on CUDA cores     (gemv.mainloop)        slice: a thread
        on tensor cores   (mma.mainloop)         slice: a warp
        slices in lanes: added up by warp shuffles
      for rows_per_pass rows of m:
        partials[k_slice, row, part, n] = acc                            shared, barrier
        if there are TWO_STEPS partial sums of a column:
          partials_folded = their square root of them                    shared, barrier
        thread per element of C:  sum over slices, norm scale, epilogue, store     global
                                  (sums over heads before the epilogue)

Slices are added up in a fixed order, so that results are reproducible. A head, over
whose columns the epilogue reads sums, is in one block, or in a cluster with a part of it each:

    thread per element of C:   total -> kept; term(total) -> terms           shared, barrier
    thread per row and head:   sums[row, head] = sum of the block's terms    shared, cluster barrier
    thread per element of C:   epilogue(total, sum of all blocks' sums)      global
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

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
from ...gpu.memory.shared_tiles import cluster_barrier, load_cluster
from ..problem.epilogue.fuse import store_results
from ..tile.results.concat_parts import ConcatParts
from .gemv.config import GemvConfig
from .gemv.mainloop import GemvMainloop
from .gemv.norm_rows import NormalizedRows
from .mma.config import SkinnyMmaConfig
from .mma.mainloop import SkinnyMmaMainloop

_FLOAT_BYTES = 4


@dataclass(frozen=True, eq=False)
class HeadSums:
    """What a block keeps in shared memory between its sums and its epilogue."""

    config: GemvConfig  # with heads
    kept: ir.Var  # ``[rows, parts, block_n]``: elements of the product
    # ``[rows, block_n]`` and ``[rows, heads]``: summands, added over parts, and their sums.
    terms: ir.Var
    sums: ir.Var

    @classmethod
    def of(cls, config: GemvConfig) -> HeadSums | None:
        """Declare the buffers; ``None`` without sums over heads."""
        if not config.head_n:
            return None
        rows = min(config.rows_per_pass, config.m)

        def shared(name: str, *shape: int) -> ir.Var:
            extents = [index(n) for n in shape]
            return scratch(extents, config.contraction.dtype, name, scope="shared")

        return cls(
            config,
            shared("kept", rows, config.parts, config.block_n),
            shared("terms", rows, config.block_n),
            shared("head_sums", rows, config.heads),
        )

    @property
    def buffers(self) -> list[ir.Var]:
        """List the buffers of a block."""
        return [self.kept, self.terms, self.sums]

    def keep(self, row: ir.Expr, column: ir.Expr, found: Sequence[ir.Expr]) -> tirx.Stmt:
        """Keep an element of the product, of each part, and its summand."""
        head_sum = self.config.contraction.head_sum
        assert head_sum is not None
        stmts = [
            tirx.BufferStore(self.kept, value, [row, index(part), column])
            for part, value in enumerate(found)
        ]
        terms = reduce(add, map(head_sum.term_at, found))
        return sequence([*stmts, tirx.BufferStore(self.terms, terms, [row, column])])

    def stmts(self, number: ir.Expr, rows: range) -> list[tirx.Stmt]:
        """Add up the summands of each head, and store the results of some rows."""
        config = self.config
        add_up = config.phase(partial(self._add_up, len(rows)))
        store = config.phase(partial(self._store, number, rows))
        if config.cluster == 1:
            return [add_up, store]
        # Others may read this block's shared memory until they say so.
        return [add_up, cluster_barrier(), store, cluster_barrier()]

    def _add_up(self, rows: int, thread: ir.Expr) -> tirx.Stmt:
        config, width = self.config, min(self.config.head_n, self.config.block_n)
        total = local("head_sum", [1], config.contraction.dtype)

        def one(step: ir.Expr) -> tirx.Stmt:
            flat = step * config.threads + thread
            row, head = coordinates(flat, [rows, config.heads])

            def term(n: ir.Expr) -> tirx.Stmt:
                value = load(total, [index(0)]) + load(self.terms, [row, head * width + n])
                return tirx.BufferStore(total, value, [0])

            stmts = [
                tirx.BufferStore(total, tirx.const(0, config.contraction.dtype), [0]),
                unrolled("n", width, term),
                tirx.BufferStore(self.sums, load(total, [index(0)]), [row, head]),
            ]
            return when(flat < rows * config.heads, block("head", sequence(stmts), [total]))

        return loop("step", ceildiv(rows * config.heads, config.threads), one)

    def _store(self, number: ir.Expr, rows: range, thread: ir.Expr) -> tirx.Stmt:
        config, m = self.config, len(rows)
        dtype = config.contraction.dtype
        total, parts = local("head_total", [1], dtype), local("of_block", [config.cluster], dtype)

        def element(step: ir.Expr) -> tirx.Stmt:
            flat = step * config.threads + thread
            row, column = coordinates(flat, [m, config.block_n])
            n_tile, lane = coordinates(column, [config.threads_n, config.tile_n])
            head = tirx.floordiv(column, index(config.head_n))
            own = load(self.sums, [row, head])

            def read(rank: ir.Expr) -> tirx.Stmt:
                return load_cluster(load(parts, [rank]), own, _FLOAT_BYTES, rank)

            if config.cluster == 1:
                gathered = [tirx.BufferStore(total, own, [0])]
            else:
                ranks = [load(parts, [index(rank)]) for rank in range(config.cluster)]
                gathered = [
                    unrolled("rank", config.cluster, read),
                    tirx.BufferStore(total, reduce(add, ranks), [0]),
                ]
            place = config.output_index(number, rows.start + row, n_tile, lane)
            kept = [load(self.kept, [row, index(part), column]) for part in range(config.parts)]
            head_total = load(total, [index(0)])
            stored = store_results(config.contraction, place, *kept, head_total=head_total)
            stmts = sequence([*gathered, stored])
            return when(flat < m * config.block_n, block("epilogue", stmts, [total, parts]))

        return loop("result", ceildiv(m * config.block_n, config.threads), element)


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
