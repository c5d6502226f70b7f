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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ..._tvm_buffer import scratch
from ...fusion.expressions import load
from ...fusion.program import Axis
from ..address import offset, stride
from ..loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    find,
    index,
    local,
    loop,
    product,
    sequence,
    substitute,
    when,
)
from .domain import TILED_STRIDE, Domain, Store
from .vectors_gpu import VECTOR_BYTES, VECTOR_TYPES, Read, reads, same

THREADS = 256
WARP = 32  # threads that access shared memory at once; a wavefront of 64 does it in two halves
WORD = 4  # bytes of a bank
WORDS = 2048  # of a tile
ROW = 32  # words of its rows: a cache line
NARROW = 16  # elements: along a shorter last axis most of a tile would be empty
SHARED_BYTES = 48 * 1024
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
    pair : int
        Results along ``across`` that a thread computes: those of a word.
    words : int
        How many words a row of the tile has: 32, fewer or more where an axis is short.
    """

    domain: Domain
    across: int
    transposed: tuple[Read, ...]
    straight: tuple[ir.TensorLoad, ...]
    width: int
    pair: int
    words: int

    @property
    def rows(self) -> int:
        """Results along ``across``, of one block."""
        return self.words * self.pair

    @property
    def columns(self) -> int:
        """Results along the last axis, of one block."""
        return WORDS // self.words

    def pitch(self, found: ir.TensorLoad) -> int:
        """Elements of a row of a tile, its padding included."""
        per_word = WORD // _bytes(found)
        return (self.rows // per_word + 1) * per_word

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
        return sum(
            self.columns * self.pitch(r.element) * _bytes(r.element) for r in self.transposed
        )

    def declare(self) -> tuple[ir.Var, ...]:
        """Declare the tiles."""
        return tuple(
            scratch(
                [index(self.columns * self.pitch(r.element))],
                str(r.element.ty.dtype),
                f"{r.element.source.name}_tile",
                scope="shared",
            )
            for r in self.transposed
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
        return [*rest, groups, ceildiv(last.extent, self.columns), index(self.group)]

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
        """Leave out what a tile has beyond the end of the last axis."""
        return _inside(self.sides[1], self.columns, column, body)


def _inside(axis: Axis, size: int, place: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    extent = constant(axis.extent)
    is_whole = extent is not None and extent % size == 0
    return body if is_whole else when(place < index(axis.extent), body)


def tiles(domain: Domain, shared_bytes: int = SHARED_BYTES) -> Tiles | None:
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
        _step(domain, place, last) != 1 for _, place in sides
    ):
        return None
    found = reads(domain)
    transposed = tuple(r for r in found if _is_transposed(domain, r.element, row, last))
    if not transposed:
        return None
    width = min(aligned_width(domain, place, last, _bytes(buffer)) for buffer, place in sides)
    straight = tuple(
        r.element
        for r in found
        if r.condition is None
        and _step(domain, place := offset(r.element.source, r.element.indices), last) == 1
        and aligned_width(domain, place, last, _bytes(r.element)) >= width
    )
    pair = max(WORD // _bytes(r.element) for r in transposed)
    words = _words(constant(row.extent), constant(last.extent), pair)
    cut = Tiles(domain, across, transposed, straight, width, pair, words)
    return cut if cut.shared_bytes <= shared_bytes else None


def _words(across: int | None, last: int | None, pair: int) -> int:
    """Choose the length of a tile's rows, whose number follows."""
    if last is not None and last <= WARP:
        return 2 * ROW
    short = (
        words for words in (ROW // 4, ROW // 2) if across is not None and across <= words * pair
    )
    return next(short, ROW)


def _bytes(value: ir.Var | ir.TensorLoad) -> int:
    return (DataType(str(value.ty.dtype)).bits + 7) // 8


def _step(domain: Domain, place: ir.Expr, axis: Axis) -> int | None:
    found = stride(place, axis.var, domain.variables)
    return None if found is None else constant(found)


def _is_transposed(domain: Domain, found: ir.TensorLoad, row: Axis, last: Axis) -> bool:
    place = offset(found.source, found.indices)
    away = stride(place, last.var, domain.variables)
    size = None if away is None else constant(away)
    return (
        str(found.ty.dtype) in VECTOR_TYPES
        and away is not None
        and (size is None or abs(size) >= TILED_STRIDE)
        and _step(domain, place, row) == 1
    )


def aligned_width(domain: Domain, place: ir.Expr, axis: Axis, size: int) -> int:
    """Elements of the longest aligned vectors along an axis, of which rows are whole multiples.

    Parameters
    ----------
    place : PrimExpr
        Position of an element, in elements; its neighbours along the axis are next to it.
    size : int
        Bytes of an element.
    """
    steps = [_step(domain, place, a) for a in domain.axes if a is not axis]
    start = constant(_at_zero(domain, place))
    width = VECTOR_BYTES // size
    for number in (constant(axis.extent), start, *steps):
        while width > 1 and (number is None or number % width):
            width //= 2
    return width


def _at_zero(domain: Domain, place: ir.Expr) -> ir.Expr:
    if find(place, ir.TensorLoad):
        return place
    return product([substitute(place, {v: index(0) for v in domain.variables})])


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
    parts = [_Part(cut, read, spot) for read in cut.transposed]
    loads = [part.fetch() for part in parts]
    stores = [part.keep(tile) for part, tile in zip(parts, shared, strict=True)]
    return block("read_tile", sequence([*loads, *stores]), [part.register for part in parts])


class _Part:
    """What one thread reads of a tile: a few vectors along its rows."""

    def __init__(self, cut: Tiles, read: Read, spot: Spot) -> None:
        found = read.element
        self._cut, self._found, self._spot, self._condition = cut, found, spot, read.condition
        place = offset(found.source, found.indices)
        self._width = 1
        if read.condition is None:
            self._width = aligned_width(cut.domain, place, cut.sides[0], _bytes(found))
        self._per_row = index(cut.rows // self._width)
        self._steps = cut.columns * cut.rows // self._width // THREADS
        size = self._steps * self._width
        self.register = local(f"{found.source.name}_part", [size], str(found.ty.dtype))

    def _place(self, step: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Row and column of the tile, of a vector's first element."""
        item = step * THREADS + self._spot.thread
        row = tirx.floormod(item, self._per_row) * self._width
        return row, tirx.floordiv(item, self._per_row)

    def fetch(self) -> tirx.Stmt:
        """Read all vectors."""
        cut, spot = self._cut, self._spot

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)
            row, column = spot.row + row, spot.column + column

            def one(lane: ir.Expr) -> tirx.Stmt:
                value = substitute(self._found, cut.place(spot.rest, row + lane, column))
                return tirx.BufferStore(self.register, value, [step * self._width + lane])

            copied = loop("lane", self._width, one, tirx.ForKind.VECTORIZED)
            if self._condition is not None:
                place = cut.place(spot.rest, row, column)
                copied = when(substitute(self._condition, place), copied)
            return cut.inside_row(row, cut.inside_column(column, copied))

        return loop("step", self._steps, vector, tirx.ForKind.UNROLLED)

    def keep(self, tile: ir.Var) -> tirx.Stmt:
        """Write them into shared memory, word by word: rows do not begin where vectors may."""
        pitch, lanes = self._cut.pitch(self._found), min(self._width, WORD // _bytes(self._found))

        def vector(step: ir.Expr) -> tirx.Stmt:
            row, column = self._place(step)

            def word(number: ir.Expr) -> tirx.Stmt:
                def one(lane: ir.Expr) -> tirx.Stmt:
                    part = number * lanes + lane
                    value = load(self.register, [step * self._width + part])
                    return tirx.BufferStore(tile, value, [column * pitch + row + part])

                return loop("lane", lanes, one, tirx.ForKind.VECTORIZED)

            return loop("word", self._width // lanes, word, tirx.ForKind.UNROLLED)

        return loop("step", self._steps, vector, tirx.ForKind.UNROLLED)


def write_tiles(
    cut: Tiles, shared: Sequence[ir.Var], number: ir.Expr, thread: ir.Expr
) -> tirx.Stmt:
    """Compute a thread's results, a word of the tiles by a vector at a time.

    Parameters
    ----------
    cut : Tiles
        How the domain is cut.
    shared : sequence of Var
        The tiles.
    number, thread : PrimExpr
        Of the block, and of the thread.
    """
    domain, width, pair, spot = cut.domain, cut.width, cut.pair, cut.spot(number, thread)
    side_by_side = WARP // width
    transposed = [read.element for read in cut.transposed]
    columns = [
        local(f"{x.source.name}_column", [width * pair], str(x.ty.dtype)) for x in transposed
    ]
    ahead = [local(f"{x.source.name}_vector", [width], str(x.ty.dtype)) for x in cut.straight]
    kept = domain.files(width)
    results = {
        s.buffer: local(f"{s.buffer.name}_vector", [width], str(s.buffer.ty.dtype))
        for s in domain.outputs
    }

    def step(number: ir.Expr) -> tirx.Stmt:
        item = number * THREADS + spot.thread
        outer, word, inner = coordinates(item, (cut.columns // WARP, cut.words, side_by_side))
        first = (outer * side_by_side + inner) * width
        column = spot.column + first
        fetched = [
            _column(cut, x, tile, register, first, word)
            for x, tile, register in zip(transposed, shared, columns, strict=True)
        ]

        def finish(part: ir.Expr) -> tirx.Stmt:
            row = spot.row + word * pair + part

            def swapped(value: ir.Expr, lane: ir.Expr) -> ir.Expr:
                staged = [
                    (x, r, lane * pair + part) for x, r in zip(transposed, columns, strict=True)
                ]
                staged += [(x, r, lane) for x, r in zip(cut.straight, ahead, strict=True)]

                def swap(found: ir.TensorLoad) -> ir.Expr:
                    slots = (load(r, [slot]) for x, r, slot in staged if same(found, x))
                    return next(slots, found)

                return substitute(value, {}, swap)

            def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
                return cut.place(spot.rest, row, column + lane)

            stmts = []
            for x, register in zip(cut.straight, ahead, strict=True):

                def read(
                    lane: ir.Expr, x: ir.TensorLoad = x, register: ir.Var = register
                ) -> tirx.Stmt:
                    return tirx.BufferStore(register, substitute(x, at(lane)), [lane])

                stmts.append(loop("lane", width, read, tirx.ForKind.VECTORIZED))
            for store in domain.stores:

                def compute(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                    changed = Store(store.buffer, store.indices, swapped(store.value, lane))
                    return changed.at(at(lane), {**kept, **results}, lane)

                stmts.append(loop("lane", width, compute, tirx.ForKind.UNROLLED))
            for store in domain.outputs:

                def write(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                    where = [substitute(i, at(lane)) for i in store.indices]
                    value = load(results[store.buffer], [lane])
                    return tirx.BufferStore(store.buffer, value, where)

                stmts.append(loop("lane", width, write, tirx.ForKind.VECTORIZED))
            return cut.inside_row(row, sequence(stmts))

        finished = loop("part", pair, finish, tirx.ForKind.UNROLLED)
        return cut.inside_column(column, sequence([*fetched, finished]))

    body = loop("step", WORDS // width // THREADS, step, tirx.ForKind.UNROLLED)
    return block("write_tile", body, [*columns, *ahead, *kept.values(), *results.values()])


def _column(
    cut: Tiles, x: ir.TensorLoad, tile: ir.Var, register: ir.Var, first: ir.Expr, word: ir.Expr
) -> tirx.Stmt:
    """Read a word, or two, of each of some rows of a tile."""
    pitch, pair = cut.pitch(x), cut.pair
    # Two words side by side do not begin where a vector may in every row.
    kind = tirx.ForKind.VECTORIZED if _bytes(x) < WORD else tirx.ForKind.UNROLLED

    def row(lane: ir.Expr) -> tirx.Stmt:
        def one(part: ir.Expr) -> tirx.Stmt:
            value = load(tile, [(first + lane) * pitch + word * pair + part])
            return tirx.BufferStore(register, value, [lane * pair + part])

        return loop("part", pair, one, kind)

    return loop("lane", cut.width, row, tirx.ForKind.UNROLLED)
