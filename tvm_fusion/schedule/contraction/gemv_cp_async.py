"""cp.async pipeline of B for a skinny GEMM with one row: stages tiles of a thread in shared memory.

    buffer[stages, parts, vectors, threads, vector_size]                       shared, per thread
    for s in 0 .. stages - 2:  issue(s)                                        prologue
    for step in ceil(k_tiles / slices_k), unrolled by stages:
      load A(step)                                                             global -> registers
      wait until at most stages - 2 groups are pending
      load B(step)                                                             shared -> registers
      issue(step + stages - 1)                                                 one commit group
      acc += A * B

A thread reads only what it copied itself, so no barrier of the block is needed. Without the
pipeline the compiler sinks loads to their uses to save registers, and too few are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...core.loops import ceildiv, constant, index, loop, sequence, simplified, unrolled, when
from ..gpu.cp_async import StageRing, commit, wait
from .gemv_config import GemvConfig
from .gemv_tile import GemvTile


@dataclass(frozen=True, eq=False)
class CpAsyncPipeline:
    """The pipeline of a kernel.

    Attributes
    ----------
    config : GemvConfig
        The product.
    ring : StageRing
        ``[stages, parts, vectors, threads, vector_size]``.
    """

    config: GemvConfig
    ring: StageRing

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
