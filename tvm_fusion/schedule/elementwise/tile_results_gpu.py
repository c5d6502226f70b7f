"""What the threads of a block compute of a tile: see :mod:`.tiles_gpu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import block, coordinates, index, local, loop, sequence, substitute, unrolled
from ..address import offset, same
from .alignment import WORD, Aligned
from .domain import Store
from .reads import bytes_of
from .tiles_gpu import THREADS, WARP, Spot, Tiles, lead


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
    return _Results(cut, shared, cut.spot(number, thread)).write()


Places = Callable[[ir.Expr], list[ir.Expr]]  # from the lane of a vector to the element's indices


class _Results:
    """What one thread computes of a tile."""

    def __init__(self, cut: Tiles, shared: Sequence[ir.Var], spot: Spot) -> None:
        self._cut, self._shared, self._spot = cut, shared, spot
        domain, width = cut.domain, cut.width
        self._transposed = [read.element for read in cut.transposed]
        self._columns = [
            local(f"{x.source.name}_column", [width * cut.pair], str(x.ty.dtype))
            for x in self._transposed
        ]
        self._ahead = [
            local(f"{x.source.name}_vector", [width], str(x.ty.dtype)) for x in cut.straight
        ]
        self._reads = [Aligned.of(x.source, width) for x in cut.straight]
        self._writes = [Aligned.of(s.buffer, width) for s in domain.outputs]
        self._kept, self._single = domain.files(width), domain.files(1)
        self._vectors = {
            s.buffer: local(f"{s.buffer.name}_vector", [width], str(s.buffer.ty.dtype))
            for s in domain.outputs
        }

    def write(self) -> tirx.Stmt:
        """Compute and write everything, some vectors at a time."""
        steps = self._cut.columns * self._cut.rows // self._cut.pair // self._cut.width // THREADS
        body = unrolled("step", steps, self._step)
        buffers = [*self._columns, *self._ahead, *self._kept.values(), *self._vectors.values()]
        if self._cut.shift:
            buffers += [*self._single.values()]
            buffers += [aligned.number for aligned in (*self._reads, *self._writes)]
        return block("write_tile", body, buffers)

    def _step(self, number: ir.Expr) -> tirx.Stmt:
        """Compute one vector of each row of a word."""
        cut, spot = self._cut, self._spot
        side_by_side = WARP // cut.width
        extents = (cut.columns // WARP, cut.rows // cut.pair, side_by_side)
        outer, word, inner = coordinates(number * THREADS + spot.thread, extents)
        back = cut.back(spot.rest, spot.row + word * cut.pair)
        first = (outer * side_by_side + inner) * cut.width - back
        column = spot.column + first

        def place(which: int, lane: ir.Expr, part: ir.Expr) -> ir.Expr:
            """Where an element is in a tile."""
            overlap, pitch = cut.overlaps[which], cut.pitch(which)
            at = (first + cut.shift + lane) * pitch + word * cut.pair + part
            if overlap:
                at = at + lead(cut, self._transposed[which], overlap, spot, column + lane)
            return at

        def row(part: ir.Expr) -> tirx.Stmt:
            at = spot.row + word * cut.pair + part
            vector = self._vector(at, column, part)
            if not cut.shift:
                return cut.inside_row(at, vector)
            last = index(cut.sides[1].extent)
            is_whole = tirx.And(column >= 0, column + cut.width <= last)
            single = self._one_by_one(at, column, lambda i, lane: place(i, lane, part))
            return cut.inside_row(at, tirx.IfThenElse(is_whole, vector, single))

        fetched = [self._fetch(i, place) for i in range(len(self._transposed))]
        rows = unrolled("part", cut.pair, row)
        stmt = sequence([*fetched, rows])
        return stmt if cut.shift else cut.inside_column(column, stmt)

    def _fetch(self, which: int, place: Callable[[int, ir.Expr, ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Read a word, or two, of each of some rows of a tile."""
        tile, register, pair = self._shared[which], self._columns[which], self._cut.pair
        # Two words side by side do not begin where a vector may in every row.
        is_word = bytes_of(self._transposed[which]) < WORD
        kind = tirx.ForKind.VECTORIZED if is_word else tirx.ForKind.UNROLLED

        def row(lane: ir.Expr) -> tirx.Stmt:
            def one(part: ir.Expr) -> tirx.Stmt:
                value = load(tile, [place(which, lane, part)])
                return tirx.BufferStore(register, value, [lane * pair + part])

            return loop("part", pair, one, kind)

        return unrolled("lane", self._cut.width, row)

    def _vector(self, row: ir.Expr, column: ir.Expr, part: ir.Expr) -> tirx.Stmt:
        """Compute and write one vector of a row."""
        cut, domain, spot = self._cut, self._cut.domain, self._spot
        stmts = []

        def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return cut.place(spot.rest, row, column + lane)

        for i, (x, register) in enumerate(zip(cut.straight, self._ahead, strict=True)):
            where, before = self._places(self._reads[i], x.indices, at)

            def read(
                lane: ir.Expr,
                source: ir.Var = x.source,
                register: ir.Var = register,
                where: Places = where,
            ) -> tirx.Stmt:
                return tirx.BufferStore(register, load(source, where(lane)), [lane])

            stmts += [*before, loop("lane", cut.width, read, tirx.ForKind.VECTORIZED)]
        for store in domain.stores:

            def compute(lane: ir.Expr, store: Store = store) -> tirx.Stmt:
                slots = [load(r, [lane * cut.pair + part]) for r in self._columns]
                held = [*zip(self._transposed, slots, strict=True)]
                held += [
                    (x, load(r, [lane])) for x, r in zip(cut.straight, self._ahead, strict=True)
                ]
                return _swapped(store, held).at(at(lane), {**self._kept, **self._vectors}, lane)

            stmts.append(unrolled("lane", cut.width, compute))
        for i, store in enumerate(domain.outputs):
            where, before = self._places(self._writes[i], store.indices, at)

            def write(lane: ir.Expr, store: Store = store, where: Places = where) -> tirx.Stmt:
                value = load(self._vectors[store.buffer], [lane])
                return tirx.BufferStore(store.buffer, value, where(lane))

            stmts += [*before, loop("lane", cut.width, write, tirx.ForKind.VECTORIZED)]
        return sequence(stmts)

    def _places(
        self,
        aligned: Aligned,
        indices: Sequence[ir.Expr],
        at: Callable[[ir.Expr], dict[ir.Var, ir.Expr]],
    ) -> tuple[Places, list[tirx.Stmt]]:
        """Spell the places of a vector's elements, and what is to be known before."""
        if self._cut.shift:
            return aligned.at, [
                aligned.find(substitute(offset(aligned.buffer, indices), at(index(0))))
            ]
        return (lambda lane: [substitute(i, at(lane)) for i in indices]), []

    def _one_by_one(
        self, row: ir.Expr, column: ir.Expr, place: Callable[[int, ir.Expr], ir.Expr]
    ) -> tirx.Stmt:
        """Compute and write what exists of the vectors at the ends of a row."""
        cut, spot = self._cut, self._spot

        def one(lane: ir.Expr) -> tirx.Stmt:
            held = [
                (x, load(tile, [place(i, lane)]))
                for i, (x, tile) in enumerate(zip(self._transposed, self._shared, strict=True))
            ]
            at = cut.place(spot.rest, row, column + lane)
            stmts = [_swapped(s, held).at(at, self._single) for s in cut.domain.stores]
            return cut.inside_column(column + lane, sequence(stmts))

        return loop("lane", cut.width, one)


def _swapped(store: Store, held: Sequence[tuple[ir.TensorLoad, ir.Expr]]) -> Store:
    """Let a store's value take elements from where they are held."""

    def swap(found: ir.TensorLoad) -> ir.Expr:
        return next((where for x, where in held if same(found, x)), found)

    return Store(store.buffer, store.indices, substitute(store.value, {}, swap))
