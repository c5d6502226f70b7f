"""Two GEMMs back to back on Hopper: the hidden rows between them stay in registers.

block in grid of at most as many as run at once:
W1, W2, stages[stage] of X; barriers weights, full[stage], empty[stage]       shared
warpgroup 0, the producer:  copies both weights, which stay, then tiles of rows
the others:                 multiply twice, and store results                 (back_to_back_roles)
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import block, index, kernel, sequence, threads, when
from ...program.program import Program
from ..gpu import tma, wgmma
from ..gpu.launch import PREFETCHED, dependency_wait, min_blocks_per_sm
from ..gpu.shared_tiles import block_barrier
from ..gpu.warp import warp_uniform
from .back_to_back_config import BackToBackConfig
from .back_to_back_roles import Roles


def back_to_back_gpu(program: Program, config: BackToBackConfig) -> tirx.PrimFunc:
    """Make the kernel, which says that both weights may be asked for beforehand."""
    x, w1 = config.first.operands
    maps, encode = [], []
    for name, operand in (("map_x", x), ("map_w1", w1), ("map_w2", config.w2)):
        variable, stmts = operand.maps[0].encode(name)
        maps.append(variable)
        encode += stmts
    grid = threads(
        "blockIdx.x",
        config.blocks,
        lambda number: min_blocks_per_sm(_block(config, maps, number), 1),
    )
    func = kernel(program, grid, encode)
    weights = [operand.maps[0].buffer for operand in (w1, config.w2)]
    numbers = [n for n, p in enumerate(func.params) if any(p.same_as(w) for w in weights)]
    return func.with_attr(PREFETCHED, numbers)


def _block(config: BackToBackConfig, maps: list[ir.Var], number: ir.Expr) -> tirx.Stmt:
    shared = tma.shared_tiles(config.shared_bytes, "uint8", "resident")

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        roles = Roles(config, maps, number, thread, shared)
        group = tirx.Var("warpgroup", "int32")
        stmts = [
            when(thread.equal(0), roles.initialize()),
            dependency_wait(),
            block_barrier(),
            tirx.Bind(group, warp_uniform(tirx.floordiv(thread, index(wgmma.THREADS)))),
            tirx.IfThenElse(group.equal(0), roles.produce(), roles.consume(group - 1)),
        ]
        return block("back_to_back", sequence(stmts), roles.buffers)

    return block("grid", threads("threadIdx.x", config.threads, of_thread), [shared])
