"""Copies of an operand that lies along M or N in memory, to tiles whose rows are of K.

    begin    for each of a chunk's terms:  held[term] = some adjacent rows        global, vectors
    finish   for each of those rows:       chunk = its terms of held              registers
                                           tile[row, chunk] = chunk               16 bytes, shared

For instructions that want the terms of a row in a lane, where none transposes what it loads from
shared memory: AMD's. A thread has as many rows as leave work to all threads, four bytes at least.
"""

from collections.abc import Callable

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import coordinates, index, local, sequence, substitute, unrolled, when
from ....gpu.memory.shared_tiles import CHUNK_BYTES
from ..config import TileGemmConfig
from ..grid import axis_values
from .layout import WORD_BYTES, OperandLayout, TilePosition


class TurnedOperandTile(OperandLayout):
    """Tiles of A or of B; attributes and methods as of OperandTile."""

    def __init__(self, config: TileGemmConfig, is_a: bool) -> None:
        super().__init__(config, is_a)
        self.is_k_contiguous, self.row_chunks = True, config.tile.block_k // self._chunk
        item_bytes, rows = config.problem.item_bytes, self.lanes
        while rows * item_bytes > WORD_BYTES and self._units(rows) < config.threads:
            rows //= 2
        self._rows = rows
        self._each = -(-self._units(rows) // config.threads)
        dtype = self.moves.held_as(config.problem.a_dtype if is_a else config.problem.b_dtype)
        name = "a" if is_a else "b"
        self._held = local(f"{name}_held", [self._each * self._chunk * rows], dtype)
        self._turned = local(f"{name}_chunk", [self._chunk], dtype)
        self.buffers = [self._held, self._turned]
        self.by_address: list[ir.Var] = []

    def _units(self, rows: int) -> int:
        return self._block // rows * self.row_chunks

    def prepare(self, _thread: ir.Expr, _where: object, _first: ir.Expr) -> tirx.Stmt:
        """Compute nothing beforehand."""
        return sequence([])

    def begin(self, thread: ir.Expr, tile: TilePosition, _to: object) -> tirx.Stmt:
        """Load a tile into registers; the last one of unaligned rows by elements."""

        def all_units(load_term: Callable[..., tirx.Stmt]) -> tirx.Stmt:
            def one(i: ir.Expr) -> tirx.Stmt:
                chunk, first, inside = self._unit(i, thread)

                def term(n: ir.Expr) -> tirx.Stmt:
                    place = (i * self._chunk + n) * self._rows
                    return load_term(tile, tile.first + first, chunk * self._chunk + n, place)

                return when(inside, unrolled("term", self._chunk, term))

            return unrolled("chunk", self._each, one)

        vectors = all_units(self._load_vector)
        if not self.is_unaligned or self._is_exact():
            return vectors
        is_whole = tile.first + self._block <= self._extent
        return tirx.IfThenElse(is_whole, vectors, all_units(self._load_elements))

    def _load_vector(
        self, tile: TilePosition, row: ir.Expr, k: ir.Expr, place: ir.Expr
    ) -> tirx.Stmt:
        """Load a term of adjacent rows, zeros beyond K."""
        if not (self.is_unaligned or self._is_exact()):
            row = tirx.min(row, self._extent - self._rows)
        source, is_term = self._element(tile, row, k)
        size = self._rows * self._config.problem.item_bytes
        return self.moves.load_or_zero(load(self._held, [place]), source, size, is_term)

    def _load_elements(
        self, tile: TilePosition, row: ir.Expr, k: ir.Expr, place: ir.Expr
    ) -> tirx.Stmt:
        stores = []
        for n in range(self._rows):
            source, is_term = self._element(tile, tirx.min(row + n, self._extent - 1), k)
            held = self.moves.held(source)
            zero = tirx.const(0, str(held.ty.dtype))
            value = tirx.if_then_else(is_term, held, zero)
            stores.append(tirx.BufferStore(self._held, value, [place + n]))
        return sequence(stores)

    def _element(
        self, tile: TilePosition, row: ir.Expr, k_in_tile: ir.Expr
    ) -> tuple[ir.TensorLoad, ir.Expr]:
        """Return an element, and whether it is one of K."""
        problem, block_k = self._config.problem, self._config.tile.block_k
        k, is_term = tile.k_tile * block_k + k_in_tile, tirx.const(True)
        if problem.k % (block_k * self._config.tile.split_k):
            is_term, k = k < problem.k, tirx.min(k, problem.k - 1)
        there = axis_values(self._axes, row) | axis_values(problem.k_axes, k)
        return substitute(self._expr, {**tile.where, **there}), is_term

    def finish(self, thread: ir.Expr, _tile: TilePosition, to: tuple[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Store what :meth:`begin` loaded, a chunk for each row."""

        def one(i: ir.Expr) -> tirx.Stmt:
            chunk, first, inside = self._unit(i, thread)

            def row(n: ir.Expr) -> tirx.Stmt:
                def term(k: ir.Expr) -> tirx.Stmt:
                    value = load(self._held, [(i * self._chunk + k) * self._rows + n])
                    return tirx.BufferStore(self._turned, value, [k])

                place = load(to[0], [to[1] + self._word(first + n, chunk * self._parts_of_chunk)])
                whole = load(self._turned, [index(0)])
                stored = self.moves.store(place, whole, CHUNK_BYTES)
                return sequence([unrolled("term", self._chunk, term), stored])

            return when(inside, unrolled("row", self._rows, row))

        return unrolled("chunk", self._each, one)

    @property
    def _parts_of_chunk(self) -> int:
        return self._chunk // self.lanes

    def _unit(self, i: ir.Expr, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Return the chunk and the first row of a thread's i-th unit, and whether there is one."""
        flat = i * self._config.threads + thread
        chunk, group = coordinates(flat, [index(1), self._block // self._rows])
        has_all = self._units(self._rows) % self._config.threads == 0
        inside = tirx.const(True) if has_all else flat < self._units(self._rows)
        return chunk, group * self._rows, inside
