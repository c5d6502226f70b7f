"""FlashAttention on Hopper: TMA copies, a producer warp, warpgroups that multiply and normalize.

grid: batch * heads * ceil(queries / block_m) blocks; block: 1 + consumers warpgroups
shared memory: q[block_m, d]; rings of `stages` tiles k[block_n, d] and v[block_n, d], 128-byte
               swizzle; barriers full and empty of q, of each stage of k and v
registers of a consumer's thread: as in flash_mma, of 16 rows of its warp
limits of visible keys that rows read from memory: their extremes in the block, by all warps
producer, one thread:
    copy q
    for n in range(tiles that a row of the block sees):
        wait(k_empty[stage]); copy k(n), which completes on k_full[stage]; the same of v(n)
consumers, of 64 rows each; in which order is told in flash_tma_consumers:
    wait(q_full)
    for n:
        wait(k_full[stage]); s = q * k               wgmma, both from shared memory
        arrive(k_empty[stage])
        softmax of s, as in flash_mma: p_frag
        wait(v_full[stage]); acc += p_frag * v       wgmma, v from shared memory
        arrive(v_empty[stage])
    bar.sync of the warpgroup; acc / l_i -> shared memory, where its queries were, or behind v
    __syncwarp; epilogue -> global, in vectors, of each warp its rows
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import block, index, kernel, sequence, threads, when
from ...program.program import Program
from ..gpu import tma, wgmma
from ..gpu.launch import block_by_address, dependency_wait, min_blocks_per_sm
from ..gpu.shared_tiles import block_barrier, touch
from ..gpu.warp import lane_of, warp_of, warp_uniform
from .flash_grid import query_blocks
from .flash_problem import FlashProblem
from .flash_tma_config import HALF_BYTES, FlashTmaConfig
from .flash_tma_consumers import Consumers
from .flash_tma_operand import TmaRows, tma_operands


def flash_tma_kernel(
    program: Program, problem: FlashProblem, config: FlashTmaConfig
) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    program : Program
        The group's.
    problem : FlashProblem
        Its attention.
    config : FlashTmaConfig
        Of its configurations.
    """
    operands = tma_operands(problem)
    if operands is None:
        raise RuntimeError("the group is not the one that was claimed")
    maps: list[ir.Var] = []
    encode: list[tirx.Stmt] = []
    sizes = (config.block_m, config.block_n, config.block_n)
    for name, rows, size in zip("qkv", operands, sizes, strict=True):
        variable, stmts = rows.with_rows(size).encode(f"map_{name}")
        maps.append(variable)
        encode += stmts
    copies = list(zip(operands, maps, strict=True))

    def write(where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        return min_blocks_per_sm(_block(problem, config, copies, where, first), config.min_blocks)

    grid = query_blocks(problem, config, write)
    return kernel(program, grid, encode)


def _block(
    problem: FlashProblem,
    config: FlashTmaConfig,
    copies: list[tuple[TmaRows, ir.Var]],
    where: dict[ir.Var, ir.Expr],
    first: ir.Expr,
) -> tirx.Stmt:
    size = config.shared_bytes // HALF_BYTES
    # CUDA wants one type for all declarations of a name in a module.
    shared = tma.shared_tiles(size, problem.half, f"tiles_{problem.half}")

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        warp = warp_of(thread) - wgmma.WARPS  # of the consumers
        roles = Consumers(problem, config, where, first, warp, lane_of(thread), shared, copies)
        group = tirx.Var("warpgroup", "int32")
        consume = roles.consume(group - 1)
        stmts = [
            touch(shared, size - 1),
            when(thread.equal(0), roles.initialize()),
            dependency_wait(),
            *roles.find_limits(),
            block_barrier(),
            tirx.Bind(group, warp_uniform(tirx.floordiv(thread, index(wgmma.THREADS)))),
            tirx.IfThenElse(group.equal(0), roles.produce(thread.equal(0)), consume),
        ]
        return block_by_address("flash_attention", sequence(stmts), roles.buffers)

    return block("grid", threads("threadIdx.x", config.threads, of_thread), [shared])
