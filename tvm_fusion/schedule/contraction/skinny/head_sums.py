"""Sums over the heads of a skinny GEMM's columns, which its epilogue reads.

A head is in one block, or in a cluster of blocks with a part of it each:

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
    local,
    loop,
    sequence,
    unrolled,
    when,
)
from ...gpu.memory.shared_tiles import cluster_barrier, load_cluster
from ..problem.epilogue.fuse import store_results
from .gemv_config import GemvConfig

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
