"""Products of a few rows on a GPU's tensor cores, at the speed at which memory gives the weights.

A block has some columns, and all terms of the sum: its warps are slices of the terms. What they
found is added up in shared memory, in a fixed order, so that results are the same every time.
"""

from __future__ import annotations

from functools import partial

from tvm import ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.program import Program
from ..gpu.launch import min_blocks_per_sm
from ..loops import block, index, kernel, sequence, threads
from .gemv_gpu import finish
from .skinny_mma_config import FragmentSlim
from .skinny_mma_mainloop import FragmentWalk


def fragment_gpu(program: Program, cut: FragmentSlim) -> tirx.PrimFunc:
    """Make the kernel of a product of few rows: one launch."""
    rows = cut.count
    shape = [index(cut.slices), index(cut.shared(min(cut.together, rows)))]
    shared = scratch(shape, cut.contraction.dtype, "slices", scope="shared")

    def body(number: ir.Expr) -> tirx.Stmt:
        walk = FragmentWalk(cut, number)
        stmts = [walk.stmt()]
        for first in range(0, rows, cut.together):
            some = range(first, min(first + cut.together, rows))
            stmts.append(cut.every(partial(walk.publish, some, shared)))
            stmts.append(cut.every(partial(finish, cut, number, some, shared, None)))
        made = block("slices", sequence(stmts), [*walk.buffers, shared])
        return min_blocks_per_sm(made, cut.resident)

    return kernel(program, threads("blockIdx.x", cut.blocks, body))
