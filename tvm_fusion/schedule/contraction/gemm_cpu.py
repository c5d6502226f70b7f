"""GEMM on a CPU, after Goto and van de Geijn: register tiles over packed panels of B.

    tasks in parallel: (batch, chunk of panels, block of block_m rows); adjacent tasks share B
      rows in groups that each have a B: those of the task's group            (ragged_rows_cpu)
      norm prologue: rows of the block are normalized into a buffer           (operand_a_cpu)
      for pass over K, of kc:
        copy panels of B [panels][kc][nr], unless packed at compile time      level 2 cache
        for part of mc rows of the block:
          for panel:                                                          (gemm_loops_cpu)
            for tile of mr rows:                                              (gemm_tile_cpu)
              acc[mr][nr] = 0, or partial sums of the pass before             registers
              for k in kc:  acc += broadcast A[mr, k] * B[k, nr];  prefetch the next panel
              last pass: epilogue; else keep partial sums                     (epilogue_cpu)

With a dot-product instruction (VNNI, BF16), a group of k is one 32-bit element of A and of B.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.target import Target

from ...core.loops import block, sequence
from ...core.untouched import SCHEDULED
from ...program.program import Program
from ..elementwise.cpu import ElementwiseCpuConfig, maps_cpu
from .gemm_config_cpu import CpuGemmConfig
from .gemm_loops_cpu import GemmLoops
from .operand_a_cpu import DirectA, NormalizedA, OperandA
from .operand_b_cpu import CopiedB, DirectB, OperandB
from .packed_weights_cpu import PackedB


def gemm_cpu(
    program: Program,
    config: CpuGemmConfig,
    target: Target,
    others: Sequence[ElementwiseCpuConfig] = (),
    buffers: Sequence[ir.Var] = (),
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the functions that pack constants, by position among the inputs.

    Parameters
    ----------
    program : Program
        Its program.
    config : CpuGemmConfig
        The configuration.
    target : Target
        A CPU, for the rows of a norm prologue.
    others : sequence of ElementwiseCpuConfig
        Maps that read nothing of the product, such as the other parts of a concatenation: loop
        nests of their own.
    buffers : sequence of Var
        Those of operands that such maps write.
    """
    body, b = gemm_tasks(config, target)
    body = body if config.dot is None else config.dot.around(body)
    body = sequence([*(maps_cpu(maps) for maps in others), body])
    packed = {b.source: b.buffer} if isinstance(b, PackedB) else {}
    inputs = [packed.get(x, x) for x in program.inputs]
    func = tirx.PrimFunc(
        [*inputs, *program.scalars, *program.outputs], block("root", body, list(buffers))
    )
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    packing = {}
    if isinstance(b, PackedB):
        packing[program.inputs.index(b.source)] = b.packing()
    return func, packing


def gemm_tasks(config: CpuGemmConfig, target: Target) -> tuple[tirx.For, OperandB]:
    """Write the loop over the tasks of a GEMM, and tell how it reads B."""
    view, b = config.view, operand_b(config)
    a: OperandA = DirectA(view)
    if config.prologue is not None:
        a = NormalizedA(view, config.prologue, config.sizes.block_m, target)
    return GemmLoops(config, a, b).tasks(), b


def operand_b(config: CpuGemmConfig) -> OperandB:
    """Read B as the configuration says."""
    view, sizes = config.view, config.sizes
    if config.b_source == "packed":
        return PackedB(view, sizes.nr)
    if config.b_source == "direct":
        return DirectB(view, sizes.nr)
    return CopiedB(view, sizes.nr, sizes.kc, sizes.panels)
