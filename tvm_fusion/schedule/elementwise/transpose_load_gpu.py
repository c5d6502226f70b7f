"""The load half of the shared-memory transpose: see :mod:`.transpose_config`.

for x in transposed sources:                          a tile of `depth` columns by `rows`
    for step in steps:                                vector step * 256 + thread of the tile
        x_part[step] = x[column, rows of a vector]    along x's contiguous axis, masked at the edges
for x in transposed sources:
    for step in steps, word in vector:
        tile_x[column * pitch + row of word] = word of x_part[step]       pitch: rows + one word
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...core.tir.expressions import load
from ...core.tir.loops import (
    block,
    coordinates,
    index,
    local,
    sequence,
    substitute,
    unrolled,
    vectorized,
    when,
)
from ..index.address import offset
from .alignment import WORD, aligned_width
from .guarded_loads import bytes_of
from .transpose_config import THREADS, TransposeConfig, TransposeTile
from .vector_access import VectorAccess


def load_tiles(
    config: TransposeConfig, shared: Sequence[ir.Var], number: ir.Expr, thread: ir.Expr
) -> tirx.Stmt:
    """Load a thread's part of the tiles into registers, and store it in shared memory.

    Parameters
    ----------
    number, thread
        Of the block, and of the thread.
    """
    position = config.position(number, thread)
    parts = [_TileLoad(config, i, position) for i in range(len(config.transposed))]
    loads = [part.fetch() for part in parts]
    stores = [part.keep(tile) for part, tile in zip(parts, shared, strict=True)]
    registers = [register for part in parts for register in part.registers]
    return block("read_tile", sequence([*loads, *stores]), registers)


class _TileLoad:
    """What one thread loads of a tile: a few vectors along its rows."""

    def __init__(self, config: TransposeConfig, number: int, position: TransposeTile) -> None:
        read = config.transposed[number]
        found = read.element
        self._config, self._found, self._position, self._condition = (
            config,
            found,
            position,
            read.condition,
        )
        self._pitch, self._overlap = config.pitch(number), config.overlaps[number]
        place = offset(found.source, found.indices)
        self._width = self._overlap or 1
        if read.condition is None and not self._overlap:
            self._width = aligned_width(config.space, place, config.sides[0], bytes_of(found))
        self._per_row = (config.rows + self._overlap) // self._width
        self._vectors = config.depth * self._per_row
        self._steps = -(-self._vectors // THREADS)
        size = self._steps * self._width
        self.register = local(f"{found.source.name}_part", [size], str(found.ty.dtype))
        is_aligned = bool(self._overlap)
        self._access = VectorAccess(found.source, found.indices, self._width, is_aligned)

    @property
    def registers(self) -> list[ir.Var]:
        """The loaded elements, and the number of an aligned vector."""
        return [self.register, *self._access.registers]

    def _place(self, step: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Return row and column in the tile of a vector's first element."""
        column, vector = coordinates(self._item(step), (self._config.depth, self._per_row))
        return vector * self._width, column

    def _item(self, step: ir.Expr) -> ir.Expr:
        return step * THREADS + self._position.thread

    def _each(self, vector: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run over a thread's vectors."""

        def existing(step: ir.Expr) -> tirx.Stmt:
            body = vector(step)
            is_whole = self._vectors % THREADS == 0
            return body if is_whole else when(self._item(step) < self._vectors, body)

        return unrolled("step", self._steps, existing)

    def fetch(self) -> tirx.Stmt:
        """Load all vectors."""
        config, position = self._config, self._position

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)
            row, column = position.row + row, position.column - config.shift + column
            copied = config.inside_column(column, self._copy(step, row, column))
            return config.inside_row(row - self._overlap, copied)

        return self._each(vector)

    def _copy(self, step: ir.Expr, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
        """Load a vector of a line, or the last aligned one that begins before a place in it."""

        def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return self._config.place(self._position.rest, row + lane, column)

        first = step * self._width
        if self._overlap:
            return self._access.load_inside(self.register, first, at)
        copied = self._access.load(self.register, first, at)
        if self._condition is None:
            return copied
        return when(substitute(self._condition, at(index(0))), copied)

    def keep(self, tile: ir.Var) -> tirx.Stmt:
        """Store them in shared memory, word by word: its rows are not aligned to vectors."""
        lanes = min(self._width, WORD // bytes_of(self._found))

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)

            def word(number: ir.Expr) -> tirx.Stmt:
                def one(lane: ir.Expr) -> tirx.Stmt:
                    part = number * lanes + lane
                    value = load(self.register, [step * self._width + part])
                    return tirx.BufferStore(tile, value, [column * self._pitch + row + part])

                return vectorized(lanes, one)

            return unrolled("word", self._width // lanes, word)

        return self._each(vector)
