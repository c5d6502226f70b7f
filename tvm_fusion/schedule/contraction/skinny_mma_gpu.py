"""Skinny GEMM on tensor cores, swapped operands, slice-K reduced in shared memory.

block (batch, block_n = 8 * tile_n columns) in grid, all K; slices_k warps
one row:  shared A[k] = the row in fragment order                        (shared_a_gpu)
warp in slices_k; lane = 4 * groupID + threadID_in_group:
acc[n8, parts, tile_n / 2, 4] = 0                                      registers
for step in K / (4 * tile.k * slices_k), `stages` steps ahead:         (skinny_mma_mainloop)
load   B[part] tile of columns groupID * tile_n ..; A row groupID    global -> registers
arrange  b_frag, a_frag = tiles in fragment order, B dequantized to f16x2
acc += mma_m16n8k16(b_frag columns, a_frag rows)
quantized: group accumulators, then acc += group * scale             (group_dequantize)
for rows_per_pass rows of m:
partial[warp, row, part, n] = acc                                      shared, barrier
thread per element of C: sum over warps, epilogue, store               (gemv_gpu)
"""

from __future__ import annotations

from functools import partial

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.loops import block, index, kernel, sequence, threads
from ...program.program import Program
from ..gpu.launch import min_blocks_per_sm
from .gemv_gpu import reduce_slices
from .skinny_mma_config import SkinnyMmaConfig
from .skinny_mma_mainloop import SkinnyMmaMainloop


def skinny_mma_gpu(program: Program, cut: SkinnyMmaConfig) -> tirx.PrimFunc:
    """Make the kernel of a skinny GEMM on tensor cores."""
    shape = [index(size) for size in cut.partials_shape]
    shared = scratch(shape, cut.contraction.dtype, "partials", scope="shared")

    def body(number: ir.Expr) -> tirx.Stmt:
        mainloop = SkinnyMmaMainloop(cut, number)
        stmts = [mainloop.stmt()]
        for first in range(0, cut.m, cut.rows_per_pass):
            rows = range(first, min(first + cut.rows_per_pass, cut.m))
            stmts.append(cut.phase(partial(mainloop.share_partials, rows, shared)))
            stmts.append(cut.phase(partial(reduce_slices, cut, number, rows, shared, None)))
        made = block("skinny_gemm", sequence(stmts), [*mainloop.buffers, shared])
        return min_blocks_per_sm(made, cut.min_blocks_per_sm)

    return kernel(program, threads("blockIdx.x", cut.blocks, body))
