"""How warps of a product of few rows walk over tiles of the large factor, on tensor cores.

Every thread reads its tile of the large factor, and the same terms of the row that has its line's
number; lines behind the last row read that again, for results that nobody takes. What the threads
have read are fragments as it is, but for the order of a tile's terms, which both factors share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import ir, tirx

from ...fusion.expressions import load
from ..copies_gpu import commit, meet, wait
from ..loops import coordinates, index, local, loop, sequence, substitute, when
from .elements import Elements
from .fragment_slim import FragmentSlim, bare
from .fragment_weights import FragmentWeights, Where
from .fragments import CHUNK, LINES, SHARERS, SUMS, multiply
from .registers import Registers

Phase = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]


class FragmentWalk:
    """The sums of a block's warps.

    Parameters
    ----------
    cut : FragmentSlim
        The product.
    number : Expr
        The block.

    Attributes
    ----------
    buffers : list of Var
        What holds sums and tiles.
    """

    def __init__(self, cut: FragmentSlim, number: ir.Expr) -> None:
        self._cut, self._number = cut, number
        tile, stage = cut.tile, cut.contraction.stage
        analyzer = tile.analyzer((*stage.axes, *stage.reduce))
        values = Elements(analyzer)
        self._values = [values.read(tile.at(bare(cut.small), i, 0)) for i in range(tile.terms)]
        self._small = Registers(values.vectors(), cut.eights, cut.threads)
        self._weights = FragmentWeights(cut, analyzer)

        def own(name: str, size: int, dtype: str) -> ir.Var:
            # Lowering drops the thread's number, the first index.
            return local(name, [cut.threads, size], dtype)

        self._left = own("left", cut.pieces * tile.width * tile.terms, cut.half)
        self._right = own("right", cut.eights * tile.terms, cut.half)
        self._sums = own("sums", cut.kept, "float32")
        self.buffers = [self._sums, self._left, self._right]
        self.buffers += [*self._small.arrays, *self._weights.buffers]
        self._group = self._sums
        if cut.is_quantised:
            self._group = own("group", cut.kept // cut.pieces, "float32")
            self.buffers.append(self._group)

    def stmt(self) -> tirx.Stmt:
        """Add up all terms: every warp takes every so many runs, and asks for some ahead."""
        cut = self._cut

        def start(thread: ir.Expr) -> tirx.Stmt:
            def one(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._sums, cut.contraction.initial, [thread, i])

            return _unrolled("sum", cut.kept, one)

        def run(number: ir.Expr) -> tirx.Stmt:
            def phase(do: Phase, step: int) -> tirx.Stmt:
                return cut.every(partial(do, number, index(step)))

            # What is read directly is asked for before a wait, too.
            stmts = [self._ask(number + (cut.ahead - 1)), phase(self._read, 0)]
            stmts.append(cut.every(lambda _: wait(cut.ahead - 1)))
            for step in range(cut.run):
                stmts += [phase(self._read, step)] * (step > 0)
                stmts += [phase(do, step) for do in (self._take, self._arrange, self._multiply)]
            return sequence(stmts)

        first = [self._ask(index(n)) for n in range(cut.ahead - 1)]
        return sequence([*first, cut.every(start), loop("run", cut.runs, run)])

    def publish(self, rows: range, shared: ir.Var, thread: ir.Expr) -> tirx.Stmt:
        """Write some rows of a warp's sums where all threads see them."""
        cut = self._cut
        warp, line, sharer = cut.lane(thread)

        def one(number: ir.Expr) -> tirx.Stmt:
            piece, eight, column, own = coordinates(number, [1, cut.eights, cut.width, 2])
            row = eight * LINES + sharer * 2 + own - rows.start
            place = (row * cut.pieces + piece) * cut.side + line * cut.width + column
            value = load(self._sums, [thread, number])
            inside = tirx.all(row >= 0, row < len(rows))
            return when(inside, tirx.BufferStore(shared, value, [warp, place]))

        return _unrolled("sum", cut.kept, one)

    def _ask(self, number: ir.Expr) -> tirx.Stmt:
        """Ask for the weights of a run, if there is such a one."""
        cut = self._cut

        def body(thread: ir.Expr) -> tirx.Stmt:
            def copies(i: ir.Expr) -> tirx.Stmt:
                piece, part = coordinates(i, [cut.pieces, cut.run])
                line, step, sharer = cut.copied(part, thread)
                where = self._place(thread, number, step, piece, line, sharer)
                slot = [self._slot(number), piece, *cut.held(thread, line, step, sharer)]
                return self._weights.ask(slot, where)

            stmt = when(number < cut.runs, _unrolled("copy", cut.pieces * cut.run, copies))
            return sequence([meet(), stmt, commit()])

        return cut.every(body)

    def _read(self, number: ir.Expr, step: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Read the terms of a row, and what is not copied of a tile of each piece."""
        cut = self._cut

        def piece(p: ir.Expr) -> tirx.Stmt:
            return self._weights.read(p, self._own(thread, number, step, p), thread)

        def eight(e: ir.Expr) -> tirx.Stmt:
            return self._small.fill(e, self._row(thread, number, step, e), None, thread)

        eights = _unrolled("eight", cut.eights, eight)
        return sequence([eights, _unrolled("piece", cut.pieces, piece)])

    def _take(self, number: ir.Expr, step: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Take the copied vectors of a tile of each piece."""
        cut = self._cut
        _, line, sharer = cut.lane(thread)

        def piece(p: ir.Expr) -> tirx.Stmt:
            slot = [self._slot(number), p, *cut.held(thread, line, step, sharer)]
            return self._weights.take(slot, p, thread)

        return _unrolled("piece", cut.pieces, piece)

    def _slot(self, number: ir.Expr) -> ir.Expr:
        return tirx.floormod(number, index(self._cut.ahead))

    def _arrange(self, number: ir.Expr, step: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Make fragments of what has been read."""
        cut, terms, weights = self._cut, self._cut.tile.terms, self._weights

        def piece(p: ir.Expr) -> tirx.Stmt:
            where = self._own(thread, number, step, p)
            stmts = [weights.convert(p, thread)]
            for column in range(cut.width):
                for place, term in enumerate(weights.order):
                    value = weights.value(column, term, p, where, thread)
                    mine = (p * cut.width + column) * terms + place
                    stmts.append(tirx.BufferStore(self._left, value, [thread, mine]))
            return sequence(stmts)

        def eight(e: ir.Expr) -> tirx.Stmt:
            where, stmts = self._row(thread, number, step, e), []
            for place, term in enumerate(weights.order):
                held = self._small.values(self._values[term], e, thread)
                mine = [thread, e * terms + place]
                stmts.append(tirx.BufferStore(self._right, substitute(held, where), mine))
            return sequence(stmts)

        pieces = _unrolled("piece", cut.pieces, piece)
        return sequence([pieces, _unrolled("eight", cut.eights, eight)])

    def _multiply(self, number: ir.Expr, step: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Multiply fragments; sums of a group of terms are scaled before they join the others."""
        cut, terms = self._cut, self._cut.tile.terms
        pairs, sums = cut.width // 2, cut.kept // cut.pieces

        def piece(p: ir.Expr) -> tirx.Stmt:
            where = self._own(thread, number, step, p)

            def fragment(i: ir.Expr) -> tirx.Stmt:
                chunk, eight, pair = coordinates(i, [1, cut.eights, pairs])
                first = p * sums if self._weights.scales is None else index(0)
                low = (p * cut.width + pair * 2) * terms + chunk * CHUNK
                return multiply(
                    cut.half,
                    load(self._group, [thread, first + (eight * pairs + pair) * SUMS]),
                    [load(self._left, [thread, low + column * terms]) for column in range(2)],
                    load(self._right, [thread, eight * terms + chunk * CHUNK]),
                )

            fragments = _unrolled("fragment", terms // CHUNK * cut.eights * pairs, fragment)
            if self._weights.scales is None:
                return fragments

            def clear(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._group, tirx.const(0, "float32"), [thread, i])

            stmts = [_unrolled("sum", sums, clear), fragments]
            for i in range(sums):
                scale = self._weights.scales[i // 2 % cut.width](p, where, thread)
                mine = [thread, p * sums + i]
                value = load(self._group, [thread, index(i)]) * scale
                stmts.append(tirx.BufferStore(self._sums, load(self._sums, mine) + value, mine))
            return sequence(stmts)

        return _unrolled("piece", cut.pieces, piece)

    def _own(self, thread: ir.Expr, number: ir.Expr, step: ir.Expr, piece: ir.Expr) -> Where:
        """Say where a thread's tile is."""
        _, line, sharer = self._cut.lane(thread)
        return self._place(thread, number, step, piece, line, sharer)

    def _place(
        self,
        thread: ir.Expr,
        number: ir.Expr,
        step: ir.Expr,
        piece: ir.Expr,
        line: ir.Expr,
        sharer: ir.Expr,
    ) -> Where:
        """Say where a tile of a thread's warp is; lines behind the last read columns before."""
        nearest = self._cut.nearest(self._number, line)
        place = self._cut.place(self._number, index(0), piece, nearest)
        return place | self._terms(thread, number, step, sharer)

    def _row(self, thread: ir.Expr, number: ir.Expr, step: ir.Expr, eight: ir.Expr) -> Where:
        """Say where the terms of a line's row are."""
        _, line, sharer = self._cut.lane(thread)
        row, count = eight * LINES + line, self._cut.count
        row = row if count % LINES == 0 else tirx.min(row, index(count - 1))
        place = self._cut.place(self._number, row, index(0), index(0))
        return place | self._terms(thread, number, step, sharer)

    def _terms(self, thread: ir.Expr, number: ir.Expr, step: ir.Expr, sharer: ir.Expr) -> Where:
        cut = self._cut
        run = number * cut.slices + cut.lane(thread)[0]
        return {cut.tile.down: (run * cut.run + step) * SHARERS + sharer}


def _unrolled(name: str, trips: int, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    return loop(name, trips, body, tirx.ForKind.UNROLLED)
