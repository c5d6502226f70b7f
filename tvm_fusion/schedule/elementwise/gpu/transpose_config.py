"""Shared-memory transpose on a GPU: its tiles, chosen so that both sides coalesce.

grid: a block for each tile of the iteration space; block: 256 threads
load:  each thread, vectors along the axis `across` on which the source is contiguous:
       memory -> registers -> tile in shared memory, padded by a word for each row
__syncthreads
store: each thread, columns of the tile: shared memory -> registers; other operands in vectors;
       compute; vectors along the last axis -> memory

Shared memory has 32 banks of 4 bytes. A word of the tile is one float32, or two half-type elements
that are contiguous in the source. A row of it is 32 words and one of padding, so that the words of
one column are in different banks. When loading columns, 32 / w threads of a warp are adjacent along
the results, with vectors of w elements each, and w of them one word of the tile further: for the
same lane of their vectors they load rows w apart, in banks w apart, and the words between. When
storing, a warp stores contiguous words of a few rows, each shifted by one bank. (Two to four
threads conflict where sources of both sizes meet, whose rows of float32 are 65 words long, and when
tiles with shorter or longer rows are stored.)

Where rows of results are not aligned to sectors, tiles would share sectors with their neighbours,
and memory takes twice as long for partial ones. Each row of such a tile begins at the last sector
before (`shift`), so that all vectors are aligned, whatever the length of rows; only the first and
the last vector of a row are masked. The load begins as much earlier. Where lines of the source are
not even aligned to words, they are loaded in aligned vectors, too (`overlaps`), which hold elements
of neighbouring lines at both ends.
"""

from dataclasses import dataclass

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.loops import ceildiv, constant, coordinates, index, product, substitute, when
from ....program.stage import Axis
from ...index.address import offset
from ..guarded_loads import GuardedLoad, bytes_of
from ..iteration_space import IterationSpace
from .alignment import WORD

THREADS = 256
WORDS = 2048  # of a tile
ROW = 32  # words of its rows: a cache line
MAX_WASTE = 20  # at most one in so many tiles may be behind the end


@dataclass(frozen=True)
class TransposeTile:
    """The tile of a block, and a thread of it."""

    rest: list[ir.Expr]  # position along the other axes
    # The first result of the tile.
    row: ir.Expr
    column: ir.Expr
    thread: ir.Expr  # number of the thread


@dataclass(frozen=True)
class TransposeConfig:
    """The tiles of an iteration space with transposed loads."""

    space: IterationSpace
    across: int  # the axis along which the transposed loads are contiguous
    transposed: tuple[GuardedLoad, ...]  # loads that go through shared memory
    # Vectorized loads along the last axis; other elements are loaded one by one.
    straight: tuple[ir.TensorLoad, ...]
    width: int  # elements of a vector of results
    per_word: int  # elements of a word
    words: int  # words of a row of the tile: 32, fewer or more where an axis is short
    shift: int  # results by which rows of a tile may begin earlier, aligned to a sector
    # For each transposed load, elements by which its vectors may begin earlier.
    overlaps: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Results along ``across``, of one block."""
        return self.words * self.per_word

    @property
    def pair(self) -> int:
        """Results along ``across`` of a thread: those of a word, if they are aligned alike."""
        return 1 if self.shift or any(self.overlaps) else self.per_word

    @property
    def columns(self) -> int:
        """Results along the last axis, of one block."""
        return WORDS // self.words

    @property
    def depth(self) -> int:
        """Elements of a tile along the last axis."""
        return self.columns + self.shift

    def pitch(self, number: int) -> int:
        """Elements of a row of a tile, its padding included."""
        per_word = WORD // bytes_of(self.transposed[number].element)
        return ((self.rows + self.overlaps[number]) // per_word + 1) * per_word

    @property
    def sides(self) -> tuple[Axis, Axis]:
        """The axis ``across`` and the last one."""
        return self.space.axes[self.across], self.space.axes[-1]

    def place(self, rest: list[ir.Expr], row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of a result along each axis."""
        found = [*rest[: self.across], row, *rest[self.across :], column]
        return dict(zip(self.space.variables, found, strict=True))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the tiles."""
        sizes = [bytes_of(r.element) for r in self.transposed]
        return sum(self.depth * self.pitch(i) * size for i, size in enumerate(sizes))

    def declare(self) -> tuple[ir.Var, ...]:
        """Declare the tiles."""
        return tuple(
            scratch(
                [index(self.depth * self.pitch(i))],
                str(r.element.ty.dtype),
                f"{r.element.source.name}_tile",
                scope="shared",
            )
            for i, r in enumerate(self.transposed)
        )

    @property
    def group(self) -> int:
        """Tiles of a column that are numbered before those of the next (block swizzle).

        Blocks that run at the same time are then near each other in the source and in the result,
        and share pages of memory.
        """
        bands = constant(ceildiv(self.sides[0].extent, self.rows))
        for size in (8, 4, 2):
            if bands is not None and -bands % size * MAX_WASTE <= bands:
                return size
        return 1

    @property
    def _extents(self) -> list[ir.Expr]:
        """Count blocks: along the other axes; groups; along the last axis; of a group."""
        row, last = self.sides
        rest = [index(axis.extent) for axis in self.space.axes[:-1] if axis is not row]
        groups = ceildiv(row.extent, self.rows * self.group)
        columns = ceildiv(last.extent + max(0, self.shift - 1), self.columns)
        return [*rest, groups, columns, index(self.group)]

    @property
    def blocks(self) -> ir.Expr:
        """Number of tiles."""
        return product(self._extents)

    def position(self, number: ir.Expr, thread: ir.Expr) -> TransposeTile:
        """Return the tile of a block, for a thread."""
        *rest, group, column, band = coordinates(number, self._extents)
        row = (group * self.group + band) * self.rows
        return TransposeTile(rest, row, column * self.columns, thread)

    def inside_row(self, row: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Guard against elements of a tile behind the end of the axis ``across``."""
        return _inside(self.sides[0], self.rows * self.group, row, body)

    def inside_column(self, column: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Guard against elements of a tile outside the last axis."""
        if self.shift:
            return when(column >= index(0), when(column < index(self.sides[1].extent), body))
        return _inside(self.sides[1], self.columns, column, body)

    def back(self, rest: list[ir.Expr], row: ir.Expr) -> ir.Expr:
        """Count the results between the last sector boundary before a row, and the row."""
        if not self.shift:
            return index(0)
        first = self.space.outputs[0]
        place = substitute(offset(first.buffer, first.indices), self.place(rest, row, index(0)))
        return tirx.floormod(place, index(self.shift))


def _inside(axis: Axis, size: int, place: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    extent = constant(axis.extent)
    is_whole = extent is not None and extent % size == 0
    return body if is_whole else when(place < index(axis.extent), body)


def head_elements(
    config: TransposeConfig,
    found: ir.TensorLoad,
    overlap: int,
    position: TransposeTile,
    column: ir.Expr,
) -> ir.Expr:
    """Count the elements of a line in a tile before those that are needed."""
    place = substitute(
        offset(found.source, found.indices), config.place(position.rest, position.row, column)
    )
    return tirx.floormod(place, index(overlap))
