"""Tiled GEMM on tensor cores of a GPU.

    block (batch, tile of C, split-K rank) in grid:
      of ragged rows, which group the tile is of                      (ragged_tiles)
      main loop: acc of every thread, of all k                       registers
        mma.sync, cp.async pipeline                (mainloop)
      epilogue: acc through shared memory to results in vectors  (tile/shared_epilogue)

All shared memory is one buffer: pipeline stages first, sums on their way out behind them.
"""

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.loops import block, index, kernel, sequence, threads, when
from ....program.program import Program
from ...gpu.launch import min_blocks_per_sm
from ..tile.config import TileGemmConfig
from ..tile.results.concat_parts import ConcatParts
from ..tile.results.shared_epilogue import TileEpilogue
from .mainloop import TileMmaMainloop


def tile_gemm_gpu(
    program: Program, config: TileGemmConfig, concat_parts: ConcatParts | None = None
) -> tirx.PrimFunc:
    """Make the kernel of a tiled GEMM, which may store other parts of a concatenation."""
    scope = config.problem.moves.scope
    shared = scratch([index(config.shared_bytes // 4)], "float32", "tiles", scope=scope)

    def body(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            parts = None
            if concat_parts is not None:
                parts = concat_parts.stmt(
                    number * config.threads + thread, config.blocks * config.threads
                )
            return tile_block(config, number, thread, shared, True, parts)

        made = threads("threadIdx.x", config.threads, of_thread)
        if config.tile.split_k > 1:  # a block's rank is its number modulo the cluster's size
            tile = made
            made = threads("clusterCtaIdx.x", config.tile.split_k, lambda _: tile)
        return min_blocks_per_sm(made, config.min_blocks_per_sm)

    return kernel(program, threads("blockIdx.x", config.blocks, body))


def tile_block(
    config: TileGemmConfig,
    number: ir.Expr,
    thread: ir.Expr,
    shared: ir.Var,
    owns_shared: bool = False,
    concat_parts: tirx.Stmt | None = None,
) -> tirx.Stmt:
    """Write what a thread of a block does: main loop and epilogue of a tile.

    Parameters
    ----------
    number, thread
        Of the block among those of the product, and of the thread.
    shared
        Shared memory of the block, float32 words.
    owns_shared
        Whether it is declared here.
    concat_parts
        What the thread does while the first tiles are on their way.
    """
    place, find = config.grid.found(number, config.table(shared))
    mainloop = TileMmaMainloop(config, place, shared)
    epilogue = TileEpilogue(config, place, mainloop, shared)
    stmts = [mainloop.stmt(thread, concat_parts), epilogue.stmt(thread)]
    buffers = [*mainloop.buffers, *([shared] if owns_shared else [])]
    if (rows := config.problem.ragged) is not None:
        buffers.append(rows.registers)
        table = config.table(shared)
        fill, count = rows.fill(thread, config.tile.block_m, table), rows.count(table)
        is_tile = number < rows.tiles * (config.grid.tiles_n * config.tile.split_k)
        stmts = [
            fill,
            config.problem.moves.barrier(),
            count,
            when(is_tile, sequence([*find, *stmts])),
        ]
    return block("tile_gemm", sequence(stmts), buffers)
