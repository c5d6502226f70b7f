"""Tiled GEMM on tensor cores of a GPU.

    block (batch, tile of C, split-K rank) in grid:
      main loop: acc of every thread, of all k                       registers
        mma.sync, cp.async pipeline       (tile_mma_mainloop)
      epilogue: acc through shared memory to results in vectors      (tile_epilogue)

All shared memory is one buffer: pipeline stages first, sums on their way out behind them.
"""

from __future__ import annotations

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.loops import block, index, kernel, sequence, threads
from ...program.program import Program
from ..gpu.launch import min_blocks_per_sm
from .tile_epilogue import TileEpilogue
from .tile_gemm_config import TileGemmConfig
from .tile_mma_mainloop import TileMmaMainloop


def tile_gemm_gpu(program: Program, cut: TileGemmConfig) -> tirx.PrimFunc:
    """Make the kernel of a tiled GEMM."""
    shared = scratch([index(cut.shared_bytes // 4)], "float32", "tiles", scope="shared.dyn")

    def body(number: ir.Expr) -> tirx.Stmt:
        place = cut.tile_of(number)
        mainloop = TileMmaMainloop(cut, place, shared)
        epilogue = TileEpilogue(cut, place, mainloop, shared)

        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            stmts = [mainloop.stmt(thread), epilogue.stmt(thread)]
            return block("tile_gemm", sequence(stmts), [*mainloop.buffers, shared])

        made = threads("threadIdx.x", cut.threads, of_thread)
        if cut.split_k > 1:  # a block's rank is its number modulo the cluster's size
            tile = made
            made = threads("clusterCtaIdx.x", cut.split_k, lambda _: tile)
        return min_blocks_per_sm(made, 1)

    return kernel(program, threads("blockIdx.x", cut.blocks, body))
