"""Contractions on a CPU: GEMM where there is one, tiled convolutions, else untiled sums.

tiled convolution (scheduled over SBlocks):
  materialize padded and strided operands                              in parallel
  tasks in parallel: tiles of results
    acc[tile] = 0;  for k: acc += left * right                         registers, vectors of columns
    epilogue of the tile
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.target import Target

from .....core.tir.expressions import load, loads, variables
from .....device import Device
from .....program.program import Program
from ....cpu.block_info import block_info
from ....cpu.schedule import VectorRegisters, plain_nest, tile_contraction
from ....elementwise.cpu.kernel import ElementwiseCpuConfig
from ....index.address import known_step
from ....math.vector_math import vector_math
from ...problem.epilogue.fuse import fuse_epilogue
from ...problem.functions.padding import materialize_padded
from ...problem.functions.prim_func import (
    MaterializedOperand,
    SymbolicExtents,
    contraction_prim_func,
    materialize,
    replace_operand,
)
from ...problem.sum_of_products import SumOfProducts, reuses_operands
from ..config import CpuGemmConfig, default
from ..kernel import gemm_cpu
from ..untiled.kernel import untiled_copies, untiled_cpu


@dataclass(frozen=True, eq=False)
class CpuContractionConfig:
    """Configuration of a contraction on a CPU: decided by the claim, consumed by its emission."""

    program: Program  # the program of the claimed group
    contraction: SumOfProducts
    gemm: CpuGemmConfig | None  # where it is a GEMM whose panels are packed or copied
    # Otherwise, and where columns are symbolic: padded and strided operands, which are materialized
    # first.
    operands: tuple[MaterializedOperand, ...]
    registers: VectorRegisters  # of tiles and vectors without a GEMM
    # Maps next to a GEMM that read nothing of it, a loop nest each.
    others: tuple[ElementwiseCpuConfig, ...] = ()

    @classmethod
    def of(
        cls,
        program: Program,
        contraction: SumOfProducts,
        device: Device,
        constants: Collection[ir.Var],
    ) -> CpuContractionConfig:
        """Choose by the model of GEMM, and tiles that fill half of the registers."""
        gemm = default(contraction, device, constants)
        operands = () if gemm is not None else tuple(materialized_operands(contraction))
        if operands and contraction.stage.axes[-1].size is None and reuses_operands(contraction):
            # Tiles of a schedule have no vectors of symbolic columns: a padded 3 x 3 convolution of
            # 64 channels took 16 times as long as one of static columns.
            gemm = default(_reading_copies(contraction, operands), device, constants)
        return cls(program, contraction, gemm, operands, VectorRegisters.of(device))

    @property
    def written(self) -> tuple[MaterializedOperand, ...]:
        """Operands that loop nests of their own materialize; tasks copy the others themselves."""
        if not self.operands or reuses_operands(self.contraction):
            return self.operands
        return () if untiled_copies(self.contraction, self.operands) else self.operands


def contraction_cpu(
    config: CpuContractionConfig, target: Target
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and functions that pack constant inputs, by position."""
    program, contraction, operands = config.program, config.contraction, config.operands
    if config.gemm is not None:
        copies = [ElementwiseCpuConfig.of([a.stage], config.registers) for a in operands]
        buffers = [a.buffer for a in operands]
        return gemm_cpu(program, config.gemm, target, (*copies, *config.others), buffers)
    results = [replace(r, value=vector_math(r.value)) for r in contraction.results]
    contraction = replace(contraction, results=tuple(results))
    registers = config.registers
    if not reuses_operands(contraction):
        return untiled_cpu(program, contraction, operands, registers), {}
    symbols = SymbolicExtents()
    func, result = contraction_prim_func(
        program, symbols.contraction(contraction), [symbols.operand(a) for a in operands]
    )
    sch = s_tir.Schedule(func)
    for name, schedule in [
        *((a.buffer.name, plain_nest) for a in operands),
        ("sum", tile_contraction),
    ]:
        block = sch.get_sblock(name)
        info = block_info(sch, block)
        if info is None:
            raise RuntimeError(f"block {name} is not one store in its own loops")
        schedule(sch, block, info, registers)
    return fuse_epilogue(symbols.expand(sch.mod["main"]), result, program, contraction), {}


def _reading_copies(
    contraction: SumOfProducts, operands: Sequence[MaterializedOperand]
) -> SumOfProducts:
    """Read materialized operands from their buffers."""
    left, right = contraction.left, contraction.right
    for one in operands:
        copy = load(one.buffer, one.place)
        left = replace_operand(left, one.operand, copy)
        right = replace_operand(right, one.operand, copy)
    return replace(contraction, left=left, right=right)


def materialized_operands(contraction: SumOfProducts) -> list[MaterializedOperand]:
    """List the operands to materialize: padded ones, and strided ones that are reused."""
    found = []
    for name, operand in (("left", contraction.left), ("right", contraction.right)):
        one = materialize_padded(contraction, name, operand)
        if one is None and is_strided(contraction, operand) and reuses_operands(contraction):
            column = contraction.stage.axes[-1]
            rest = [a for a in (*contraction.stage.axes, *contraction.stage.reduce)]
            order = [a for a in rest if a is not column] + [column]
            one = materialize(name, operand, order)
        if one is not None:
            found.append(one)
    return found


def is_strided(contraction: SumOfProducts, operand: ir.Expr) -> bool:
    """Whether adjacent columns are not contiguous in an operand that depends on them."""
    stage = contraction.stage
    if not stage.axes or stage.axes[-1].var not in variables(operand):
        return False
    axes = [a.var for a in (*stage.axes, *stage.reduce)]
    column = stage.axes[-1].var
    steps = (known_step(x.source, x.indices, column, axes) for x in loads(operand))
    return all(step not in (0, 1) for step in steps)
