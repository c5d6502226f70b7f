"""How warps of a product of few rows walk over tiles of the large factor, on tensor cores.

Every thread reads its tile of the large factor, and the same terms of the row that has its line's
number; lines behind the last row read that again, for results that nobody takes. What the threads
have read are fragments as it is, but for the order of a tile's terms, which both factors share. One
row alone is read and put into order once a block.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

from ...fusion.expressions import load
from ..gpu.mma import CHUNK, LINES, SHARERS, SUMS, multiply
from ..gpu.register_buffers import Registers
from ..gpu.vector_loads import Elements
from ..loops import coordinates, index, local, loop, sequence, substitute, unrolled, when
from .group_dequantize import GroupSums
from .shared_a_gpu import StagedTerms
from .skinny_mma_config import FragmentSlim, bare
from .skinny_mma_weights import FragmentWeights, Where

Slot = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]


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
        vectors = values.vectors()
        self._weights = FragmentWeights(cut, analyzer)
        self._small = Registers(vectors, cut.ahead * cut.eights, cut.threads)
        ordered = [self._values[term] for term in self._weights.order]
        self._staged = StagedTerms.of(cut, number, ordered, vectors)

        def own(name: str, size: int, dtype: str) -> ir.Var:
            # Lowering drops the thread's number, the first index.
            return local(name, [cut.threads, size], dtype)

        left = cut.ahead * cut.pieces * tile.width * tile.terms
        self._left = own("left", left, cut.half)
        self._right = own("right", cut.ahead * cut.eights * tile.terms, cut.half)
        self._sums = own("sums", cut.kept, "float32")
        self.buffers = [self._sums, self._left, self._right, *self._weights.buffers]
        self.buffers += self._small.arrays if self._staged is None else self._staged.buffers
        self._group: GroupSums | None = None
        if self._weights.scales is not None:
            self._group = GroupSums(cut, self._weights.parts)
            self.buffers += self._group.buffers

    def stmt(self) -> tirx.Stmt:
        """Add up all terms: every warp takes every so many steps, and reads some of them ahead."""
        cut = self._cut
        steps, slots = int(cut.steps) // SHARERS // cut.slices, cut.ahead

        def start(thread: ir.Expr) -> tirx.Stmt:
            def one(i: ir.Expr) -> tirx.Stmt:
                return tirx.BufferStore(self._sums, cut.contraction.initial, [thread, i])

            clear = unrolled("sum", cut.kept, one)
            return clear if self._group is None else sequence([clear, self._group.begin(thread)])

        def read(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            return self._phase(self._read, index(step), slot % slots)

        def use(step: ir.Expr | int, slot: int) -> tirx.Stmt:
            phases = (self._arrange, self._multiply)
            return sequence([self._phase(do, index(step), slot % slots) for do in phases])

        def turn(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for n in range(slots):
                stmts.append(read(i * slots + (n + slots - 1), n + slots - 1))
                stmts.append(use(i * slots + n, n))
            return sequence(stmts)

        turns = (steps - slots + 1) // slots
        stmts = [read(n, n) for n in range(slots - 1)]
        if self._staged is not None:
            stmts = [cut.every(self._staged.read), *stmts, cut.every(self._staged.stage)]
        stmts += [cut.every(start), loop("turn", turns, turn)]
        for n in range(turns * slots, steps):
            if n + slots - 1 < steps:
                stmts.append(read(n + slots - 1, n + slots - 1))
            stmts.append(use(n, n))
        return sequence(stmts)

    def _phase(self, do: Slot, step: ir.Expr, slot: int) -> tirx.Stmt:
        """Let every thread do something with a slot of registers and a step of its warp."""
        cut = self._cut

        def body(thread: ir.Expr) -> tirx.Stmt:
            warp, _, sharer = cut.lane(thread)
            return do(thread, index(slot), (step * cut.slices + warp) * SHARERS + sharer)

        return cut.every(body)

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

        return unrolled("sum", cut.kept, one)

    def _read(self, thread: ir.Expr, slot: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Read a tile of each piece, and the same terms of a row."""
        cut = self._cut

        def piece(p: ir.Expr) -> tirx.Stmt:
            return self._weights.read(slot * cut.pieces + p, self._place(thread, p, tile), thread)

        def eight(e: ir.Expr) -> tirx.Stmt:
            return self._small.fill(slot * cut.eights + e, self._row(thread, e, tile), None, thread)

        reads = [unrolled("piece", cut.pieces, piece)]
        if self._staged is None:
            reads.append(unrolled("eight", cut.eights, eight))
        return sequence(reads)

    def _arrange(self, thread: ir.Expr, slot: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Make fragments of what has been read."""
        cut, terms, weights = self._cut, self._cut.tile.terms, self._weights

        def piece(p: ir.Expr) -> tirx.Stmt:
            copy, where = slot * cut.pieces + p, self._place(thread, p, tile)
            stmts = [weights.convert(copy, thread)]
            for column in range(cut.width):
                for place, term in enumerate(weights.order):
                    value = weights.value(column, term, copy, where, thread)
                    mine = (copy * cut.width + column) * terms + place
                    stmts.append(tirx.BufferStore(self._left, value, [thread, mine]))
            return sequence(stmts)

        def eight(e: ir.Expr) -> tirx.Stmt:
            copy, where, stmts = slot * cut.eights + e, self._row(thread, e, tile), []
            for place, term in enumerate(weights.order):
                held = self._small.values(self._values[term], copy, thread)
                mine = [thread, copy * terms + place]
                stmts.append(tirx.BufferStore(self._right, substitute(held, where), mine))
            return sequence(stmts)

        pieces = unrolled("piece", cut.pieces, piece)
        if self._staged is not None:
            return sequence([pieces, self._staged.take(tile, self._right, thread, slot * terms)])
        return sequence([pieces, unrolled("eight", cut.eights, eight)])

    def _multiply(self, thread: ir.Expr, slot: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        """Multiply fragments; sums of a group of terms are scaled before they join the others."""
        cut, terms = self._cut, self._cut.tile.terms
        pairs, sums = cut.width // 2, cut.kept // cut.pieces

        def piece(p: ir.Expr) -> tirx.Stmt:
            copy, where = slot * cut.pieces + p, self._place(thread, p, tile)

            def column(number: ir.Expr | int, chunk: ir.Expr | int) -> ir.TensorLoad:
                place = (copy * cut.width + number) * terms + chunk * CHUNK
                return load(self._left, [thread, place])

            def row(eight: ir.Expr, chunk: ir.Expr | int) -> ir.TensorLoad:
                place = (slot * cut.eights + eight) * terms + chunk * CHUNK
                return load(self._right, [thread, place])

            def fragment(number: ir.Expr) -> tirx.Stmt:
                chunk, eight, pair = coordinates(number, [1, cut.eights, pairs])
                place = p * sums + (eight * pairs + pair) * SUMS
                both = [column(pair * 2 + side, chunk) for side in range(2)]
                return multiply(
                    cut.half, load(self._sums, [thread, place]), both, row(eight, chunk)
                )

            if self._group is None or self._weights.scales is None:
                return unrolled("fragment", terms // CHUNK * cut.eights * pairs, fragment)
            stmts = [self._group.add_up(thread, column, row)]
            for number in range(sums):
                own = number // 2 % cut.width
                value = self._group.value(thread, number, own)
                scaled = value * self._weights.scales[own](copy, where, thread)
                mine = [thread, p * sums + number]
                stmts.append(tirx.BufferStore(self._sums, load(self._sums, mine) + scaled, mine))
            return sequence(stmts)

        return unrolled("piece", cut.pieces, piece)

    def _place(self, thread: ir.Expr, piece: ir.Expr, tile: ir.Expr) -> Where:
        """Say where a thread's tile is; lines behind the last column read those before."""
        line = self._cut.nearest(self._number, self._cut.lane(thread)[1])
        return self._at(index(0), piece, line, tile)

    def _row(self, thread: ir.Expr, eight: ir.Expr, tile: ir.Expr) -> Where:
        """Say where the terms of a line's row are."""
        row, count = eight * LINES + self._cut.lane(thread)[1], self._cut.count
        row = row if count % LINES == 0 else tirx.min(row, index(count - 1))
        return self._at(row, index(0), index(0), tile)

    def _at(self, row: ir.Expr, piece: ir.Expr, line: ir.Expr, tile: ir.Expr) -> Where:
        place = self._cut.place(self._number, row, piece, line)
        return place | {self._cut.tile.down: tile}
