"""The compute and store half of the shared-memory transpose: see :mod:`.transpose_config`.

for step in steps:                                a vector of columns in each row of a word
    for x in transposed sources:  x_column[width, pair] = words of tile_x, down a column of it
    for row in pair:                              rows that a 32-bit word holds: 2 of half types
        for y in other sources:  y_vector = y[row, columns]             16 bytes
        for lane in width:  result[lane] = f(x_column[lane, row], y_vector[lane], ...)
        C[row, columns] = result                  16 bytes; masked at the ends of shifted rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...core.tir.expressions import load
from ...core.tir.loops import block, coordinates, index, local, loop, sequence, unrolled
from ..gpu.threads.warp import LANES
from .alignment import WORD
from .guarded_loads import bytes_of
from .transpose_config import THREADS, TransposeConfig, TransposeTile, head_elements
from .vector_access import VectorAccess, VectorStores


def store_tiles(
    config: TransposeConfig, shared: Sequence[ir.Var], number: ir.Expr, thread: ir.Expr
) -> tirx.Stmt:
    """Compute a thread's results, a word of the tiles by a vector at a time.

    Parameters
    ----------
    number, thread
        Of the block, and of the thread.
    """
    return _Results(config, shared, config.position(number, thread)).write()


class _Results:
    """What one thread computes of a tile."""

    def __init__(
        self, config: TransposeConfig, shared: Sequence[ir.Var], position: TransposeTile
    ) -> None:
        self._config, self._shared, self._position = config, shared, position
        space, width = config.space, config.width
        self._transposed = [read.element for read in config.transposed]
        self._columns = [
            local(f"{x.source.name}_column", [width * config.pair], str(x.ty.dtype))
            for x in self._transposed
        ]
        self._straight = [
            local(f"{x.source.name}_vector", [width], str(x.ty.dtype)) for x in config.straight
        ]
        is_shifted = bool(config.shift)
        self._reads = [
            VectorAccess(x.source, x.indices, width, is_shifted) for x in config.straight
        ]
        self._results = VectorStores(space, width, is_shifted)
        self._single = space.files(1)

    def write(self) -> tirx.Stmt:
        """Compute and store all results, some vectors at a time."""
        steps = (
            self._config.columns
            * self._config.rows
            // self._config.pair
            // self._config.width
            // THREADS
        )
        body = unrolled("step", steps, self._step)
        buffers = [*self._columns, *self._straight, *self._results.registers]
        if self._config.shift:
            buffers += self._single.values()
            buffers += [number for read in self._reads for number in read.registers]
            buffers += self._results.numbers
        return block("write_tile", body, buffers)

    def _step(self, number: ir.Expr) -> tirx.Stmt:
        """Compute one vector of each row of a word."""
        config, position = self._config, self._position
        # As many threads access shared memory at once; a wave of 64 does so in two halves.
        threads_in_row = LANES // config.width
        extents = (config.columns // LANES, config.rows // config.pair, threads_in_row)
        outer, word, inner = coordinates(number * THREADS + position.thread, extents)
        back = config.back(position.rest, position.row + word * config.pair)
        first = (outer * threads_in_row + inner) * config.width - back
        column = position.column + first

        def place(which: int, lane: ir.Expr, part: ir.Expr) -> ir.Expr:
            """Return the place of an element in a tile."""
            overlap, pitch = config.overlaps[which], config.pitch(which)
            at = (first + config.shift + lane) * pitch + word * config.pair + part
            if overlap:
                at = at + head_elements(
                    config, self._transposed[which], overlap, position, column + lane
                )
            return at

        def row(part: ir.Expr) -> tirx.Stmt:
            at = position.row + word * config.pair + part
            vector = self._vector(at, column, part)
            if not config.shift:
                return config.inside_row(at, vector)
            last = index(config.sides[1].extent)
            is_whole = tirx.And(column >= 0, column + config.width <= last)
            single = self._one_by_one(at, column, lambda i, lane: place(i, lane, part))
            return config.inside_row(at, tirx.IfThenElse(is_whole, vector, single))

        fetched = [self._fetch(i, place) for i in range(len(self._transposed))]
        rows = unrolled("part", config.pair, row)
        stmt = sequence([*fetched, rows])
        return stmt if config.shift else config.inside_column(column, stmt)

    def _fetch(self, which: int, place: Callable[[int, ir.Expr, ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Load a word, or two, of each of some rows of a tile."""
        tile, register, pair = self._shared[which], self._columns[which], self._config.pair
        # Two contiguous words are not aligned to a vector in every row.
        is_word = bytes_of(self._transposed[which]) < WORD
        kind = tirx.ForKind.VECTORIZED if is_word else tirx.ForKind.UNROLLED

        def row(lane: ir.Expr) -> tirx.Stmt:
            def one(part: ir.Expr) -> tirx.Stmt:
                value = load(tile, [place(which, lane, part)])
                return tirx.BufferStore(register, value, [lane * pair + part])

            return loop("part", pair, one, kind)

        return unrolled("lane", self._config.width, row)

    def _vector(self, row: ir.Expr, column: ir.Expr, part: ir.Expr) -> tirx.Stmt:
        """Compute and store one vector of a row."""
        config, position = self._config, self._position

        def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return config.place(position.rest, row, column + lane)

        def loaded(lane: ir.Expr) -> list[tuple[ir.TensorLoad, ir.Expr]]:
            columns = [load(r, [lane * config.pair + part]) for r in self._columns]
            found = [*zip(self._transposed, columns, strict=True)]
            vectors = zip(config.straight, self._straight, strict=True)
            return [*found, *((x, load(r, [lane])) for x, r in vectors)]

        reads = zip(self._reads, self._straight, strict=True)
        stmts = [read.load(register, index(0), at) for read, register in reads]
        return sequence([*stmts, *self._results.write(loaded, at, at)])

    def _one_by_one(
        self, row: ir.Expr, column: ir.Expr, place: Callable[[int, ir.Expr], ir.Expr]
    ) -> tirx.Stmt:
        """Compute and store the vectors at the ends of a row, masked."""
        config, position = self._config, self._position

        def one(lane: ir.Expr) -> tirx.Stmt:
            loaded = [
                (x, load(tile, [place(i, lane)]))
                for i, (x, tile) in enumerate(zip(self._transposed, self._shared, strict=True))
            ]
            at = config.place(position.rest, row, column + lane)
            stmts = [s.reading(loaded).at(at, self._single) for s in config.space.stores]
            return config.inside_column(column + lane, sequence(stmts))

        return loop("lane", config.width, one)
