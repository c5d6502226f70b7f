"""Copies of an operand's tiles from global to shared memory, in 16-byte chunks of 8 elements.

    chunk (row, c) of a tile          rows of K for an operand that is contiguous along K,
                                      of M or N otherwise; place c ^ swizzle(row)
    loaded as it is:                  cp.async
    computed (prologue, dequantized): vector loads, 8 values in registers, one store
    unaligned, ragged or padded:      element loads under conditions, one store

Terms beyond K are zero. Rows beyond M or N, whose sums are not stored, are zero or repeat the last
one. Copies make them zero: with copies of the last row for 16 of 64 rows, M 48, N 14336, K 4096
took 45 us on an H200, and takes 33, as not all blocks ask L2 for one line.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, sym, tirx

from ...core.expressions import load, loads
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
from ...program.stage import Axis
from ..address import conditional_loads, known_step
from ..gpu.cp_async import copy_16
from ..gpu.register_buffers import RegisterBuffers
from ..gpu.shared_tiles import CHUNK_BYTES, store_shared
from ..gpu.swizzle import exchanged, swizzle
from ..gpu.vector_loads import ElementLoads, VectorLoad
from .tile_gemm_config import TileGemmConfig, axis_values, half_operand, is_plain

CHUNK = 8  # elements of a half type
WORDS = CHUNK_BYTES // 4


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
    words : int
        Size of a tile in shared memory, in 32-bit words.
    buffers : list of Var
        Registers on the way.
    """

    def __init__(self, cut: TileGemmConfig, is_a: bool) -> None:
        self._cut = cut
        view = cut if is_a else cut.interleaved()
        self._expr = half_operand(view.a if is_a else view.b)
        self._axes = view.m_axes if is_a else view.n_axes
        self._block = cut.block_m if is_a else cut.block_n
        self._extent = product([a.extent for a in self._axes])
        layouts = [self._layout(is_k) for is_k in ((True, False) if is_a else (False, True))]
        _, self.is_k_contiguous, self._vector, self._values, vectors = min(
            layouts, key=lambda x: x[0]
        )
        across = cut.block_k if self.is_k_contiguous else self._block
        self.row_chunks = across // CHUNK
        self.words = self._block * cut.block_k // 2
        chunks = self.words // WORDS
        self._each = -(-chunks // cut.threads)
        self._has_all = chunks % cut.threads == 0
        self._chunks = chunks
        self.is_copied = self._values is not None and len(vectors) == 1 and is_plain(self._expr)
        self._first = vectors[0].first if self.is_copied else None
        self._registers = None
        self.buffers: list[ir.Var] = []
        if not self.is_copied:
            name = "a" if is_a else "b"
            size = CHUNK if self._values is not None else self._each * CHUNK
            self._staged = local(f"{name}_chunk", [size], cut.half)
            self.buffers.append(self._staged)
            if self._values is not None:
                self._registers = RegisterBuffers(vectors, self._each)
                self.buffers += self._registers.arrays

    def _layout(
        self, is_k: bool
    ) -> tuple[int, bool, ir.Var, list[ir.Expr] | None, Sequence[VectorLoad]]:
        """Read a chunk along K, or along M or N: how many loads it takes, and which."""
        axes = self._cut.k_axes if is_k else self._axes
        vector = tirx.Var("vector", "int64")
        extent = constant(product([a.extent for a in axes]))
        if extent is not None and extent % CHUNK == 0 and self._may_be_hoisted():
            analyzer = _analyzer((*self._cut.contraction.stage.axes, *self._cut.k_axes))
            analyzer.bind(vector, ir.Range.from_min_extent(index(0), index(extent // CHUNK)))
            elements = ElementLoads(analyzer)
            values = [
                elements.read(substitute(self._expr, axis_values(axes, vector * CHUNK + lane)))
                for lane in range(CHUNK)
            ]
            vectors = elements.vectors()
            if any(len(v.elements) > 1 for v in vectors):
                return len(vectors), is_k, vector, values, vectors
        strides = [_stride(x, axes[-1]) for x in loads(self._expr)]
        return 8 + sum(s != 1 for s in strides), is_k, vector, None, ()

    def _may_be_hoisted(self) -> bool:
        """Whether all loads may be issued whatever conditions hold."""
        return not conditional_loads(self._expr) and not any(
            loads(i) for x in loads(self._expr) for i in x.indices
        )

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
            row, chunk, inside = self._place(i, thread)
            there, is_k_inside = self._source(row, chunk, first, k_tile)
            if self._first is not None:
                source = substitute(self._first, {**where, **there})
                place = load(to[0], [to[1] + self._word(row, chunk)])
                is_inside = tirx.all(is_k_inside, self._is_row(row, chunk, first))
                stmt = copy_16(place, source, is_inside)
            elif self._registers is not None:
                stmt = self._registers.fill(i, {**where, **there})
                stmt = when(is_k_inside, stmt)
            else:
                stmt = self._load_elements(i, where, row, chunk, first, k_tile)
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
            if self._values is None or self._registers is None:
                return when(inside, store_shared(place, load(self._staged, [i * CHUNK]), 16))
            there, is_k_inside = self._source(row, chunk, first, k_tile)
            values, zero = [], tirx.const(0, self._cut.half)
            for value in self._values:
                values.append(substitute(self._registers.values(value, i), {**where, **there}))
            stores = [tirx.BufferStore(self._staged, v, [n]) for n, v in enumerate(values)]
            zeros = [tirx.BufferStore(self._staged, zero, [n]) for n in range(CHUNK)]
            made: tirx.Stmt = sequence(stores)
            if not sym.Analyzer().can_prove(is_k_inside):
                made = tirx.IfThenElse(is_k_inside, made, sequence(zeros))
            stored = store_shared(place, load(self._staged, [index(0)]), 16)
            return when(inside, sequence([made, stored]))

        return unrolled("chunk", self._each, one)

    def _place(self, i: ir.Expr, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Give the row and chunk of a thread's i-th copy, and whether there is one."""
        flat = i * self._cut.threads + thread
        row, chunk = coordinates(flat, [index(1), self.row_chunks])
        return row, chunk, tirx.const(True) if self._has_all else flat < self._chunks

    def _word(self, row: ir.Expr, chunk: ir.Expr) -> ir.Expr:
        by = swizzle(row, self.row_chunks)
        return (row * self.row_chunks + exchanged(chunk, by)) * WORDS

    def _source(
        self, row: ir.Expr, chunk: ir.Expr, first: ir.Expr, k_tile: ir.Expr
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Give the vector and the axes of a chunk, and whether it is inside of K."""
        cut, inside = self._cut, tirx.const(True)
        if self.is_k_contiguous:
            vector = k_tile * (cut.block_k // CHUNK) + chunk
            if cut.k % (cut.block_k * cut.split_k):
                inside = vector < cut.k // CHUNK
                vector = tirx.min(vector, cut.k // CHUNK - 1)
            return {self._vector: vector} | axis_values(self._axes, self._row(first + row)), inside
        k = k_tile * cut.block_k + row
        if cut.k % (cut.block_k * cut.split_k):
            inside = k < cut.k
            k = tirx.min(k, cut.k - 1)
        vector = tirx.floordiv(first, CHUNK) + chunk
        vectors = tirx.floordiv(self._extent, CHUNK)
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
        for lane in range(CHUNK):
            place = chunk * CHUNK + lane
            k_in_tile, own = (place, row) if self.is_k_contiguous else (row, place)
            k = k_tile * cut.block_k + k_in_tile
            there = axis_values(cut.k_axes, k) | axis_values(self._axes, self._row(first + own))
            value = substitute(self._expr, {**where, **there})
            if cut.k % (cut.block_k * cut.split_k):
                zero = tirx.const(0, cut.half)
                value = tirx.if_then_else(k < cut.k, value, zero)
            stmts.append(tirx.BufferStore(self._staged, value, [i * CHUNK + lane]))
        return sequence(stmts)

    def _row(self, row: ir.Expr) -> ir.Expr:
        """Repeat the last row, or column, for those beyond."""
        return row if self._is_exact() else tirx.min(row, self._extent - 1)

    def _is_row(self, row: ir.Expr, chunk: ir.Expr, first: ir.Expr) -> ir.Expr:
        """Whether a chunk is of a row, or of columns, that exist."""
        if self._is_exact():
            return tirx.const(True)
        return first + (row if self.is_k_contiguous else chunk * CHUNK) < self._extent

    def _is_exact(self) -> bool:
        extent = constant(self._extent)
        return extent is not None and extent % self._block == 0


def _analyzer(axes: Sequence[Axis]) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for axis in axes:
        extent = constant(axis.extent)
        if extent is not None:
            analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(extent)))
    return analyzer


def _stride(read: ir.TensorLoad, axis: Axis) -> int | None:
    return known_step(read.source, read.indices, axis.var, [axis.var])
