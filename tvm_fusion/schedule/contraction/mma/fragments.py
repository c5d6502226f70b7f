"""Fragments of both operands in registers, and the instruction that multiplies them.

NVIDIA    mma.sync of 16 rows and 8 columns, of what ldmatrix leaves
AMD       MFMA, WMMA of 16 rows and 16 columns

The registers of two slots let a warp load the next step of K while it multiplies one.
"""

from collections.abc import Sequence
from typing import Protocol

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, sequence, unrolled
from ...gpu.matrix.ldmatrix import ldmatrix_x4
from ...gpu.matrix.mma_sync import mma_fragments, mma_split_fragments
from ...gpu.memory.shared_tiles import load_shared
from ...gpu.memory.swizzle import exchanged
from ...gpu.threads.warp import lane_of
from ...instructions.amd import multiply
from ...instructions.instruction import Instruction
from ...instructions.nvidia import HALF_TYPES
from ..tile.config import TileGemmConfig
from ..tile.operand.layout import WORD_BYTES, WORDS, OperandLayout
from ..tile.shape import CHUNK_BYTES, M16

FRAGMENT_WORDS = 4  # of a thread, of 16 rows and 32 bytes of k
CHUNKS = 2  # of 32 bytes of k


class _Registers:
    """Registers of a warp's fragments of an operand.

    Parameters
    ----------
    is_a
        Whether the operand is A.
    slots
        How many steps of K they have room for.
    size
        Elements of a lane, of 16 rows or columns in a step.
    held
        Type of the elements.
    """

    def __init__(
        self, config: TileGemmConfig, is_a: bool, slots: int, size: int, held: str
    ) -> None:
        self._warp = config.tile.warp_m if is_a else config.tile.warp_n
        self._count = self._warp // M16
        self._size = size
        self.buffer = local("a_frag" if is_a else "b_frag", [slots * self._count * size], held)


class OperandFragments(_Registers):
    """Fragments that a warp multiplies, of A or of B, loaded from its tile in shared memory.

    a k16 is 32 bytes: 16 terms of half types, 32 of bytes, 8 of float32
    slot s, 16 rows of M or N:    ldmatrix.x4 of a k16, transposed of rows of M or N
    float32, rows of M or N:      word by word: ldmatrix transposes halves alone
    """

    def __init__(
        self, config: TileGemmConfig, layout: OperandLayout, is_a: bool, slots: int
    ) -> None:
        self._config, self._layout, self._is_a = config, layout, is_a
        # Bytes are held in words: the addresses of registers are those of words.
        is_half = config.problem.a_dtype in HALF_TYPES
        size = FRAGMENT_WORDS * (2 if is_half else 1)
        super().__init__(config, is_a, slots, size, config.problem.a_dtype if is_half else "uint32")

    def of_16(self, slot: int, number: ir.Expr) -> ir.Expr:
        """Return the registers of 16 rows or columns of a warp."""
        return load(self.buffer, [(slot * self._count + number) * self._size])

    def of_8(self, slot: int, number: ir.Expr) -> ir.Expr:
        """Return the registers of 8 columns of a warp."""
        return load(self.buffer, [slot * self._count * self._size + number * (self._size // 2)])

    def load_k16(
        self,
        thread: ir.Expr,
        warp: ir.Expr,
        step: ir.Expr,
        slot: int,
        tile: tuple[ir.Var, ir.Expr],
    ) -> tirx.Stmt:
        """Load a warp's fragments of a k16.

        Parameters
        ----------
        warp
            The warp's number along M or N.
        step
            The k16's number in the tile.
        tile
            Shared memory, and the word of it where the tile begins.
        """
        shared, start = tile
        first = warp * self._warp
        has_words = (
            self._config.problem.item_bytes == WORD_BYTES and not self._layout.is_k_contiguous
        )

        def one(i: ir.Expr) -> tirx.Stmt:
            if has_words:
                return self._load_words(thread, first, step, slot, i, tile)
            word = self._lane_word(thread, first + i * M16, step)
            row = load(shared, [start + word])
            return ldmatrix_x4(self.of_16(slot, i), row, not self._layout.is_k_contiguous)

        return unrolled("i", self._count, one)

    def _lane_word(self, thread: ir.Expr, first: ir.Expr, step: ir.Expr) -> ir.Expr:
        """Return the word of the row that a lane passes to ldmatrix.

        The four matrices are in the order of the registers of an mma: of A the lower k of rows 0 to
        7 and 8 to 15, then the upper k; of B the lower and upper k of each eight columns.
        """
        lane = lane_of(thread)
        row = tirx.floormod(lane, 8)
        high, high_k = tirx.floormod(tirx.floordiv(lane, 8), 2), tirx.floordiv(lane, 16)
        if not self._is_a:
            high, high_k = high_k, high
        by = self._layout.swizzle(row)
        if self._layout.is_k_contiguous:
            line, chunk = first + high * 8 + row, step * CHUNKS + high_k
        else:
            line = step * self._config.problem.k_step + high_k * 8 + row
            chunk = tirx.floordiv(first, self._config.problem.chunk) + high
        return (line * self._layout.row_chunks + exchanged(chunk, by)) * WORDS

    def _load_words(
        self,
        thread: ir.Expr,
        first: ir.Expr,
        step: ir.Expr,
        slot: int,
        i: ir.Expr,
        tile: tuple[ir.Var, ir.Expr],
    ) -> tirx.Stmt:
        """Load a fragment of 16 rows of float32 that rows of a tile have along M or N.

        In the order of the registers of an mma, of B for each eight columns.
        """
        shared, start = tile
        mma = self._config.problem.mma
        assert mma.b is not None
        fragment = mma.a if self._is_a else mma.b.transposed  # rows of M or N, columns of K
        row, k = fragment.of_lane(lane_of(thread))
        size = CHUNK_BYTES // WORD_BYTES
        stmts = []
        for number in range(FRAGMENT_WORDS):
            n8, register = divmod(number, fragment.per_lane)
            down, right = fragment.of_register(register)
            line = step * self._config.problem.k_step + right + k
            column = first + i * M16 + (n8 * mma.n + down) + row
            chunk = exchanged(tirx.floordiv(column, size), self._layout.swizzle(line))
            word = (line * self._layout.row_chunks + chunk) * size + tirx.floormod(column, size)
            to = load(self.buffer, [(slot * self._count + i) * self._size + number])
            stmts.append(load_shared(to, load(shared, [start + word]), WORD_BYTES))
        return sequence(stmts)


class WaveFragments(_Registers):
    """Fragments of AMD's matrix instructions, loaded from a tile in LDS, 16 bytes at a time.

    An instruction wants of each lane a few contiguous terms of a row, which the lanes of a row
    share out: four halves of MFMA, eight bytes. Which terms of a step these are does not matter to
    the sum, as long as A and B agree. So a lane takes whole chunks: in a step, lane ``16 * group +
    row`` has chunk ``group`` of its row, for as many instructions as that lasts.

        MFMA    of a step of 64 bytes, 4 groups     halves: 2 instructions, of the chunk's halves
        WMMA    of 32 bytes, both halves of a wave  two chunks, all terms of one instruction

    The sums are those of C transposed: B stands for A, so that a lane has four columns of a row.
    """

    def __init__(
        self, config: TileGemmConfig, layout: OperandLayout, is_a: bool, slots: int
    ) -> None:
        problem = config.problem
        self._layout, self._mma, self._chunk = layout, problem.mma, problem.chunk
        self._groups = self._mma.k // self._mma.k_per_lane
        held = problem.moves.held_as(problem.a_dtype if is_a else problem.b_dtype)
        super().__init__(config, is_a, slots, problem.k_step // self._groups, held)

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


class OperandLoads(Protocol):
    """Fragments of an operand: see :class:`OperandFragments`."""

    def load_k16(
        self, thread: ir.Expr, warp: ir.Expr, step: ir.Expr, slot: int, tile: tuple[ir.Var, ir.Expr]
    ) -> tirx.Stmt:
        """Load a warp's fragments of a step."""


class Fragments(Protocol):
    """Fragments of A and of B."""

    buffers: list[ir.Var]  # registers
    instructions: int  # instructions of each pair of fragments in a step

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
        sums
            The first of a thread's accumulators; of split float32 also the first of small ones.
        slot, number
            Of the registers, and of the instruction in the step.
        i, j
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
