"""Transposes through shared memory: of what is loaded, and of what is stored."""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    coordinates,
    index,
    local,
    loop,
    sequence,
    substitute,
    unrolled,
    vectorized,
    when,
)
from ...gpu.threads.warp import LANES
from ...index.address import offset
from ..guarded_loads import bytes_of
from .alignment import WORD, aligned_width
from .transpose_config import THREADS, TransposeConfig, TransposeTile, head_elements
from .vector_access import VectorAccess, VectorStores

# The load half of the shared-memory transpose: see :mod:`.transpose_config`.
#
# for x in transposed sources:                          a tile of `depth` columns by `rows`
#     for step in steps:                                vector step * 256 + thread of the tile
#         x_part[step] = x[column, rows of a vector]    along x's contiguous axis, masked at edges
# for x in transposed sources:
#     for step in steps, word in vector:
#         tile_x[column * pitch + row of word] = word of x_part[step]       pitch: rows + one word


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


# The compute and store half of the shared-memory transpose: see :mod:`.transpose_config`.
#
# for step in steps:                                a vector of columns in each row of a word
#     for x in transposed sources:  x_column[width, pair] = words of tile_x, down a column of it
#     for row in pair:                              rows that a 32-bit word holds: 2 of half types
#         for y in other sources:  y_vector = y[row, columns]             16 bytes
#         for lane in width:  result[lane] = f(x_column[lane, row], y_vector[lane], ...)
#         C[row, columns] = result                  16 bytes; masked at the ends of shifted rows


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
