"""Layout of an operand's tile in shared memory, and which of its chunks a thread copies.

chunk (row, c) of a tile    rows of K for an operand that is contiguous along K, and for bytes,
                            which ldmatrix cannot transpose; of M or N otherwise;
                            place c ^ swizzle(row)
copy i of a thread          a chunk of 16 bytes; parts of 8 or 4 bytes where rows are multiples
                            of those alone, adjacent ones by adjacent threads
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tvm import ir, sym, tirx

from ....core.expressions import loads, variables
from ....core.loops import constant, coordinates, index, product, substitute
from ....program.stage import Axis
from ...gpu.cp_async import NARROW_BYTES
from ...gpu.shared_tiles import CHUNK_BYTES
from ...gpu.swizzle import exchanged, swizzle
from ...gpu.vector_loads import ElementLoads, VectorLoad, resolved
from ...index.address import conditional_loads, known_step
from .config import TileGemmConfig, axis_values, is_plain, unguarded

WORD_BYTES = 4
WORDS = CHUNK_BYTES // WORD_BYTES


class TilePosition(NamedTuple):
    """Where a tile of an operand is.

    Attributes
    ----------
    where : mapping of Var to Expr
        The values of the axes of neither K nor rows.
    first : Expr
        The first row of A, or column of B.
    k_tile : Expr
        The tile's number along K.
    """

    where: dict[ir.Var, ir.Expr]
    first: ir.Expr
    k_tile: ir.Expr


class OperandLayout:
    """Layout of the tiles of A or of B.

    Parameters
    ----------
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
    """

    def __init__(self, config: TileGemmConfig, is_a: bool) -> None:
        self._config, self._is_a = config, is_a
        view = config if is_a else config.interleaved()
        self._expr = view.a if is_a else view.b
        self._chunk, self._parts = config.chunk, 1 if is_a else config.parts
        self._axes = view.m_axes if is_a else view.n_axes
        self._block = config.block_m if is_a else config.block_n
        self._extent = product([a.extent for a in self._axes])
        orders = [(True, config.k_axes), (False, self._axes)]
        orders = orders[: 2 if config.item_bytes > 1 else 1]  # bytes are not transposed
        layout = chunk_layout(config, self._expr, orders if is_a else orders[::-1])
        self._layout, self.is_shifted = layout, layout.is_shifted
        self.is_k_contiguous, self.lanes, self._vector = layout.is_k, layout.lanes, layout.vector
        is_loaded = is_plain(self._expr) or layout.guard is not None
        self.is_copied = layout.values is not None and len(layout.vectors) == 1 and is_loaded
        self.is_gathered = layout.values is None and not layout.is_shifted
        across = config.block_k if self.is_k_contiguous else self._block
        self.row_chunks = across // self._chunk
        self.words = self._block * config.block_k * config.item_bytes // WORD_BYTES
        self._copies = self._block * config.block_k // self.lanes
        self._each = -(-self._copies // config.threads)

    def _place(self, i: ir.Expr, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Return the row and column of a thread's i-th copy, and whether there is one."""
        flat = i * self._config.threads + thread
        per_chunk = self._chunk // self.lanes
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
        return place + part * (self.lanes * self._config.item_bytes // WORD_BYTES)

    def swizzle(self, row: ir.Expr) -> ir.Expr:
        """Return the XOR mask of a row's chunk indices.

        Four rows of k whose words are loaded one by one, eight of each, lie in all banks.
        """
        has_words = self._config.item_bytes == WORD_BYTES and not self.is_k_contiguous
        return swizzle(row * 2 if has_words else row, self.row_chunks)

    def _source(
        self, tile: TilePosition, row: ir.Expr, column: ir.Expr
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Return the vector and the axes of a copy, and whether it is inside of K."""
        config, inside, first, k_tile = self._config, tirx.const(True), tile.first, tile.k_tile
        if self.is_k_contiguous:
            vector = k_tile * (config.block_k // self.lanes) + column
            if config.k % (config.block_k * config.split_k):
                inside = vector < config.k // self.lanes
                vector = tirx.min(vector, config.k // self.lanes - 1)
            return {self._vector: vector} | axis_values(self._axes, self._row(first + row)), inside
        k = k_tile * config.block_k + row
        if config.k % (config.block_k * config.split_k):
            inside = k < config.k
            k = tirx.min(k, config.k - 1)
        vector = tirx.floordiv(first, self.lanes) + column
        vectors = tirx.floordiv(self._extent, self.lanes)
        if not self._is_exact():
            vector = tirx.min(vector, vectors - 1)
        return {self._vector: vector} | axis_values(config.k_axes, k), inside

    def _unaligned(
        self, tile: TilePosition, row: ir.Expr, chunk: ir.Expr
    ) -> tuple[ir.TensorLoad, ir.Expr]:
        """Return the first element of a chunk, and how many exist."""
        config, own = self._config, self._extent
        k = tile.k_tile * config.block_k + (chunk * self._chunk if self.is_k_contiguous else row)
        place = tile.first + (row if self.is_k_contiguous else chunk * self._chunk)
        along, across = (k, place) if self.is_k_contiguous else (place, k)
        most, rows = (config.k, own) if self.is_k_contiguous else (own, config.k)
        left = tirx.max(tirx.min(most - along, index(self._chunk)), index(0))
        count = tirx.Select(across < rows, left, index(0))
        k, place = tirx.min(k, config.k - 1), tirx.min(place, own - 1)
        there = axis_values(config.k_axes, k) | axis_values(self._axes, place)
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
        is_aligned = self._config.ragged is None or not self._is_a
        return is_aligned and extent is not None and extent % self._block == 0


# How a thread reads chunks of an operand's tile: 16 bytes along K, or along M or N.
#
# aligned one vector of 16, 8 or 4 bytes, which cp.async copies the same, zero around an image
# cp.async under the condition of the vector halves at any address words around them, shifted
# computed, of vectors vector loads otherwise loads of elements
HALF_BYTES = 2


class ChunkLayout(NamedTuple):
    """How chunks are read: along K or not, by vectors, shifted words, or elements.

    Attributes
    ----------
    cost : int
        Loads of a chunk.
    is_k : bool
        Whether chunks are of K.
    vector : Var
        The number of a vector along the axes.
    lanes : int
        Elements of a vector.
    values : list of Expr, optional
        Of a vector.
    vectors : sequence of VectorLoad
        What they are computed of.
    is_shifted : bool
        Whether chunks are contiguous, at any address.
    guard : Expr, optional
        Where a vector is not zero, over the axes and ``vector``.
    """

    cost: int
    is_k: bool
    vector: ir.Var
    lanes: int
    values: list[ir.Expr] | None = None
    vectors: Sequence[VectorLoad] = ()
    is_shifted: bool = False
    guard: ir.Expr | None = None


def chunk_layout(
    config: TileGemmConfig, operand: ir.Expr, orders: Sequence[tuple[bool, Sequence[Axis]]]
) -> ChunkLayout:
    """Choose how chunks are read with the fewest loads.

    Parameters
    ----------
    orders : sequence of (bool, sequence of Axis)
        Whether chunks are along K, and those axes or the ones of M or N; of equals the first.
    """
    found: list[ChunkLayout] = []
    bound = (*config.contraction.stage.axes, *config.k_axes)
    for is_k, axes in orders:
        found.append(_along(operand, tuple(axes), is_k, config.chunk, config.item_bytes, bound))
        if found[-1].cost == 1:
            break  # fewer there are not
    return min(found, key=lambda layout: layout.cost)


@lru_cache(maxsize=256)  # every tile that a product considers asks the same
def _along(
    operand: ir.Expr,
    axes: tuple[Axis, ...],
    is_k: bool,
    chunk: int,
    item_bytes: int,
    bound: tuple[Axis, ...],
) -> ChunkLayout:
    """Choose how chunks along some axes are read; ``bound`` are all axes of the product."""
    vector = tirx.Var("vector", "int64")
    extent = constant(product([a.extent for a in axes]))
    core, guard = unguarded(operand)
    if guard is not None and not is_plain(core):
        core, guard = operand, None  # computed images are gathered
    is_plain_load = is_plain(core)
    strides = [_stride(x, axes[-1]) for x in loads(operand)]
    other = ChunkLayout(chunk + sum(s != 1 for s in strides), is_k, vector, chunk)
    is_row = is_plain_load and guard is None and strides == [1] and len(axes) == 1
    if is_row and item_bytes == HALF_BYTES:
        other = ChunkLayout(chunk // 2 + 1, is_k, vector, chunk, is_shifted=True)
    if is_plain_load and _is_strided(strides, axes[-1], chunk):
        return other
    for lanes in (chunk, *(size // item_bytes for size in NARROW_BYTES)):
        if extent is None or extent % lanes:
            continue
        if guard is not None and not _is_of_vectors(guard, axes[-1], lanes):
            continue
        analyzer = _analyzer(bound)
        analyzer.bind(vector, ir.Range.from_min_extent(index(0), index(extent // lanes)))
        elements = ElementLoads(analyzer, is_copied=is_plain_load)
        found = [
            resolved(substitute(core, axis_values(axes, vector * lanes + lane)), analyzer)
            for lane in range(lanes)
        ]
        if not all(map(_may_be_hoisted, found)):
            continue
        values = [elements.read(x) for x in found]
        vectors = elements.vectors()
        if is_plain_load and len(vectors[0].elements) == lanes:
            if guard is not None:
                guard = analyzer.simplify(substitute(guard, axis_values(axes, vector * lanes)))
            return ChunkLayout(chunk // lanes, is_k, vector, lanes, values, vectors, guard=guard)
        if guard is None and lanes == chunk and any(len(v.elements) > 1 for v in vectors):
            other = ChunkLayout(len(vectors), is_k, vector, lanes, values, vectors)
    return other


def _is_strided(strides: Sequence[int | None], axis: Axis, chunk: int) -> bool:
    """Whether no two elements of a chunk along an axis can be in one vector."""
    is_whole = (constant(axis.extent) or 0) >= chunk
    return is_whole and all(s is not None and s >= chunk for s in strides)


def _may_be_hoisted(operand: ir.Expr) -> bool:
    """Whether all loads may be issued whatever conditions hold."""
    return not conditional_loads(operand) and not any(
        loads(i) for x in loads(operand) for i in x.indices
    )


def _is_of_vectors(guard: ir.Expr, axis: Axis, lanes: int) -> bool:
    """Whether a condition is the same for all elements of an aligned vector along an axis."""
    return (constant(axis.extent) or 1) % lanes == 0 and axis.var not in variables(guard)


def _analyzer(axes: Sequence[Axis]) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for axis in axes:
        extent = constant(axis.extent)
        if extent is not None:
            analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(extent)))
    return analyzer


def _stride(read: ir.TensorLoad, axis: Axis) -> int | None:
    return known_step(read.source, read.indices, axis.var, [axis.var])
