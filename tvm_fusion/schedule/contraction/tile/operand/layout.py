"""Layout of an operand's tile in shared memory, and which of its chunks a thread copies.

chunk (row, c) of a tile    rows of K for an operand that is contiguous along K, and for bytes,
                            which ldmatrix cannot transpose; of M or N otherwise;
                            place c ^ swizzle(row)
copy i of a thread          a chunk of 16 bytes; parts of 8 or 4 bytes where rows are multiples
                            of those alone, adjacent ones by adjacent threads
"""

from typing import NamedTuple

from tvm import ir, tirx

from .....core.tir.loops import constant, coordinates, index, product, substitute
from ....gpu.memory.shared_tiles import CHUNK_BYTES
from ....gpu.memory.swizzle import exchanged, swizzle
from ..config import TileGemmConfig
from ..grid import axis_values
from .chunks import OperandChunks

WORD_BYTES = 4
WORDS = CHUNK_BYTES // WORD_BYTES


class TilePosition(NamedTuple):
    """Where a tile of an operand is."""

    where: dict[ir.Var, ir.Expr]  # the values of the axes of neither K nor rows
    first: ir.Expr  # the first row of A, or column of B
    k_tile: ir.Expr  # the tile's number along K


class OperandLayout:
    """Layout of the tiles of A or of B.

    Parameters
    ----------
    is_a
        Whether the operand is A.

    Attributes
    ----------
    is_k_contiguous : bool
        Whether rows of a tile are of K.
    is_copied : bool
        Whether it is loaded as it is, by cp.async.
    is_gathered : bool
        Whether it is loaded by elements.
    is_planar : bool
        Whether neighbouring threads load these of neighbouring rows.
    is_shifted, is_unaligned : bool
        Whether unaligned rows are loaded as words, and shifted; or as they are.
    lanes : int
        Elements that a copy has: a chunk's unless rows are unaligned.
    moves : VectorMoves
        How threads move vectors.
    words : int
        Size of a tile in shared memory, in 32-bit words.
    """

    def __init__(self, config: TileGemmConfig, is_a: bool) -> None:
        self._config, self._is_a, self.moves = config, is_a, config.problem.moves
        chunks = OperandChunks(config.problem, is_a)
        layout = chunks.layout
        self._expr, self._axes, self._layout = chunks.expr, chunks.axes, layout
        is_apart = not is_a and config.problem.panel == config.problem.mma.n
        self._chunk, self._parts = config.problem.chunk, config.problem.parts if is_apart else 1
        self._block = config.tile.block_m if is_a else config.tile.block_n
        self._extent = product([a.extent for a in self._axes])
        self.is_k_contiguous, self.lanes, self._vector = layout.is_k, layout.lanes, layout.vector
        self.is_copied, self.is_gathered = chunks.is_copied, chunks.is_gathered
        self.is_planar = chunks.is_planar
        self.is_shifted, self.is_unaligned = layout.is_shifted, layout.is_unaligned
        across = config.tile.block_k if self.is_k_contiguous else self._block
        self.row_chunks = across // self._chunk
        self.words = self._block * config.tile.block_k * config.problem.item_bytes // WORD_BYTES
        self._copies = self._block * config.tile.block_k // self.lanes
        self._each = -(-self._copies // config.threads)

    def _place(self, i: ir.Expr, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Return the row and column of a thread's i-th copy, and whether there is one."""
        flat = i * self._config.threads + thread
        per_chunk = self._chunk // self.lanes
        if self.is_planar:
            column, row = coordinates(flat, [index(1), self._block])
        else:
            row, column = coordinates(flat, [index(1), self.row_chunks * per_chunk])
        if self._parts > 1 and not self.is_k_contiguous:
            # Chunks of the parts alternate in a tile, not among neighbouring threads: requests of
            # half a line, each of which prefetches a whole one, read a weight twice from memory.
            sizes = [self._parts, self.row_chunks // self._parts, per_chunk]
            part, number, in_chunk = coordinates(column, sizes)
            column = (number * self._parts + part) * per_chunk + in_chunk
        has_all = self._copies % self._config.threads == 0
        return row, column, tirx.const(True) if has_all else flat < self._copies

    def _word(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        chunk, part = coordinates(column, [index(1), self._chunk // self.lanes])
        place = (row * self.row_chunks + exchanged(chunk, self.swizzle(row))) * WORDS
        return place + part * (self.lanes * self._config.problem.item_bytes // WORD_BYTES)

    def swizzle(self, row: ir.Expr) -> ir.Expr:
        """Return the XOR mask of a row's chunk indices.

        Four rows of k whose words are loaded one by one, eight of each, lie in all banks.
        """
        has_words = self._config.problem.item_bytes == WORD_BYTES and not self.is_k_contiguous
        return swizzle(row * 2 if has_words else row, self.row_chunks)

    def _source(
        self, tile: TilePosition, row: ir.Expr, column: ir.Expr
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Return the vector and the axes of a copy, and whether it is inside of K."""
        config, inside, first, k_tile = self._config, tirx.const(True), tile.first, tile.k_tile
        if self.is_k_contiguous:
            vector = k_tile * (config.tile.block_k // self.lanes) + column
            if config.problem.k % (config.tile.block_k * config.tile.split_k):
                inside = vector < config.problem.k // self.lanes
                vector = tirx.min(vector, config.problem.k // self.lanes - 1)
            return {self._vector: vector} | axis_values(self._axes, self._row(first + row)), inside
        k = k_tile * config.tile.block_k + row
        if config.problem.k % (config.tile.block_k * config.tile.split_k):
            inside = k < config.problem.k
            k = tirx.min(k, config.problem.k - 1)
        vector = tirx.floordiv(first, self.lanes) + column
        vectors = tirx.floordiv(self._extent, self.lanes)
        if not self._is_exact():
            vector = tirx.min(vector, vectors - 1)
        return {self._vector: vector} | axis_values(config.problem.k_axes, k), inside

    def _unaligned(
        self, tile: TilePosition, row: ir.Expr, chunk: ir.Expr
    ) -> tuple[ir.TensorLoad, ir.Expr]:
        """Return the first element of a chunk, and how many exist."""
        config, own = self._config, self._extent
        in_tile = chunk * self._chunk if self.is_k_contiguous else row
        k = tile.k_tile * config.tile.block_k + in_tile
        place = tile.first + (row if self.is_k_contiguous else chunk * self._chunk)
        along, across = (k, place) if self.is_k_contiguous else (place, k)
        most, rows = (config.problem.k, own) if self.is_k_contiguous else (own, config.problem.k)
        left = tirx.max(tirx.min(most - along, index(self._chunk)), index(0))
        count = tirx.Select(across < rows, left, index(0))
        k, place = tirx.min(k, config.problem.k - 1), tirx.min(place, own - 1)
        there = axis_values(config.problem.k_axes, k) | axis_values(self._axes, place)
        return substitute(self._expr, {**tile.where, **there}), count

    def _row(self, row: ir.Expr) -> ir.Expr:
        """Repeat the last row, or column, for those beyond."""
        return row if self._is_exact() else tirx.min(row, self._extent - 1)

    def _is_row(self, row: ir.Expr, column: ir.Expr, first: ir.Expr) -> ir.Expr:
        """Whether a copy is of a row, or of columns, that exist."""
        if self._is_exact():
            return tirx.const(True)
        return first + (row if self.is_k_contiguous else column * self.lanes) < self._extent

    def _is_exact(self) -> bool:
        extent = constant(self._extent)
        is_aligned = self._config.problem.ragged is None or not self._is_a
        return is_aligned and extent is not None and extent % self._block == 0
