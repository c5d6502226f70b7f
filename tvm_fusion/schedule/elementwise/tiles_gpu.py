"""Transposed reads on a GPU: tiles in shared memory, whole cache lines on both sides.

Threads of a block read a tile along the axis on which its elements lie side by side in the source,
in vectors, and write it into shared memory. Behind the barrier they read columns of it, and compute
and write vectors along the axis on which the results lie side by side. Whatever else an element
needs is read there.

Shared memory has 32 banks of 4 bytes. A word of the tile is one float32, or two half-type numbers
that are neighbours in the source. A row of it is 32 words and one more, so that the words of one
column lie in different banks; without the padding all would lie in one. When reading, 32 / w of a
warp's threads stand side by side along the results, with vectors of w elements each, and w of them
one word of the tile further: for the same lane of their vectors they read rows w apart, in banks w
apart, and the words between. When writing, a warp writes words side by side of a few rows, each
shifted by one bank. (Two to four threads ask for the same bank where sources of both sizes meet,
whose rows of float32 are 65 words long, and when tiles with shorter or longer rows are written.)

Where rows of results do not begin at sectors of memory, tiles would share sectors with their
neighbours, and a GPU's memory takes twice as long for parts of one. Each row of such a tile begins
at the last sector before, so that all vectors are aligned, whatever the rows' length is; only the
first and the last of a row are incomplete, and go element by element. What is read reaches as far
back. Where lines of the source do not even begin at words, they are read in aligned vectors, too,
which hold elements of neighbouring lines at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.loops import ceildiv, constant, coordinates, index, product, substitute, when
from ...program.stage import Axis
from ..address import offset, stride
from ..gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES, VECTOR_TYPES
from .alignment import WORD, aligned_width, begins_alike, overlap_of, shift_of, step_of
from .domain import TILED_STRIDE, Domain
from .reads import Read, bytes_of, reads

THREADS = 256
WARP = 32  # threads that access shared memory at once; a wavefront of 64 does it in two halves
WORDS = 2048  # of a tile
ROW = 32  # words of its rows: a cache line
NARROW = 16  # elements: along a shorter last axis most of a tile would be empty
WASTE = 20  # one in so many tiles may lie beyond the end


@dataclass(frozen=True)
class Spot:
    """Where a thread works.

    Attributes
    ----------
    rest : list of PrimExpr
        The other axes.
    row, column : PrimExpr
        The first result of the tile.
    thread : PrimExpr
        Number of the thread.
    """

    rest: list[ir.Expr]
    row: ir.Expr
    column: ir.Expr
    thread: ir.Expr


@dataclass(frozen=True)
class Tiles:
    """How a domain with transposed reads is cut.

    Attributes
    ----------
    domain : Domain
        What is computed.
    across : int
        The axis along which the transposed reads are contiguous.
    transposed : tuple of Read
        Loads that go through shared memory.
    straight : tuple of TensorLoad
        Those in vectors along the last axis; other elements are read one by one.
    width : int
        Elements of a vector of results.
    per_word : int
        Elements of a word.
    words : int
        How many words a row of the tile has: 32, fewer or more where an axis is short.
    shift : int
        Results by which rows of a tile may begin earlier, at a sector.
    overlaps : tuple of int
        For each transposed read, elements by which its vectors may begin earlier.
    """

    domain: Domain
    across: int
    transposed: tuple[Read, ...]
    straight: tuple[ir.TensorLoad, ...]
    width: int
    per_word: int
    words: int
    shift: int
    overlaps: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Results along ``across``, of one block."""
        return self.words * self.per_word

    @property
    def pair(self) -> int:
        """Results along ``across`` that a thread computes: those of a word, if they begin alike."""
        return 1 if self.shift or any(self.overlaps) else self.per_word

    @property
    def columns(self) -> int:
        """Results along the last axis, of one block."""
        return WORDS // self.words

    @property
    def depth(self) -> int:
        """Elements along the last axis that a tile holds."""
        return self.columns + self.shift

    def pitch(self, number: int) -> int:
        """Elements of a row of a tile, its padding included."""
        per_word = WORD // bytes_of(self.transposed[number].element)
        return ((self.rows + self.overlaps[number]) // per_word + 1) * per_word

    @property
    def sides(self) -> tuple[Axis, Axis]:
        """The axis ``across`` and the last one."""
        return self.domain.axes[self.across], self.domain.axes[-1]

    def place(self, rest: list[ir.Expr], row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Say where a result is."""
        found = [*rest[: self.across], row, *rest[self.across :], column]
        return dict(zip(self.domain.variables, found, strict=True))

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the tiles take."""
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
        """Tiles one below the other, before the next beside them, as blocks are numbered.

        Blocks that run at a time are then near each other in the source and in the result, and what
        they access of a page of memory is more than one tile's cache line.
        """
        bands = constant(ceildiv(self.sides[0].extent, self.rows))
        for size in (8, 4, 2):
            if bands is not None and -bands % size * WASTE <= bands:
                return size
        return 1

    @property
    def _extents(self) -> list[ir.Expr]:
        """Blocks along the other axes; groups; blocks along the last axis, and of a group."""
        row, last = self.sides
        rest = [index(axis.extent) for axis in self.domain.axes[:-1] if axis is not row]
        groups = ceildiv(row.extent, self.rows * self.group)
        columns = ceildiv(last.extent + max(0, self.shift - 1), self.columns)
        return [*rest, groups, columns, index(self.group)]

    @property
    def blocks(self) -> ir.Expr:
        """Number of tiles."""
        return product(self._extents)

    def spot(self, number: ir.Expr, thread: ir.Expr) -> Spot:
        """Say where a thread of a block works."""
        *rest, group, column, band = coordinates(number, self._extents)
        row = (group * self.group + band) * self.rows
        return Spot(rest, row, column * self.columns, thread)

    def inside_row(self, row: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Leave out what a tile has beyond the end of the axis ``across``."""
        return _inside(self.sides[0], self.rows * self.group, row, body)

    def inside_column(self, column: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
        """Leave out what a tile has beyond the ends of the last axis."""
        if self.shift:
            return when(column >= index(0), when(column < index(self.sides[1].extent), body))
        return _inside(self.sides[1], self.columns, column, body)

    def back(self, rest: list[ir.Expr], row: ir.Expr) -> ir.Expr:
        """Count the results between the last sector that begins before a row, and the row."""
        if not self.shift:
            return index(0)
        first = self.domain.outputs[0]
        place = substitute(offset(first.buffer, first.indices), self.place(rest, row, index(0)))
        return tirx.floormod(place, index(self.shift))


def _inside(axis: Axis, size: int, place: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    extent = constant(axis.extent)
    is_whole = extent is not None and extent % size == 0
    return body if is_whole else when(place < index(axis.extent), body)


def tiles(domain: Domain, shared_bytes: int = STATIC_SHARED_BYTES) -> Tiles | None:
    """Cut a domain into tiles; ``None`` where nothing is transposed, or not by tiles alone.

    Parameters
    ----------
    domain : Domain
        What is computed.
    shared_bytes : int
        How much shared memory is left.
    """
    across = domain.transposed_axis()
    if across is None:
        return None
    row, last = domain.axes[across], domain.axes[-1]
    if (constant(last.extent) or NARROW) < NARROW:
        return None
    sides = [(s.buffer, offset(s.buffer, s.indices)) for s in domain.outputs]
    if any(str(s.buffer.ty.dtype) not in VECTOR_TYPES for s in domain.stores) or any(
        step_of(domain, place, last) != 1 for _, place in sides
    ):
        return None
    found = reads(domain)
    transposed = tuple(r for r in found if _is_transposed(domain, r.element, row, last))
    if not transposed:
        return None
    shift = shift_of(domain)
    if shift:
        width = VECTOR_BYTES // max(bytes_of(buffer) for buffer, _ in sides)
    else:
        width = min(aligned_width(domain, place, last, bytes_of(buffer)) for buffer, place in sides)

    def is_straight(found: ir.TensorLoad) -> bool:
        place = offset(found.source, found.indices)
        if step_of(domain, place, last) != 1:
            return False
        if shift:
            return begins_alike(place, sides[0][1], width)
        return aligned_width(domain, place, last, bytes_of(found)) >= width

    straight = tuple(r.element for r in found if r.condition is None and is_straight(r.element))
    per_word = max(WORD // bytes_of(r.element) for r in transposed)
    words = _words(constant(row.extent), constant(last.extent), per_word)
    overlaps = tuple(overlap_of(domain, r, row) for r in transposed)
    cut = Tiles(domain, across, transposed, straight, width, per_word, words, shift, overlaps)
    return cut if cut.shared_bytes <= shared_bytes else None


def _words(across: int | None, last: int | None, per_word: int) -> int:
    """Choose the length of a tile's rows, whose number follows."""
    if last is not None and last <= WARP:
        return 2 * ROW
    short = (
        words for words in (ROW // 4, ROW // 2) if across is not None and across <= words * per_word
    )
    return next(short, ROW)


def _is_transposed(domain: Domain, found: ir.TensorLoad, row: Axis, last: Axis) -> bool:
    place = offset(found.source, found.indices)
    away = stride(place, last.var, domain.variables)
    size = None if away is None else constant(away)
    return (
        str(found.ty.dtype) in VECTOR_TYPES
        and away is not None
        and (size is None or abs(size) >= TILED_STRIDE)
        and step_of(domain, place, row) == 1
    )


def lead(cut: Tiles, found: ir.TensorLoad, overlap: int, spot: Spot, column: ir.Expr) -> ir.Expr:
    """Count the elements that a tile holds of a line of a source before those that are wanted."""
    place = substitute(offset(found.source, found.indices), cut.place(spot.rest, spot.row, column))
    return tirx.floormod(place, index(overlap))
