"""Fragments of an operand in registers, loaded from its tile in shared memory.

a k16 is 32 bytes: 16 terms of half types, 32 of bytes, 8 of float32
slot s, 16 rows of M or N:    ldmatrix.x4 of a k16, transposed of rows of M or N
float32, rows of M or N:      word by word: ldmatrix transposes halves alone

The registers of two slots let a warp load the next k16 while it multiplies one.
"""

from __future__ import annotations

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import local, sequence, unrolled
from ...gpu.ldmatrix import ldmatrix_x4
from ...gpu.shared_tiles import load_shared
from ...gpu.swizzle import exchanged
from ...gpu.warp import lane_of
from ...instructions.nvidia import HALF_TYPES
from ..tile.config import TileGemmConfig
from ..tile.operand_layout import WORD_BYTES, WORDS, OperandLayout
from ..tile.shape import CHUNK_BYTES, M16

FRAGMENT_WORDS = 4  # of a thread, of 16 rows and 32 bytes of k
CHUNKS = 2  # of 32 bytes of k


class OperandFragments:
    """Fragments that a warp multiplies, of A or of B.

    Parameters
    ----------
    is_a : bool
        Whether the operand is A.
    slots : int
        How many k16 registers have room for.

    Attributes
    ----------
    buffer : Var
        Registers.
    """

    def __init__(
        self, config: TileGemmConfig, layout: OperandLayout, is_a: bool, slots: int
    ) -> None:
        self._config, self._layout, self._is_a = config, layout, is_a
        self._warp = config.tile.warp_m if is_a else config.tile.warp_n
        self._count = self._warp // M16
        # Bytes are held in words: the addresses of registers are those of words.
        is_half = config.problem.a_dtype in HALF_TYPES
        self._size = FRAGMENT_WORDS * (2 if is_half else 1)
        held = config.problem.a_dtype if is_half else "uint32"
        name = "a_frag" if is_a else "b_frag"
        self.buffer = local(name, [slots * self._count * self._size], held)

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
        warp : Expr
            The warp's number along M or N.
        step : Expr
            The k16's number in the tile.
        tile : (Var, Expr)
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
