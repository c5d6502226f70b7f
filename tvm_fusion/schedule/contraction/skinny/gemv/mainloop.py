"""Main loop of a skinny GEMM on CUDA cores, for all threads of a block.

one row:         first stages of B -> shared memory; wait for the kernel before if B is constant
along K:         first stages of B -> registers, and wait, if B is constant
norm prologue:   A[m, k] = normalized rows in shared memory, barrier                 (norm_rows)
thread (k_slice, n_tile):
  acc[m, parts, tile_n] = 0                                                      registers
  one row:       cp.async pipeline of B through shared memory                    (below)
  otherwise:     for k_tile in k_slice :: slices_k, `stages` tiles at a time:
                   load stages tiles of B and of A as vectors        global -> registers
                   acc += A * B                                                  (tile)
  slices in lanes:  acc = sum of acc over the lanes of a warp        warp shuffles
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tvm import ir, sym, tirx

from ....._tvm.ir.buffer import scratch
from .....core.tir.expressions import load
from .....core.tir.loops import (
    block,
    ceildiv,
    constant,
    index,
    loop,
    sequence,
    simplified,
    substitute,
    unrolled,
    when,
)
from ....gpu.launch import dependency_wait
from ....gpu.memory.cp_async import commit, wait
from ....gpu.memory.pipeline import StageRing
from ....gpu.threads.warp import LANES, warp_all_reduce
from ...dequantize.float32 import has_integers
from .config import GemvConfig
from .norm_rows import NormalizedRows
from .tile import GemvTile

_THREAD = tirx.Var("thread", "int64")  # stands for a thread in what several phases share


class GemvMainloop:
    """The accumulators of a block's threads.

    Parameters
    ----------
    partials
        Shared memory of partial sums, where normalized rows lie before.
    loads_early
        Whether B is loaded before all kernels before have ended.

    Attributes
    ----------
    rows : NormalizedRows or None
        Of a norm prologue.
    buffers : list of Var
        Accumulators, and what the norm prologue and the pipeline need.
    """

    def __init__(
        self, config: GemvConfig, number: ir.Expr, partials: ir.Var, loads_early: bool = False
    ) -> None:
        self._number, self._loads_early = number, loads_early
        # Lowering drops the thread's number, the first index.
        extents = [index(config.threads), index(config.accumulators)]
        self._acc, self._exchanged = (
            scratch(extents, config.contraction.dtype, name, scope="local")
            for name in ("acc", "exchanged")
        )
        self.rows = NormalizedRows.of(config, partials)
        self._config = config if self.rows is None else replace(config, a=self.rows.value)
        self._pipeline = CpAsyncPipeline.of(self._config)
        self.buffers = [self._acc, *(self.rows.buffers if self.rows else [])]
        if config.exchanged_lanes > 1:
            self.buffers.append(self._exchanged)
        if self._pipeline is not None:
            self.buffers.append(self._pipeline.ring.buffer)
        self._early = self._early_tile() if loads_early else None
        if self._early is not None:
            self.buffers += self._early.kept

    def stmt(self) -> tirx.Stmt:
        """Write the norm prologue and the loop over K."""
        config, pipeline, stmts = self._config, self._pipeline, []
        if pipeline is not None:
            stmts.append(config.phase(lambda t: pipeline.prologue(self._number, t, self._tile(t))))
            stmts += [dependency_wait()] if self._loads_early else []
        if self._early is not None:
            stmts += [config.phase(self._load_early), dependency_wait()]
        if self.rows is not None:
            stmts += [
                config.phase(partial(self.rows.stage, self._number)),
                config.phase(self.rows.fold),
            ]
        return sequence([*stmts, config.phase(self._accumulate), *self._exchanges()])

    def _exchanges(self) -> list[tirx.Stmt]:
        """Add up the slices of a warp's lanes, which all have the sums behind it."""
        config = self._config
        stmts, self._acc = warp_all_reduce(
            (self._acc, self._exchanged),
            config.accumulators,
            config.exchanged_lanes,
            LANES,
            config.phase,
        )
        return stmts

    def share_partials(self, rows: range, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
        """Write a thread's accumulators of some rows to shared memory."""
        config = self._config
        k_slice, n_tile = config.thread_coords(thread)
        n, lanes = config.tile_n, index(config.exchanged_lanes)

        def one(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = load(self._acc, [thread, (rows.start * config.parts + number) * n + lane])
                column = number * config.block_n + n_tile * n + lane
                place = [tirx.floordiv(k_slice, lanes), column]
                return tirx.BufferStore(shared, value, place)

            return unrolled("lane", n, element)

        stmt = unrolled("i", len(rows) * config.parts, one)
        return (
            when(tirx.floormod(k_slice, lanes) == 0, stmt) if config.exchanged_lanes > 1 else stmt
        )

    def _tile(self, thread: ir.Expr, keeps_b: ir.Expr | None = None) -> GemvTile:
        _, n_tile = self._config.thread_coords(thread)
        place = partial(_place_of, thread)
        return GemvTile(self._config, self._number, n_tile, self._acc, place, keeps_b)

    def _early_tile(self) -> GemvTile | None:
        """Make what loads a thread's first tiles in one phase and uses them in another.

        ``None`` where a pipeline does, and where the registers of a B along N are too many.
        """
        step = self._config.stages * self._config.slices_k
        is_whole = (constant(self._config.k_tiles) or 0) >= step
        if self._pipeline is not None or not self._config.tile.is_k_contiguous or not is_whole:
            return None
        if has_integers(self._config.b):
            return None
        return self._tile(_THREAD, _THREAD)

    def _load_early(self, thread: ir.Expr) -> tirx.Stmt:
        """Load a thread's first tiles of B."""
        config, tile = self._config, self._early
        assert tile is not None
        k_slice, n_tile = config.thread_coords(_THREAD)

        def one(slot: ir.Expr) -> tirx.Stmt:
            return tile.load_b(slot, slot * config.slices_k + k_slice)

        stmt = config.guard_n(self._number, n_tile, unrolled("slot", config.stages, one))
        return substitute(stmt, {_THREAD: thread})

    def _accumulate(self, thread: ir.Expr) -> tirx.Stmt:
        """Clear a thread's accumulators and run its loop over its slice of K."""
        if self._early is not None:
            return substitute(self._accumulated(_THREAD, self._early), {_THREAD: thread})
        return self._accumulated(thread, self._tile(thread))

    def _accumulated(self, thread: ir.Expr, tile: GemvTile) -> tirx.Stmt:
        config = self._config

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

        def steps(first: ir.Expr, count: int, has_b: bool = False) -> tirx.Stmt:
            def each(do: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
                def one(slot: ir.Expr) -> tirx.Stmt:
                    return do(slot, (first + slot) * config.slices_k + k_slice)

                return unrolled("slot", count, one)

            return sequence([each(tile.load_a if has_b else tile.load), each(tile.multiply)])

        step, done = config.stages * config.slices_k, int(self._early is not None)
        whole = sym.Analyzer().simplify(tirx.floordiv(config.k_tiles, index(step)))
        left = sym.Analyzer().simplify(config.k_tiles - whole * step)
        stmts = [steps(index(0), config.stages, has_b=True)] if done else []
        if constant(whole) != done:
            more = sym.Analyzer().simplify(whole - done)
            stmts.append(
                loop("step", more, lambda i: steps((i + done) * config.stages, config.stages))
            )
        if constant(left) != 0:

            def rest(i: ir.Expr) -> tirx.Stmt:
                number = whole * config.stages + i
                return when(number * config.slices_k + k_slice < config.k_tiles, steps(number, 1))

            stmts.append(loop("rest", ceildiv(left, config.slices_k), rest))
        return sequence(stmts)


def _place_of(thread: ir.Expr, number: ir.Expr) -> list[ir.Expr]:
    return [thread, number]


# cp.async pipeline of B for a skinny GEMM with one row: stages tiles of a thread in shared memory.
#
#     buffer[stages, parts, vectors, threads, vector_size]                       shared, per thread
#     for s in 0 .. stages - 2:  issue(s)                                        prologue
#     for step in ceil(k_tiles / slices_k), unrolled by stages:
#       load A(step)                                                             global -> registers
#       wait until at most stages - 2 groups are pending
#       load B(step)                                                             shared -> registers
#       issue(step + stages - 1)                                                 one commit group
#       acc += A * B
#
# A thread reads only what it copied itself, so no barrier of the block is needed. Without the
# pipeline the compiler sinks loads to their uses to save registers, and too few are in flight.
@dataclass(frozen=True, eq=False)
class CpAsyncPipeline:
    """The pipeline of a kernel."""

    config: GemvConfig  # the product
    ring: StageRing  # ``[stages, parts, vectors, threads, vector_size]``

    @classmethod
    def of(cls, config: GemvConfig) -> CpAsyncPipeline | None:
        """Declare the stages; ``None`` where B is loaded directly."""
        if not config.cp_async_stages:
            return None
        b, tile = config.b, config.tile
        while isinstance(b, tirx.Cast):
            b = b.value
        shape = (
            config.cp_async_stages,
            config.parts,
            tile.vectors,
            config.threads,
            tile.vector_size,
        )
        return cls(config, StageRing.declare(shape, str(b.ty.dtype)))

    def prologue(self, block: ir.Expr, thread: ir.Expr, tile: GemvTile) -> tirx.Stmt:
        """Issue the copies of the first ``stages - 1`` steps."""
        stages = self.config.cp_async_stages
        return unrolled("stage", stages - 1, lambda n: self._issue(tile, block, thread, n))

    def mainloop(self, block: ir.Expr, thread: ir.Expr, tile: GemvTile) -> tirx.Stmt:
        """Consume every step, and issue the copies of the one that is ``stages - 1`` ahead."""
        config = self.config
        k_slice, _ = config.thread_coords(thread)
        stages = config.cp_async_stages
        count = ceildiv(config.k_tiles, config.slices_k)
        rest = simplified(tirx.floormod(config.k_tiles, index(config.slices_k * stages)))
        is_exact = constant(rest) == 0 and config.divides_n

        def one(step: ir.Expr) -> tirx.Stmt:
            def source(part: ir.Expr, vector: int, lane: ir.Expr) -> ir.Expr:
                return self.ring.element(step, part, index(vector), thread, lane)

            k_tile, slot = step * config.slices_k + k_slice, index(0)
            load_a, multiply = tile.load_a(slot, k_tile), tile.multiply(slot, k_tile)
            load_b = tile.load_b(slot, k_tile, source)
            if not is_exact:
                load_a, load_b, multiply = (
                    self._guard(block, thread, step, stmt) for stmt in (load_a, load_b, multiply)
                )
            issue = self._issue(tile, block, thread, step + (stages - 1))
            return sequence([load_a, wait(stages - 2), load_b, issue, multiply])

        def unrolled_stages(n: ir.Expr) -> tirx.Stmt:
            return unrolled("stage", stages, lambda s: one(n * stages + s))

        return loop("step", ceildiv(count, stages), unrolled_stages)

    def _issue(self, tile: GemvTile, block: ir.Expr, thread: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Issue the copies of a step into its stage, as one commit group."""
        k_slice, _ = self.config.thread_coords(thread)

        def one(part: ir.Expr, vector: int, first: ir.TensorLoad) -> tirx.Stmt:
            return self.ring.copy(step, [part, index(vector), thread], first)

        copies = tile.each_vector(step * self.config.slices_k + k_slice, one)
        return sequence([self._guard(block, thread, step, copies), commit()])

    def _guard(self, block: ir.Expr, thread: ir.Expr, step: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Mask steps beyond K and tiles beyond N."""
        k_slice, n_tile = self.config.thread_coords(thread)
        is_inside = step * self.config.slices_k + k_slice < self.config.k_tiles
        return self.config.guard_n(block, n_tile, when(is_inside, body))
