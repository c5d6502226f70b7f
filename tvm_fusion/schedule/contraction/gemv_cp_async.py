"""cp.async pipeline of B for a skinny GEMM with one row: STAGES tiles of a thread in shared memory.

    buffer[STAGES, parts, vectors, threads, vector_size]                       shared, per thread
    for s in 0 .. STAGES - 2:  issue(s)                                        prologue
    for step in ceil(k_tiles / slices_k), unrolled by STAGES:
      load A(step)                                                             global -> registers
      wait until at most STAGES - 2 groups are pending
      load B(step)                                                             shared -> registers
      issue(step + STAGES - 1)                                                 one commit group
      acc += A * B

A thread reads only what it copied itself, so no barrier of the block is needed. Without the
pipeline the compiler sinks loads to their uses to save registers, and too few are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import DataType, ir, tirx
from tvm.target import Target

from ...core.expressions import load
from ...core.loops import ceildiv, constant, index, loop, sequence, simplified, unrolled, when
from ..gpu.cp_async import BYTES, commit, copy, pipeline_buffer, stage_of, wait
from ..gpu.launch import has_tensor_cores
from .gemv_config import GemvConfig
from .gemv_mainloop import GemvMainloop

STAGES = 3  # with more, fewer blocks fit a multiprocessor
BLOCK_BYTES = 48 * 1024
MAX_THREADS = 3 << 16  # of the grid; more of them have enough bytes in flight without


@dataclass(frozen=True, eq=False)
class CpAsyncPipeline:
    """The pipeline of a kernel.

    Attributes
    ----------
    cut : GemvConfig
        The product.
    buffer : Var
        ``[STAGES, parts, vectors, threads, vector_size]`` in shared memory.
    """

    cut: GemvConfig
    buffer: ir.Var

    @classmethod
    def of(cls, cut: GemvConfig, target: Target) -> CpAsyncPipeline | None:
        """Plan the pipeline; ``None`` where B is loaded directly.

        Devices with tensor cores for half types are those that have cp.async.
        """
        steps, blocks = constant(ceildiv(cut.k_tiles, cut.slices_k)), constant(cut.blocks)
        if not has_tensor_cores(target) or steps is None or blocks is None or cut.m > 1:
            return None
        if blocks * cut.threads > MAX_THREADS:
            return None
        tile, b = cut.tile, cut.b
        while isinstance(b, tirx.Cast):
            b = b.value
        dtype = str(b.ty.dtype)
        is_plain = isinstance(b, ir.TensorLoad)
        if not is_plain or DataType(dtype).itemsize * tile.vector_size != BYTES:
            return None
        size = cut.threads * cut.parts * tile.vectors * BYTES
        if STAGES * size > BLOCK_BYTES or steps < STAGES:
            return None
        shape = (STAGES, cut.parts, tile.vectors, cut.threads, tile.vector_size)
        return cls(cut, pipeline_buffer(shape, dtype))

    def prologue(self, block: ir.Expr, thread: ir.Expr, mainloop: GemvMainloop) -> tirx.Stmt:
        """Issue the copies of the first ``STAGES - 1`` steps."""
        return unrolled("stage", STAGES - 1, lambda n: self._issue(mainloop, block, thread, n))

    def mainloop(self, block: ir.Expr, thread: ir.Expr, mainloop: GemvMainloop) -> tirx.Stmt:
        """Consume every step, and issue the copies of the one that is ``STAGES - 1`` ahead."""
        cut = self.cut
        k_slice, _ = cut.thread_coords(thread)
        count = ceildiv(cut.k_tiles, cut.slices_k)
        rest = simplified(tirx.floormod(cut.k_tiles, index(cut.slices_k * STAGES)))
        is_exact = constant(rest) == 0 and cut.divides_n

        def one(step: ir.Expr) -> tirx.Stmt:
            def source(part: ir.Expr, vector: int, lane: ir.Expr) -> ir.Expr:
                return load(self.buffer, self._place(step, part, index(vector), thread, lane))

            k_tile, slot = step * cut.slices_k + k_slice, index(0)
            load_a, multiply = mainloop.load_a(slot, k_tile), mainloop.multiply(slot, k_tile)
            load_b = mainloop.load_b(slot, k_tile, source)
            if not is_exact:
                load_a, load_b, multiply = (
                    self._guard(block, thread, step, stmt) for stmt in (load_a, load_b, multiply)
                )
            issue = self._issue(mainloop, block, thread, step + (STAGES - 1))
            return sequence([load_a, wait(STAGES - 2), load_b, issue, multiply])

        def unrolled_stages(n: ir.Expr) -> tirx.Stmt:
            return unrolled("stage", STAGES, lambda s: one(n * STAGES + s))

        return loop("step", ceildiv(count, STAGES), unrolled_stages)

    def _issue(
        self, mainloop: GemvMainloop, block: ir.Expr, thread: ir.Expr, step: ir.Expr
    ) -> tirx.Stmt:
        """Issue the copies of a step into its stage, as one commit group."""
        k_slice, _ = self.cut.thread_coords(thread)

        def one(part: ir.Expr, vector: int, first: ir.TensorLoad) -> tirx.Stmt:
            place = self._place(step, part, index(vector), thread, index(0))
            return copy(load(self.buffer, place), first)

        copies = mainloop.each_vector(step * self.cut.slices_k + k_slice, one)
        return sequence([self._guard(block, thread, step, copies), commit()])

    def _guard(self, block: ir.Expr, thread: ir.Expr, step: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Mask steps beyond K and tiles beyond N."""
        k_slice, n_tile = self.cut.thread_coords(thread)
        is_inside = step * self.cut.slices_k + k_slice < self.cut.k_tiles
        return self.cut.guard_n(block, n_tile, when(is_inside, body))

    def _place(
        self, step: ir.Expr, part: ir.Expr, vector: ir.Expr, thread: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        return [stage_of(step, STAGES), part, vector, thread, lane]
