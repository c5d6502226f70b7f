"""What the threads of a block read of a tile into shared memory: see :mod:`.tiles_gpu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import (
    block,
    constant,
    coordinates,
    local,
    loop,
    product,
    sequence,
    substitute,
    unrolled,
    when,
)
from ..address import offset
from .alignment import WORD, Aligned, aligned_width
from .reads import bytes_of
from .tiles_gpu import THREADS, Spot, Tiles


def read_tiles(cut: Tiles, shared: Sequence[ir.Var], number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
    """Read a thread's part of the tiles into registers, and write it into shared memory.

    Parameters
    ----------
    cut : Tiles
        How the domain is cut.
    shared : sequence of Var
        The tiles.
    number, thread : PrimExpr
        Of the block, and of the thread.
    """
    spot = cut.spot(number, thread)
    parts = [_Part(cut, i, spot) for i in range(len(cut.transposed))]
    loads = [part.fetch() for part in parts]
    stores = [part.keep(tile) for part, tile in zip(parts, shared, strict=True)]
    registers = [register for part in parts for register in part.registers]
    return block("read_tile", sequence([*loads, *stores]), registers)


class _Part:
    """What one thread reads of a tile: a few vectors along its rows."""

    def __init__(self, cut: Tiles, number: int, spot: Spot) -> None:
        read = cut.transposed[number]
        found = read.element
        self._cut, self._found, self._spot, self._condition = cut, found, spot, read.condition
        self._pitch, self._overlap = cut.pitch(number), cut.overlaps[number]
        place = offset(found.source, found.indices)
        self._width = self._overlap or 1
        if read.condition is None and not self._overlap:
            self._width = aligned_width(cut.domain, place, cut.sides[0], bytes_of(found))
        self._per_row = (cut.rows + self._overlap) // self._width
        self._vectors = cut.depth * self._per_row
        self._steps = -(-self._vectors // THREADS)
        size = self._steps * self._width
        self.register = local(f"{found.source.name}_part", [size], str(found.ty.dtype))
        self._vector = Aligned.of(found.source, self._width)

    @property
    def registers(self) -> list[ir.Var]:
        """What it keeps, and where a vector begins."""
        return [self.register, self._vector.number] if self._overlap else [self.register]

    def _place(self, step: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Row and column of the tile, of a vector's first element."""
        column, vector = coordinates(self._item(step), (self._cut.depth, self._per_row))
        return vector * self._width, column

    def _item(self, step: ir.Expr) -> ir.Expr:
        return step * THREADS + self._spot.thread

    def _each(self, vector: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run through a thread's vectors."""

        def existing(step: ir.Expr) -> tirx.Stmt:
            body = vector(step)
            is_whole = self._vectors % THREADS == 0
            return body if is_whole else when(self._item(step) < self._vectors, body)

        return unrolled("step", self._steps, existing)

    def fetch(self) -> tirx.Stmt:
        """Read all vectors."""
        cut, spot = self._cut, self._spot
        copy = self._aligned if self._overlap else self._own

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)
            row, column = spot.row + row, spot.column - cut.shift + column
            copied = cut.inside_column(column, copy(step, row, column))
            return cut.inside_row(row - self._overlap, copied)

        return self._each(vector)

    def _own(self, step: ir.Expr, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
        """Read a vector of a line."""
        cut, spot = self._cut, self._spot

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = substitute(self._found, cut.place(spot.rest, row + lane, column))
            return tirx.BufferStore(self.register, value, [step * self._width + lane])

        copied = loop("lane", self._width, one, tirx.ForKind.VECTORIZED)
        if self._condition is None:
            return copied
        return when(substitute(self._condition, cut.place(spot.rest, row, column)), copied)

    def _aligned(self, step: ir.Expr, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
        """Read the last aligned vector of the source that begins before a place in a line.

        The source's last elements are read one by one, where they are no whole vector.
        """
        source, aligned = self._found.source, self._vector
        place = offset(source, self._found.indices)
        place = substitute(place, self._cut.place(self._spot.rest, row, column))
        size = product(list(source.ty.shape))

        def one(lane: ir.Expr) -> tirx.Stmt:
            value = load(source, aligned.at(lane))
            return tirx.BufferStore(self.register, value, [step * self._width + lane])

        def existing(lane: ir.Expr) -> tirx.Stmt:
            return when(aligned.first + lane < size, one(lane))

        copied = loop("lane", self._width, one, tirx.ForKind.VECTORIZED)
        if (constant(size) or 1) % self._width:
            single = unrolled("lane", self._width, existing)
            copied = tirx.IfThenElse(aligned.first + self._width <= size, copied, single)
        return sequence([aligned.find(place), copied])

    def keep(self, tile: ir.Var) -> tirx.Stmt:
        """Write them into shared memory, word by word: rows do not begin where vectors may."""
        lanes = min(self._width, WORD // bytes_of(self._found))

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)

            def word(number: ir.Expr) -> tirx.Stmt:
                def one(lane: ir.Expr) -> tirx.Stmt:
                    part = number * lanes + lane
                    value = load(self.register, [step * self._width + part])
                    return tirx.BufferStore(tile, value, [column * self._pitch + row + part])

                return loop("lane", lanes, one, tirx.ForKind.VECTORIZED)

            return unrolled("word", self._width // lanes, word)

        return self._each(vector)
