"""Copies of an operand's tiles from global to shared memory, in chunks of 16 bytes.

    loaded as it is:                  cp.async; without, vector loads and stores between products
    the same, zero around an image:   cp.async under the condition of the chunk: implicit GEMM
    the same, rows of 8 or 4 bytes:   two or four cp.async for a chunk
    the same, halves of any address:  loads of aligned words, shifted, one store
    computed (prologue, dequantized): vector loads, a chunk in registers, one store; int4 and int8
                                      by pairs (dequantize/chunk)
    computed and unaligned, padded:   element loads under conditions, one store

Terms beyond K are zero. Rows beyond M or N, whose sums are not stored, are zero or repeat the last
one. Copies make them zero: with copies of the last row for 16 of 64 rows, M 48, N 14336, K 4096
took 45 us on an H200, and takes 33, as not all blocks ask L2 for one line.
"""

from tvm import ir, sym, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import index, local, sequence, substitute, unrolled, when
from ....gpu.memory.cp_async import copy_16, copy_narrow
from ....gpu.memory.vector_loads import ELEMENTS, load_words, shift_words
from ....gpu.registers.buffers import RegisterBuffers
from ...dequantize.chunk import Words, dequantized_words
from ..config import TileGemmConfig
from ..grid import axis_values
from ..problem import GemmProblem
from ..shape import CHUNK_BYTES
from .chunks import OperandChunks
from .layout import OperandLayout, TilePosition
from .window_copies import WindowCopies


def is_dequantized(problem: GemmProblem, is_a: bool) -> bool:
    """Whether threads compute chunks of an operand by pairs: weights of int4 or int8."""
    chunks = OperandChunks(problem, is_a)
    values = chunks.layout.values
    if chunks.is_copied or values is None or problem.is_amd:
        return False
    dtype = problem.a_dtype if is_a else problem.b_dtype
    return dequantized_words(values, RegisterBuffers(chunks.layout.vectors, 1), dtype) is not None


class OperandTile(OperandLayout):
    """Tiles of A or of B.

    Parameters
    ----------
    is_a
        Whether the operand is A.

    Attributes
    ----------
    buffers : list of Var
        Registers on the way.
    by_address : list of Var
        Those of which TVM sees addresses alone.
    """

    def __init__(self, config: TileGemmConfig, is_a: bool) -> None:
        super().__init__(config, is_a)
        layout = self._layout
        self._values, self._guard = layout.values, layout.guard
        self._dtype = config.problem.a_dtype if is_a else config.problem.b_dtype
        self._first = layout.vectors[0].first if self.is_copied else None
        self._registers = None
        self._window: WindowCopies | None = None
        self._words_of: Words | None = None
        self.buffers: list[ir.Var] = []
        self.by_address: list[ir.Var] = []
        self._held: ir.Var | None = None
        name = "a" if is_a else "b"
        if self.is_copied and not config.problem.is_async:
            held_as = self.moves.held_as(self._dtype)
            self._held = local(f"{name}_held", [self._each * self.lanes], held_as)
            self.buffers.append(self._held)
            self.by_address.append(self._held)
        if self._first is not None and self._guard is not None and self.is_k_contiguous:
            per_tap = int(config.problem.k_axes[-1].extent) // self.lanes
            self._window = WindowCopies.of(
                self._first, self._guard, self._axes, self._vector,
                config.problem.k // self.lanes, per_tap, self._each,
            )  # fmt: skip
            self.buffers += [] if self._window is None else self._window.buffers
        if not self.is_copied:
            size = self._chunk * (1 if self._values is not None else self._each)
            if self.is_shifted:
                self._words = local(f"{name}_words", [self._each * ELEMENTS], self._dtype)
                self.buffers.append(self._words)
                self.by_address.append(self._words)
                size = self._chunk
            self._staged = local(f"{name}_chunk", [size], self.moves.held_as(self._dtype))
            self.buffers.append(self._staged)
            self.by_address += [self._staged] if self.is_shifted else []
            if self._values is not None:
                self._registers = RegisterBuffers(layout.vectors, self._each)
                self.buffers += self._registers.arrays
                if not config.problem.is_amd:
                    given = (self._values, self._registers, self._dtype)
                    self._words_of = dequantized_words(*given)

    @property
    def _copy_bytes(self) -> int:
        return self.lanes * self._config.problem.item_bytes

    def prepare(self, thread: ir.Expr, where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        """Compute what all tiles of a block have in common; parameters as of TilePosition."""
        window = self._window
        if window is None:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            row, column, _ = self._place(i, thread)
            there = where | axis_values(self._axes, self._row(first + row))
            return window.prepare(i, there, self._is_row(row, column, first))

        return unrolled("chunk", self._each, one)

    def begin(self, thread: ir.Expr, tile: TilePosition, to: tuple[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Begin to copy a tile: issue copies, or load into registers.

        Parameters
        ----------
        to
            Shared memory, and the word of it where the tile begins.
        """

        def one(i: ir.Expr) -> tirx.Stmt:
            row, column, inside = self._place(i, thread)
            there, is_k_inside = self._source(tile, row, column)
            if self._first is not None:
                source = substitute(self._first, {**tile.where, **there})
                place = load(to[0], [to[1] + self._word(row, column)])
                is_inside = tirx.all(is_k_inside, self._is_row(row, column, tile.first))
                if self._window is not None:
                    source, guard = self._window.at(i, there[self._vector])
                    is_inside = tirx.all(is_k_inside, guard)
                elif self._guard is not None:
                    guard = substitute(self._guard, {**tile.where, **there})
                    is_inside = tirx.all(is_inside, guard)
                if self._held is not None:
                    to_held = load(self._held, [i * self.lanes])
                    stmt = self.moves.load_or_zero(to_held, source, self._copy_bytes, is_inside)
                elif self.lanes == self._chunk:
                    stmt = copy_16(place, source, is_inside)
                else:
                    stmt = copy_narrow(place, source, self._copy_bytes, is_inside)
            elif self._registers is not None:
                stmt = self._registers.fill(i, {**tile.where, **there})
                stmt = when(is_k_inside, stmt)
            elif self.is_shifted:
                source, count = self._unaligned(tile, row, column)
                stmt = load_words(load(self._words, [i * ELEMENTS]), source, count)
            else:
                stmt = self._load_elements(i, tile, row, column)
                if self.is_unaligned:
                    stmt = self._load_unaligned(i, tile, row, column, stmt)
            return when(inside, stmt)

        return unrolled("chunk", self._each, one)

    def finish(self, thread: ir.Expr, tile: TilePosition, to: tuple[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Store what :meth:`begin` loaded into registers."""
        if self.is_copied and self._held is None:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            row, chunk, inside = self._place(i, thread)
            place = load(to[0], [to[1] + self._word(row, chunk)])
            if self._held is not None:
                held = load(self._held, [i * self.lanes])
                return when(inside, self.moves.store(place, held, self._copy_bytes))
            if self.is_shifted:
                source, _ = self._unaligned(tile, row, chunk)
                held, chunk_of = load(self._words, [i * ELEMENTS]), load(self._staged, [index(0)])
                stmts = [shift_words(chunk_of, held, source), self.moves.store(place, chunk_of, 16)]
                return when(inside, sequence(stmts))
            if self._values is None or self._registers is None:
                staged = load(self._staged, [i * self._chunk])
                return when(inside, self.moves.store(place, staged, 16))
            there, is_k_inside = self._source(tile, row, chunk)
            zero = tirx.const(0, self.moves.held_as(self._dtype))
            zeros = [tirx.BufferStore(self._staged, zero, [n]) for n in range(self._chunk)]
            made = self._compute(i, {**tile.where, **there})
            if not sym.Analyzer().can_prove(is_k_inside):
                made = tirx.IfThenElse(is_k_inside, made, sequence(zeros))
            stored = self.moves.store(place, load(self._staged, [index(0)]), 16)
            return when(inside, sequence([made, stored]))

        return unrolled("chunk", self._each, one)

    def _compute(self, i: ir.Expr, where: dict[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Compute a chunk of what :meth:`begin` loaded."""
        assert self._values is not None
        assert self._registers is not None
        if self._words_of is None:
            values = [substitute(self._registers.values(v, i), where) for v in self._values]
            held = map(self.moves.held, values)
            stores = [tirx.BufferStore(self._staged, v, [n]) for n, v in enumerate(held)]
            return sequence(stores)
        stores = []
        for n, word in enumerate(self._words_of(i, where)):
            pair = tirx.reinterpret(f"{self._dtype}x2", word)
            stores.append(
                tirx.BufferStore(self._staged, pair, [tirx.Ramp(index(2 * n), index(1), 2)])
            )
        return sequence(stores)

    def _load_unaligned(
        self, i: ir.Expr, tile: TilePosition, row: ir.Expr, chunk: ir.Expr, elements: tirx.Stmt
    ) -> tirx.Stmt:
        """Load a chunk of a row that begins anywhere; of the last tile of K by elements."""
        config, to = self._config, load(self._staged, [i * self._chunk])
        source, _ = self._unaligned(tile, row, chunk)
        whole = self.moves.load_or_zero(to, source, CHUNK_BYTES, tirx.const(True))
        if config.problem.k % (config.tile.block_k * config.tile.split_k) == 0:
            return whole
        end = (tile.k_tile + 1) * config.tile.block_k
        return tirx.IfThenElse(end <= config.problem.k, whole, elements)

    def _load_elements(
        self, i: ir.Expr, tile: TilePosition, row: ir.Expr, chunk: ir.Expr
    ) -> tirx.Stmt:
        """Load the elements of a chunk one by one, those beyond K as zeros."""
        config, stmts = self._config, []
        for lane in range(self._chunk):
            place = chunk * self._chunk + lane
            k_in_tile, own = (place, row) if self.is_k_contiguous else (row, place)
            k = tile.k_tile * config.tile.block_k + k_in_tile
            own = self._row(tile.first + own)
            there = axis_values(config.problem.k_axes, k) | axis_values(self._axes, own)
            value = self.moves.held(substitute(self._expr, {**tile.where, **there}))
            if config.problem.k % (config.tile.block_k * config.tile.split_k):
                zero = tirx.const(0, self.moves.held_as(self._dtype))
                value = tirx.if_then_else(k < config.problem.k, value, zero)
            stmts.append(tirx.BufferStore(self._staged, value, [i * self._chunk + lane]))
        return sequence(stmts)
