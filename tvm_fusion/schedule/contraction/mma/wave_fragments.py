"""Fragments of AMD's matrix instructions, loaded from an operand's tile in LDS, 16 bytes at a time.

An instruction wants of each lane a few contiguous terms of a row, which the lanes of a row share
out: four halves of MFMA, eight bytes. Which terms of a step these are does not matter to the sum,
as long as A and B agree. So a lane takes whole chunks: in a step, lane ``16 * group + row`` has
chunk ``group`` of its row, for as many instructions as that lasts.

    MFMA    of a step of 64 bytes, 4 groups     halves: 2 instructions, of the chunk's two halves
    WMMA    of 32 bytes, both halves of a wave  two chunks, all terms of one instruction

The sums are those of C transposed: B stands for A, so that a lane has four columns of a row.
"""

from __future__ import annotations

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, sequence, unrolled
from ...gpu.swizzle import exchanged
from ...gpu.warp import lane_of
from ...instructions.amd import multiply
from ...instructions.instruction import Instruction
from ..tile.config import TileGemmConfig
from ..tile.operand_layout import WORDS, OperandLayout
from ..tile.shape import CHUNK_BYTES, M16


class WaveFragments:
    """Fragments that a wave multiplies, of A or of B.

    Parameters
    ----------
    is_a : bool
        Whether the operand is A.
    slots : int
        How many steps registers have room for.

    Attributes
    ----------
    buffer : Var
        Registers.
    """

    def __init__(
        self, config: TileGemmConfig, layout: OperandLayout, is_a: bool, slots: int
    ) -> None:
        problem = config.problem
        self._layout, self._mma, self._chunk = layout, problem.mma, problem.chunk
        self._warp = config.tile.warp_m if is_a else config.tile.warp_n
        self._count = self._warp // M16
        self._groups = self._mma.k // self._mma.k_per_lane
        self._size = problem.k_step // self._groups  # elements of a lane
        held = problem.moves.held_as(problem.a_dtype if is_a else problem.b_dtype)
        name, size = "a_frag" if is_a else "b_frag", slots * self._count * self._size
        self.buffer = local(name, [size], held)

    def of(self, slot: int, number: ir.Expr, instruction: int) -> ir.Expr:
        """Return what a lane has of 16 rows or columns, of an instruction of a step."""
        each = self._mma.k_per_lane
        first = (slot * self._count + number) * self._size + instruction * each
        return tirx.BufferLoad(
            self.buffer, [first if each == 1 else tirx.Ramp(first, index(1), each)]
        )

    def load_k16(
        self, thread: ir.Expr, warp: ir.Expr, step: ir.Expr, slot: int, tile: tuple[ir.Var, ir.Expr]
    ) -> tirx.Stmt:
        """Load a wave's fragments of a step; parameters as of OperandFragments."""
        shared, start = tile
        lane = lane_of(thread, self._mma.lanes)
        row = tirx.floormod(lane, index(M16))
        group = tirx.floormod(tirx.floordiv(lane, index(M16)), index(self._groups))
        by = self._layout.swizzle(row)
        chunks = self._size // self._chunk

        def one(i: ir.Expr) -> tirx.Stmt:
            line = warp * self._warp + i * M16 + row
            stmts = []
            for number in range(chunks):
                chunk = exchanged((step * self._groups + group) * chunks + number, by)
                word = (line * self._layout.row_chunks + chunk) * WORDS
                place = (slot * self._count + i) * self._size + number * self._chunk
                to, source = load(self.buffer, [place]), load(shared, [start + word])
                stmts.append(self._layout.moves.load(to, source, CHUNK_BYTES))
            return sequence(stmts)

        return unrolled("i", self._count, one)


def multiply_fragments(row: Instruction, sums: ir.TensorLoad, a: ir.Expr, b: ir.Expr) -> tirx.Stmt:
    """Add the product of two fragments to a lane's accumulators; a whole wave executes it."""
    lanes = tirx.Ramp(sums.indices[0], index(1), row.c.per_lane)
    total = multiply(row, b, a, tirx.BufferLoad(sums.source, [lanes]))
    return tirx.BufferStore(sums.source, total, [lanes])
