"""Copies of an operand's tiles from global to shared memory, in chunks of 16 bytes.

    chunk (row, c) of a tile          rows of K for an operand that is contiguous along K, and for
                                      bytes, which ldmatrix cannot transpose; of M or N otherwise;
                                      place c ^ swizzle(row)
    loaded as it is:                  cp.async
    the same, zero around an image:   cp.async under the condition of the chunk: implicit GEMM
    the same, rows of 8 or 4 bytes:   two or four cp.async for a chunk, adjacent ones by adjacent
                                      threads
    the same, halves of any address:  loads of aligned words, shifted, one store
    computed (prologue, dequantized): vector loads, a chunk in registers, one store
    computed and unaligned, padded:   element loads under conditions, one store

Terms beyond K are zero. Rows beyond M or N, whose sums are not stored, are zero or repeat the last
one. Copies make them zero: with copies of the last row for 16 of 64 rows, M 48, N 14336, K 4096
took 45 us on an H200, and takes 33, as not all blocks ask L2 for one line.
"""

from __future__ import annotations

from tvm import ir, sym, tirx

from ...core.expressions import load
from ...core.loops import (
    constant,
    coordinates,
    index,
    local,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from ..gpu.cp_async import copy_16, copy_narrow
from ..gpu.register_buffers import RegisterBuffers
from ..gpu.shared_tiles import CHUNK_BYTES, store_shared
from ..gpu.shifted_loads import ELEMENTS, load_words, shift_words
from ..gpu.swizzle import exchanged, swizzle
from .chunk_layout import chunk_layout
from .tile_gemm_config import TileGemmConfig, axis_values, is_plain
from .window_copies import WindowCopies

WORD_BYTES = 4
WORDS = CHUNK_BYTES // WORD_BYTES


class OperandTile:
    """Tiles of A or of B.

    Parameters
    ----------
    cut : TileGemmConfig
        The product.
    is_a : bool
        Whether the operand is A.

    Attributes
    ----------
    is_k_contiguous : bool
        Whether rows of a tile are of K.
    row_chunks : int
        Chunks of a row.
    is_copied : bool
        Whether it is loaded as it is, by cp.async.
    is_gathered : bool
        Whether it is loaded by elements.
    is_shifted : bool
        Whether unaligned rows are loaded as words, and shifted.
    lanes : int
        Elements that a copy has: a chunk's unless rows are unaligned.
    words : int
        Size of a tile in shared memory, in 32-bit words.
    buffers : list of Var
        Registers on the way.
    by_address : list of Var
        Those of which TVM sees addresses alone.
    """

    def __init__(self, cut: TileGemmConfig, is_a: bool) -> None:
        self._cut = cut
        view = cut if is_a else cut.interleaved()
        self._expr = view.a if is_a else view.b
        self._dtype = cut.a_dtype if is_a else cut.b_dtype
        self._chunk, self._parts = cut.chunk, 1 if is_a else cut.parts
        self._axes = view.m_axes if is_a else view.n_axes
        self._block = cut.block_m if is_a else cut.block_n
        self._extent = product([a.extent for a in self._axes])
        orders = [(True, cut.k_axes), (False, self._axes)]
        orders = orders[: 2 if cut.item_bytes > 1 else 1]  # bytes are not transposed
        layout = chunk_layout(cut, self._expr, orders if is_a else orders[::-1])
        self.is_k_contiguous, self.lanes, self._vector = layout.is_k, layout.lanes, layout.vector
        self._values, vectors, self.is_shifted = layout.values, layout.vectors, layout.is_shifted
        across = cut.block_k if self.is_k_contiguous else self._block
        self.row_chunks = across // self._chunk
        self.words = self._block * cut.block_k * cut.item_bytes // WORD_BYTES
        self._copies = self._block * cut.block_k // self.lanes
        self._each = -(-self._copies // cut.threads)
        self._has_all = self._copies % cut.threads == 0
        self._guard = layout.guard
        is_loaded = is_plain(self._expr) or self._guard is not None
        self.is_copied = self._values is not None and len(vectors) == 1 and is_loaded
        self.is_gathered = self._values is None and not self.is_shifted
        self._first = vectors[0].first if self.is_copied else None
        self._registers = None
        self._window: WindowCopies | None = None
        self.buffers: list[ir.Var] = []
        self.by_address: list[ir.Var] = []
        if self._first is not None and self._guard is not None and self.is_k_contiguous:
            per_tap = int(cut.k_axes[-1].extent) // self.lanes
            self._window = WindowCopies.of(
                self._first, self._guard, self._axes, self._vector,
                cut.k // self.lanes, per_tap, self._each,
            )  # fmt: skip
            self.buffers += [] if self._window is None else self._window.buffers
        if not self.is_copied:
            name = "a" if is_a else "b"
            size = self._chunk * (1 if self._values is not None else self._each)
            if self.is_shifted:
                self._words = local(f"{name}_words", [self._each * ELEMENTS], self._dtype)
                self.buffers.append(self._words)
                self.by_address.append(self._words)
                size = self._chunk
            self._staged = local(f"{name}_chunk", [size], self._dtype)
            self.buffers.append(self._staged)
            self.by_address += [self._staged] if self.is_shifted else []
            if self._values is not None:
                self._registers = RegisterBuffers(vectors, self._each)
                self.buffers += self._registers.arrays

    def prepare(self, thread: ir.Expr, where: dict[ir.Var, ir.Expr], first: ir.Expr) -> tirx.Stmt:
        """Compute what all tiles of a block have in common; parameters as of :meth:`begin`."""
        window = self._window
        if window is None:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            row, column, _ = self._place(i, thread)
            there = where | axis_values(self._axes, self._row(first + row))
            return window.prepare(i, there, self._is_row(row, column, first))

        return unrolled("chunk", self._each, one)

    def begin(
        self,
        thread: ir.Expr,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        k_tile: ir.Expr,
        to: tuple[ir.Var, ir.Expr],
    ) -> tirx.Stmt:
        """Begin to copy a tile: issue copies, or load into registers.

        Parameters
        ----------
        thread : Expr
            The thread.
        where : mapping of Var to Expr
            The values of the other axes.
        first : Expr
            The first row of A, or column of B.
        k_tile : Expr
            The tile's number along K.
        to : (Var, Expr)
            Shared memory, and the word of it where the tile begins.
        """

        def one(i: ir.Expr) -> tirx.Stmt:
            row, column, inside = self._place(i, thread)
            there, is_k_inside = self._source(row, column, first, k_tile)
            if self._first is not None:
                source = substitute(self._first, {**where, **there})
                place = load(to[0], [to[1] + self._word(row, column)])
                is_inside = tirx.all(is_k_inside, self._is_row(row, column, first))
                if self._window is not None:
                    source, guard = self._window.at(i, there[self._vector])
                    is_inside = tirx.all(is_k_inside, guard)
                elif self._guard is not None:
                    guard = substitute(self._guard, {**where, **there})
                    is_inside = tirx.all(is_inside, guard)
                if self.lanes == self._chunk:
                    stmt = copy_16(place, source, is_inside)
                else:
                    stmt = copy_narrow(place, source, self.lanes * self._cut.item_bytes, is_inside)
            elif self._registers is not None:
                stmt = self._registers.fill(i, {**where, **there})
                stmt = when(is_k_inside, stmt)
            elif self.is_shifted:
                source, count = self._unaligned(where, row, column, first, k_tile)
                stmt = load_words(load(self._words, [i * ELEMENTS]), source, count)
            else:
                stmt = self._load_elements(i, where, row, column, first, k_tile)
            return when(inside, stmt)

        return unrolled("chunk", self._each, one)

    def finish(
        self,
        thread: ir.Expr,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        k_tile: ir.Expr,
        to: tuple[ir.Var, ir.Expr],
    ) -> tirx.Stmt:
        """Store what :meth:`begin` loaded into registers."""
        if self.is_copied:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            row, chunk, inside = self._place(i, thread)
            place = load(to[0], [to[1] + self._word(row, chunk)])
            if self.is_shifted:
                source, _ = self._unaligned(where, row, chunk, first, k_tile)
                held, chunk_of = load(self._words, [i * ELEMENTS]), load(self._staged, [index(0)])
                stmts = [shift_words(chunk_of, held, source), store_shared(place, chunk_of, 16)]
                return when(inside, sequence(stmts))
            if self._values is None or self._registers is None:
                return when(inside, store_shared(place, load(self._staged, [i * self._chunk]), 16))
            there, is_k_inside = self._source(row, chunk, first, k_tile)
            values, zero = [], tirx.const(0, self._dtype)
            for value in self._values:
                values.append(substitute(self._registers.values(value, i), {**where, **there}))
            stores = [tirx.BufferStore(self._staged, v, [n]) for n, v in enumerate(values)]
            zeros = [tirx.BufferStore(self._staged, zero, [n]) for n in range(self._chunk)]
            made: tirx.Stmt = sequence(stores)
            if not sym.Analyzer().can_prove(is_k_inside):
                made = tirx.IfThenElse(is_k_inside, made, sequence(zeros))
            stored = store_shared(place, load(self._staged, [index(0)]), 16)
            return when(inside, sequence([made, stored]))

        return unrolled("chunk", self._each, one)

    def _place(self, i: ir.Expr, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Give the row and column of a thread's i-th copy, and whether there is one."""
        flat = i * self._cut.threads + thread
        per_chunk = self._chunk // self.lanes
        row, column = coordinates(flat, [index(1), self.row_chunks * per_chunk])
        if self._parts > 1 and not self.is_k_contiguous:
            # Chunks of the parts alternate in a tile, not among neighbouring threads: requests of
            # half a line, each of which prefetches a whole one, read a weight twice from memory.
            sizes = [self._parts, self.row_chunks // self._parts, per_chunk]
            part, number, in_chunk = coordinates(column, sizes)
            column = (number * self._parts + part) * per_chunk + in_chunk
        return row, column, tirx.const(True) if self._has_all else flat < self._copies

    def _word(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        chunk, part = coordinates(column, [index(1), self._chunk // self.lanes])
        place = (row * self.row_chunks + exchanged(chunk, self.swizzle(row))) * WORDS
        return place + part * (self.lanes * self._cut.item_bytes // WORD_BYTES)

    def swizzle(self, row: ir.Expr) -> ir.Expr:
        """Give what the chunks of a row are exchanged by.

        Four rows of k whose words are loaded one by one, eight of each, lie in all banks.
        """
        has_words = self._cut.item_bytes == WORD_BYTES and not self.is_k_contiguous
        return swizzle(row * 2 if has_words else row, self.row_chunks)

    def _source(
        self, row: ir.Expr, column: ir.Expr, first: ir.Expr, k_tile: ir.Expr
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Give the vector and the axes of a copy, and whether it is inside of K."""
        cut, inside = self._cut, tirx.const(True)
        if self.is_k_contiguous:
            vector = k_tile * (cut.block_k // self.lanes) + column
            if cut.k % (cut.block_k * cut.split_k):
                inside = vector < cut.k // self.lanes
                vector = tirx.min(vector, cut.k // self.lanes - 1)
            return {self._vector: vector} | axis_values(self._axes, self._row(first + row)), inside
        k = k_tile * cut.block_k + row
        if cut.k % (cut.block_k * cut.split_k):
            inside = k < cut.k
            k = tirx.min(k, cut.k - 1)
        vector = tirx.floordiv(first, self.lanes) + column
        vectors = tirx.floordiv(self._extent, self.lanes)
        if not self._is_exact():
            vector = tirx.min(vector, vectors - 1)
        return {self._vector: vector} | axis_values(cut.k_axes, k), inside

    def _load_elements(
        self,
        i: ir.Expr,
        where: dict[ir.Var, ir.Expr],
        row: ir.Expr,
        chunk: ir.Expr,
        first: ir.Expr,
        k_tile: ir.Expr,
    ) -> tirx.Stmt:
        """Load the elements of a chunk one by one, those beyond K as zeros."""
        cut, stmts = self._cut, []
        for lane in range(self._chunk):
            place = chunk * self._chunk + lane
            k_in_tile, own = (place, row) if self.is_k_contiguous else (row, place)
            k = k_tile * cut.block_k + k_in_tile
            there = axis_values(cut.k_axes, k) | axis_values(self._axes, self._row(first + own))
            value = substitute(self._expr, {**where, **there})
            if cut.k % (cut.block_k * cut.split_k):
                zero = tirx.const(0, self._dtype)
                value = tirx.if_then_else(k < cut.k, value, zero)
            stmts.append(tirx.BufferStore(self._staged, value, [i * self._chunk + lane]))
        return sequence(stmts)

    def _unaligned(
        self,
        where: dict[ir.Var, ir.Expr],
        row: ir.Expr,
        chunk: ir.Expr,
        first: ir.Expr,
        k_tile: ir.Expr,
    ) -> tuple[ir.TensorLoad, ir.Expr]:
        """Give the first element of a chunk, and how many exist."""
        cut, own = self._cut, self._extent
        k = k_tile * cut.block_k + (chunk * self._chunk if self.is_k_contiguous else row)
        place = first + (row if self.is_k_contiguous else chunk * self._chunk)
        along, across = (k, place) if self.is_k_contiguous else (place, k)
        most, rows = (cut.k, own) if self.is_k_contiguous else (own, cut.k)
        left = tirx.max(tirx.min(most - along, index(self._chunk)), index(0))
        count = tirx.Select(across < rows, left, index(0))
        k, place = tirx.min(k, cut.k - 1), tirx.min(place, own - 1)
        there = axis_values(cut.k_axes, k) | axis_values(self._axes, place)
        return substitute(self._expr, {**where, **there}), count

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
        return extent is not None and extent % self._block == 0
