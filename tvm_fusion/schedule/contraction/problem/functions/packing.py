"""Constants that kernels read as they were packed at compile time: one nest over their elements.

pack(source, packed):
    for axes of packed:  packed[axes] = value(axes)        an expression of loads of source

They run when the model is compiled, by numpy where they only move elements (gather.py); where the
operand is no constant, the function is called before the kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tvm import ir, tirx

from .....core.tir.loops import block, kernel
from .....program.program import Program
from .....program.stage import Axis
from .prim_func import nest


def packing_function(
    source: ir.Var, packed: ir.Var, axes: Sequence[Axis], value: ir.Expr
) -> tirx.PrimFunc:
    """Make the function that packs a constant.

    Parameters
    ----------
    source, packed
        The buffers: the constant as it is, and as kernels read it.
    value
        Its element at these axes, from the source.

    Returns
    -------
    tirx.PrimFunc
        Of both buffers, for :attr:`tvm_fusion.core.contract.template.Emission.packing`.
    """
    func = tirx.PrimFunc([source, packed], block("root", nest("packed", axes, [], packed, value)))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, "global_symbol": "pack"})


class PackedConstant(Protocol):
    """A constant that a kernel reads as it was packed."""

    # The constant as the program has it, and as the kernel reads it.
    source: ir.Var
    buffer: ir.Var

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""


@dataclass(eq=False)
class Reordered:
    """A constant in another order of its axes."""

    # As of :class:`PackedConstant`.
    source: ir.Var
    buffer: ir.Var
    axes: tuple[Axis, ...]  # of the buffer
    value: ir.Expr  # its element over these axes, from the source

    def packing(self) -> tirx.PrimFunc:
        """Make the function that packs."""
        return packing_function(self.source, self.buffer, self.axes, self.value)


def packed_kernel(
    program: Program,
    body: tirx.Stmt,
    packed: Sequence[PackedConstant],
    buffers: Sequence[ir.Var] = (),
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make a kernel that reads packed constants, and what packs them by position among the inputs.

    Parameters
    ----------
    buffers
        What the kernel allocates.
    """
    func = kernel(with_packed(program, packed), body, buffers=buffers)
    return func, packings(program, packed)


def with_packed(program: Program, packed: Sequence[PackedConstant]) -> Program:
    """Replace constants among the inputs of a program."""
    read = {one.source: one.buffer for one in packed}
    return replace(program, inputs=tuple(read.get(x, x) for x in program.inputs))


def packings(program: Program, packed: Sequence[PackedConstant]) -> dict[int, tirx.PrimFunc]:
    """Make what packs constants, by their positions among the inputs of a program."""
    of = {one.source: one for one in packed}
    return {n: of[x].packing() for n, x in enumerate(program.inputs) if x in of}
