"""Main loop of a skinny GEMM on CUDA cores, for all threads of a block.

norm prologue:   A[m, k] = normalized rows in shared memory, barrier             (norm_rows_gpu)
thread (k_slice, n_tile):
acc[m, parts, tile_n] = 0                                                      registers
one row:       cp.async pipeline of B through shared memory                    (gemv_cp_async)
otherwise:     for k_tile in k_slice :: slices_k, `stages` tiles at a time:
load stages tiles of B and of A as vectors        global -> registers
acc += A * B                                                  (gemv_tile)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tvm import ir, sym, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import block, ceildiv, constant, index, loop, sequence, unrolled, when
from .gemv_config import GemvConfig
from .gemv_cp_async import CpAsyncPipeline
from .gemv_tile import GemvTile
from .norm_rows_gpu import NormalizedRows


class GemvMainloop:
    """The accumulators of a block's threads.

    Parameters
    ----------
    config : GemvConfig
        The product.
    number : Expr
        The block.
    partials : Var
        Shared memory of partial sums, where normalized rows lie before.

    Attributes
    ----------
    rows : NormalizedRows or None
        Of a norm prologue.
    buffers : list of Var
        Accumulators, and what the norm prologue and the pipeline need.
    """

    def __init__(self, config: GemvConfig, number: ir.Expr, partials: ir.Var) -> None:
        self._number = number
        # Lowering drops the thread's number, the first index.
        extents = [index(config.threads), index(config.accumulators)]
        self._acc = scratch(extents, config.contraction.dtype, "acc", scope="local")
        self.rows = NormalizedRows.of(config, partials)
        self._config = config if self.rows is None else replace(config, a=self.rows.value)
        self._pipeline = CpAsyncPipeline.of(self._config)
        self.buffers = [self._acc, *(self.rows.buffers if self.rows else [])]
        if self._pipeline is not None:
            self.buffers.append(self._pipeline.ring.buffer)

    def stmt(self) -> tirx.Stmt:
        """Write the norm prologue and the loop over K."""
        config, pipeline, stmts = self._config, self._pipeline, []
        if pipeline is not None:
            stmts.append(config.phase(lambda t: pipeline.prologue(self._number, t, self._tile(t))))
        if self.rows is not None:
            stmts += [
                config.phase(partial(self.rows.stage, self._number)),
                config.phase(self.rows.fold),
            ]
        return sequence([*stmts, config.phase(self._accumulate)])

    def share_partials(self, rows: range, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
        """Write a thread's accumulators of some rows to shared memory."""
        config = self._config
        k_slice, n_tile = config.thread_coords(thread)
        n = config.tile_n

        def one(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = load(self._acc, [thread, (rows.start * config.parts + number) * n + lane])
                place = [k_slice, number * config.block_n + n_tile * n + lane]
                return tirx.BufferStore(shared, value, place)

            return unrolled("lane", n, element)

        return unrolled("i", len(rows) * config.parts, one)

    def _tile(self, thread: ir.Expr) -> GemvTile:
        _, n_tile = self._config.thread_coords(thread)
        return GemvTile(self._config, self._number, n_tile, self._acc, lambda i: [thread, i])

    def _accumulate(self, thread: ir.Expr) -> tirx.Stmt:
        """Clear a thread's accumulators and run its loop over its slice of K."""
        config, tile = self._config, self._tile(thread)

        def clear(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._acc, config.contraction.initial, [thread, i])

        start = unrolled("i", config.accumulators, clear)
        if self._pipeline is not None:
            steps = self._pipeline.mainloop(self._number, thread, tile)
            return sequence([start, block("mainloop", steps, tile.registers)])
        k_slice, n_tile = config.thread_coords(thread)
        body = block("mainloop", self._unrolled_loads(k_slice, tile), tile.registers)
        return sequence([start, config.guard_n(self._number, n_tile, body)])

    def _unrolled_loads(self, k_slice: ir.Expr, tile: GemvTile) -> tirx.Stmt:
        """Load ``stages`` tiles at once, then use them; the rest of K one by one."""
        config = self._config

        def steps(first: ir.Expr, count: int) -> tirx.Stmt:
            def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
                def one(slot: ir.Expr) -> tirx.Stmt:
                    return do(slot, (first + slot) * config.slices_k + k_slice)

                return unrolled("slot", count, one)

            return sequence([each(tile.load), each(tile.multiply)])

        step = config.stages * config.slices_k
        whole = sym.Analyzer().simplify(tirx.floordiv(config.k_tiles, index(step)))
        left = sym.Analyzer().simplify(config.k_tiles - whole * step)
        stmts = [loop("step", whole, lambda i: steps(i * config.stages, config.stages))]
        if constant(left) != 0:

            def rest(i: ir.Expr) -> tirx.Stmt:
                number = whole * config.stages + i
                return when(number * config.slices_k + k_slice < config.k_tiles, steps(number, 1))

            stmts.append(loop("rest", ceildiv(left, config.slices_k), rest))
        return sequence(stmts)
