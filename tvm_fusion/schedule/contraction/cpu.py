"""Contractions on a CPU: register tiles where elements serve several results, else plain sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tvm import ir, s_tir, tirx
from tvm.target import Target

from ...fusion.expressions import loads, variables
from ...fusion.program import Program
from ..address import known_step
from ..block_info import block_info
from ..cpu import Registers, plain_nest, tile_contraction
from ..loops import constant
from ..vector_math import vector_math
from .fuse_epilogue import graft
from .gemm_cpu import tiles_cpu
from .gemm_view import roles
from .operands import SumOfProducts
from .packed_weights_cpu import packable
from .padding import padded
from .prim_func import Apart, canonical, over
from .symbolic_extents import Symbols
from .untiled_cpu import sums_cpu


def contraction_cpu(
    program: Program, contraction: SumOfProducts, constants: Collection[ir.Var], target: Target
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and functions that pack constant inputs, by position.

    Operands with conditions or in an awkward order are copied before, unless each task copies
    panels of its own.
    """
    matrices = roles(contraction)
    if matrices is not None and (
        matrices.rows or packable(contraction, matrices, constants) is not None
    ):
        return tiles_cpu(program, contraction, matrices, constants, target)
    apart = copies(contraction)
    results = [replace(r, value=vector_math(r.value)) for r in contraction.results]
    contraction = replace(contraction, results=tuple(results))
    if not is_tiled(contraction):
        return sums_cpu(program, contraction, apart, target), {}
    registers = Registers.of(target)
    symbols = Symbols()
    func, result = canonical(
        program, symbols.contraction(contraction), [symbols.apart(a) for a in apart]
    )
    sch = s_tir.Schedule(func)
    for name, schedule in [
        *((a.buffer.name, plain_nest) for a in apart),
        ("sum", tile_contraction),
    ]:
        block = sch.get_sblock(name)
        info = block_info(sch, block)
        if info is None:
            raise RuntimeError(f"block {name} is not one store in its own loops")
        schedule(sch, block, info, registers)
    return graft(symbols.expand(sch.mod["main"]), result, program, contraction), {}


def copies(contraction: SumOfProducts) -> list[Apart]:
    """List the operands that are written out first: padded ones, and strided ones used again."""
    found = []
    for name, factor in (("left", contraction.left), ("right", contraction.right)):
        one = padded(contraction, name, factor)
        if one is None and strided(contraction, factor) and is_tiled(contraction):
            column = contraction.stage.axes[-1]
            rest = [a for a in (*contraction.stage.axes, *contraction.stage.reduce)]
            order = [a for a in rest if a is not column] + [column]
            one = over(contraction, name, factor, order)
        if one is not None:
            found.append(one)
    return found


def is_tiled(contraction: SumOfProducts) -> bool:
    """Whether the elements of both operands serve several results, so that tiles pay.

    Vectors of a tile run along an operand in memory: columns that only a condition tells apart,
    as in a one-hot operand, are no such.
    """
    stage = contraction.stage
    wide = {a.var for a in stage.axes if constant(a.extent) != 1}
    factors = (contraction.left, contraction.right)
    return (
        bool(stage.axes)
        and all(wide - variables(f) for f in factors)
        and any(stage.axes[-1].var in variables(x) for f in factors for x in loads(f))
    )


def strided(contraction: SumOfProducts, factor: ir.Expr) -> bool:
    """Whether neighbouring columns lie apart in an operand that runs along the columns."""
    stage = contraction.stage
    if not stage.axes or stage.axes[-1].var not in variables(factor):
        return False
    axes = [a.var for a in (*stage.axes, *stage.reduce)]
    column = stage.axes[-1].var
    steps = (known_step(x.source, x.indices, column, axes) for x in loads(factor))
    return all(step not in (0, 1) for step in steps)
