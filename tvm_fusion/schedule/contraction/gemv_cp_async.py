"""A thread's walk over the large factor, whose tiles it copies to shared memory steps ahead.

Registers that are waited for are what limits how much is under way: a compiler fills them late to
need few. Each thread has its own places in shared memory, which takes no barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import DataType, ir, tirx
from tvm.target import Target

from ...fusion.expressions import load
from ..gpu.cp_async import BYTES, commit, copy, places, wait
from ..gpu.launch import has_tensor_cores
from ..loops import ceildiv, constant, index, loop, sequence, simplified, unrolled, when
from .gemv_config import Slim
from .gemv_mainloop import TileSums

STAGES = 3  # steps that have places; more would leave a multiprocessor fewer blocks
BLOCK_BYTES = 48 * 1024
MOST_THREADS = 3 << 16  # of all blocks; more of them ask for enough by themselves


@dataclass(frozen=True, eq=False)
class CopiedWalk:
    """How tiles are copied.

    Attributes
    ----------
    cut : Slim
        The product.
    places : Var
        ``[STAGES, pieces, vectors, threads, lanes]`` in shared memory.
    """

    cut: Slim
    places: ir.Var

    @classmethod
    def of(cls, cut: Slim, target: Target) -> CopiedWalk | None:
        """Plan it; ``None`` for what is read directly.

        Devices with tensor cores for half types are those that copy to shared memory by themselves.
        """
        steps, blocks = constant(ceildiv(cut.steps, cut.slices)), constant(cut.blocks)
        if not has_tensor_cores(target) or steps is None or blocks is None or cut.count > 1:
            return None
        if blocks * cut.threads > MOST_THREADS:
            return None
        tile, large = cut.tile, cut.large
        while isinstance(large, tirx.Cast):
            large = large.value
        dtype = str(large.ty.dtype)
        is_plain = isinstance(large, ir.TensorLoad)
        if not is_plain or DataType(dtype).itemsize * tile.lanes != BYTES:
            return None
        size = cut.threads * cut.pieces * tile.vectors * BYTES
        if STAGES * size > BLOCK_BYTES or steps < STAGES:
            return None
        shape = (STAGES, cut.pieces, tile.vectors, cut.threads, tile.lanes)
        return cls(cut, places(shape, dtype))

    def begin(self, number: ir.Expr, thread: ir.Expr, tiles: TileSums) -> tirx.Stmt:
        """Ask for the first steps."""

        def step(n: ir.Expr) -> tirx.Stmt:
            return self._ask(tiles, number, thread, n)

        return unrolled("stage", STAGES - 1, step)

    def steps(self, number: ir.Expr, thread: ir.Expr, tiles: TileSums) -> tirx.Stmt:
        """Take every step, and ask for one that is as far ahead as there are places."""
        cut = self.cut
        part, _ = cut.thread(thread)
        count = ceildiv(cut.steps, cut.slices)
        rounds = simplified(tirx.floormod(cut.steps, index(cut.slices * STAGES)))
        is_whole = constant(rounds) == 0 and cut.is_even

        def one(step: ir.Expr) -> tirx.Stmt:
            def source(piece: ir.Expr, vector: int, lane: ir.Expr) -> ir.Expr:
                return load(self.places, self._place(step, piece, index(vector), thread, lane))

            where, slot = step * cut.slices + part, index(0)
            rows, use = tiles.read_rows(slot, where), tiles.use(slot, where)
            take = tiles.take(slot, where, source)
            if not is_whole:
                rows, take, use = (
                    self._inside(number, thread, step, stmt) for stmt in (rows, take, use)
                )
            ask = self._ask(tiles, number, thread, step + (STAGES - 1))
            return sequence([rows, wait(STAGES - 2), take, ask, use])

        def several(n: ir.Expr) -> tirx.Stmt:
            def stage(s: ir.Expr) -> tirx.Stmt:
                return one(n * STAGES + s)

            return unrolled("stage", STAGES, stage)

        return loop("step", ceildiv(count, STAGES), several)

    def _ask(self, tiles: TileSums, number: ir.Expr, thread: ir.Expr, step: ir.Expr) -> tirx.Stmt:
        """Ask for a step, in the place of one that was taken; each is a group of its own."""
        part, _ = self.cut.thread(thread)

        def one(piece: ir.Expr, vector: int, first: ir.TensorLoad) -> tirx.Stmt:
            place = self._place(step, piece, index(vector), thread, index(0))
            return copy(load(self.places, place), first)

        asked = tiles.each_vector(step * self.cut.slices + part, one)
        return sequence([self._inside(number, thread, step, asked), commit()])

    def _inside(
        self, number: ir.Expr, thread: ir.Expr, step: ir.Expr, body: tirx.Stmt
    ) -> tirx.Stmt:
        part, vector = self.cut.thread(thread)
        in_walk = step * self.cut.slices + part < self.cut.steps
        return self.cut.inside(number, vector, when(in_walk, body))

    def _place(
        self, step: ir.Expr, piece: ir.Expr, vector: ir.Expr, thread: ir.Expr, lane: ir.Expr
    ) -> list[ir.Expr]:
        stage = simplified(tirx.floormod(step, index(STAGES)))
        return [stage, piece, vector, thread, lane]
