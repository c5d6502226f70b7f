"""Fragments of both operands in registers, and the instruction that multiplies them.

NVIDIA    mma.sync of 16 rows and 8 columns, of what ldmatrix leaves    (operand_fragments)
AMD       MFMA, WMMA of 16 rows and 16 columns                          (wave_fragments)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tvm import ir, tirx

from ...gpu.mma_sync import mma_fragments, mma_split_fragments
from ..tile.config import TileGemmConfig
from ..tile.operand_layout import OperandLayout
from .operand_fragments import OperandFragments
from .wave_fragments import WaveFragments, multiply_fragments


class OperandLoads(Protocol):
    """Fragments of an operand: see :class:`.operand_fragments.OperandFragments`."""

    def load_k16(
        self, thread: ir.Expr, warp: ir.Expr, step: ir.Expr, slot: int, tile: tuple[ir.Var, ir.Expr]
    ) -> tirx.Stmt:
        """Load a warp's fragments of a step."""


class Fragments(Protocol):
    """Fragments of A and of B.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    instructions : int
        Instructions of each pair of fragments in a step.
    """

    buffers: list[ir.Var]
    instructions: int

    @property
    def a(self) -> OperandLoads:
        """Those of A."""

    @property
    def b(self) -> OperandLoads:
        """Those of B."""

    def multiply(
        self, sums: Sequence[ir.TensorLoad], slot: int, i: ir.Expr, j: ir.Expr, number: int
    ) -> tirx.Stmt:
        """Add the product of two fragments to sums.

        Parameters
        ----------
        sums : sequence of TensorLoad
            The first of a thread's accumulators; of split float32 also the first of small ones.
        slot, number : int
            Of the registers, and of the instruction in the step.
        i, j : Expr
            Numbers of the fragments of A and of B.
        """


def fragments_of(
    config: TileGemmConfig, operands: tuple[OperandLayout, OperandLayout], slots: int
) -> Fragments:
    """Declare the fragments of a kernel, with registers for some steps of K."""
    if config.problem.is_amd:
        return _OfWave(config, operands, slots)
    return _OfWarp(config, operands, slots)


class _OfWarp:
    instructions = 1

    def __init__(
        self, config: TileGemmConfig, operands: tuple[OperandLayout, OperandLayout], slots: int
    ) -> None:
        self._types = config.problem.a_dtype, config.problem.b_dtype
        self.a = OperandFragments(config, operands[0], True, slots)
        self.b = OperandFragments(config, operands[1], False, slots)
        self.buffers = [self.a.buffer, self.b.buffer]

    def multiply(
        self, sums: Sequence[ir.TensorLoad], slot: int, i: ir.Expr, j: ir.Expr, number: int
    ) -> tirx.Stmt:
        a, b = self.a.of_16(slot, i), self.b.of_8(slot, j)
        if len(sums) > 1:
            return mma_split_fragments(sums[0], sums[1], a, b)
        return mma_fragments(*self._types, sums[0], a, b)


class _OfWave:
    def __init__(
        self, config: TileGemmConfig, operands: tuple[OperandLayout, OperandLayout], slots: int
    ) -> None:
        self._row = config.problem.mma
        self.a = WaveFragments(config, operands[0], True, slots)
        self.b = WaveFragments(config, operands[1], False, slots)
        self.buffers = [self.a.buffer, self.b.buffer]
        self.instructions = config.problem.k_step // self._row.k

    def multiply(
        self, sums: Sequence[ir.TensorLoad], slot: int, i: ir.Expr, j: ir.Expr, number: int
    ) -> tirx.Stmt:
        a, b = self.a.of(slot, i, number), self.b.of(slot, j, number)
        return multiply_fragments(self._row, sums[0], a, b)
