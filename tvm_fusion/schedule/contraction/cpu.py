"""Contractions on a CPU: GEMM where there is one, tiled convolutions, else untiled sums.

tiled convolution (scheduled over SBlocks):
  materialize padded and strided operands                              in parallel
  tasks in parallel: tiles of results
    acc[tile] = 0;  for k: acc += left * right                         registers, vectors of columns
    epilogue of the tile
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.target import Target

from ...core.expressions import loads, variables
from ...program.program import Program
from ..address import known_step
from ..block_info import block_info
from ..cpu import Registers, plain_nest, tile_contraction
from ..vector_math import vector_math
from .fuse_epilogue import fuse_epilogue
from .gemm_cpu import gemm_cpu
from .gemm_view import gemm_view
from .operands import SumOfProducts, reuses_operands
from .packed_weights_cpu import packable
from .padding import materialize_padded
from .prim_func import MaterializedOperand, contraction_prim_func, materialize
from .symbolic_extents import SymbolicExtents
from .untiled_cpu import untiled_cpu


@dataclass(frozen=True, eq=False)
class CpuContractionConfig:
    """A contraction on a CPU as its claim has analysed it.

    Attributes
    ----------
    program : Program
        The program of the claimed group.
    contraction : SumOfProducts
        Its contraction.
    constants : frozenset of Var
        Inputs that are known at compile time.
    """

    program: Program
    contraction: SumOfProducts
    constants: frozenset[ir.Var]


def contraction_cpu(
    config: CpuContractionConfig, target: Target
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and functions that pack constant inputs, by position.

    Padded and strided operands are materialized first, unless each task packs panels of its own.
    """
    program, contraction, constants = config.program, config.contraction, config.constants
    view = gemm_view(contraction)
    if view is not None and (view.m_axes or packable(contraction, view, constants) is not None):
        return gemm_cpu(program, contraction, view, constants, target)
    operands = materialized_operands(contraction)
    results = [replace(r, value=vector_math(r.value)) for r in contraction.results]
    contraction = replace(contraction, results=tuple(results))
    if not reuses_operands(contraction):
        return untiled_cpu(program, contraction, operands, target), {}
    registers = Registers.of(target)
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


def materialized_operands(contraction: SumOfProducts) -> list[MaterializedOperand]:
    """List the operands to materialize: padded ones, and strided ones that are reused."""
    found = []
    for name, operand in (("left", contraction.left), ("right", contraction.right)):
        one = materialize_padded(contraction, name, operand)
        if one is None and is_strided(contraction, operand) and reuses_operands(contraction):
            column = contraction.stage.axes[-1]
            rest = [a for a in (*contraction.stage.axes, *contraction.stage.reduce)]
            order = [a for a in rest if a is not column] + [column]
            one = materialize(contraction, name, operand, order)
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
