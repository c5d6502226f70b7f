"""What the threads of a block do with a tile: see :mod:`.tiles_gpu`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...fusion.expressions import load
from ..address import offset, same
from ..loops import block, coordinates, index, local, loop, sequence, substitute, when
from .domain import Store
from .reads import Read, bytes_of
from .tiles_gpu import THREADS, WARP, WORD, WORDS, Spot, Tiles, aligned_width


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
            self._width = aligned_width(cut.domain, place, cut.sides[0], bytes_of(found))
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
        pitch, lanes = self._cut.pitch(self._found), min(self._width, WORD // bytes_of(self._found))

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
    kind = tirx.ForKind.VECTORIZED if bytes_of(x) < WORD else tirx.ForKind.UNROLLED

    def row(lane: ir.Expr) -> tirx.Stmt:
        def one(part: ir.Expr) -> tirx.Stmt:
            value = load(tile, [(first + lane) * pitch + word * pair + part])
            return tirx.BufferStore(register, value, [lane * pair + part])

        return loop("part", pair, one, kind)

    return loop("lane", cut.width, row, tirx.ForKind.UNROLLED)
