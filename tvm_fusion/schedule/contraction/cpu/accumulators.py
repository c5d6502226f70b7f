"""The sums of one tile of C while they are computed: in vectors, or in tile registers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, over, prefetch, product, sequence, simplified
from ...cpu.register_tile import accumulate, each
from ...cpu.tile_block import WORD_BYTES, TileBlock, heights_of
from ...instructions.tiles import TILE_ROW_BYTES, TILE_ROWS, TileAddress, configure
from ..problem.gemm_view import GemmView
from .blocking import Blocking
from .dot_products import DotProduct
from .operands.a import OperandA, RowBlock
from .operands.b import OperandB, Panel
from .operands.tiles import TileRows

At = Callable[[ir.Expr, ir.Expr], ir.TensorLoad]  # an element in memory, by row and column


@dataclass(frozen=True)
class TilePlace:
    """Where a tile of C lies."""

    rows: RowBlock  # the rows of the part of the task, and the pass over K
    panel: Panel  # the columns
    offset: ir.Expr  # the tile's first row, relative to the part's
    # Rows and columns.
    height: int
    width: int
    clamp: bool  # whether rows may lie beyond M
    sizes: Blocking  # of the task


class Accumulators(ABC):
    """The sums of a tile.

    Attributes
    ----------
    buffer
        Where the epilogue reads them.
    first
        The row there that is the tile's first, where the buffer is memory; of registers ``None``.
    """

    first: ir.Expr | None = None

    def __init__(self, view: GemmView, place: TilePlace, buffer: ir.Var) -> None:
        self.buffer, self._view, self._place = buffer, view, place

    @property
    def buffers(self) -> list[ir.Var]:
        """The registers that a tile has of its own."""
        return [self.buffer] if self.first is None else []

    @abstractmethod
    def clear(self, initial: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Begin with initial values, by row."""

    @abstractmethod
    def load(self, source: At) -> tirx.Stmt:
        """Begin with sums from memory."""

    @abstractmethod
    def accumulate(self) -> tirx.Stmt:
        """Add the products of a pass over K."""

    @abstractmethod
    def store(self, target: At) -> tirx.Stmt:
        """Store the sums."""

    @abstractmethod
    def finish(self, epilogue: tirx.Stmt) -> tirx.Stmt:
        """Hand the sums to the epilogue, which reads them in the buffer."""

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Wrap the whole tile in what it needs."""
        return body

    def _over_k(self, body: Callable[[list[ir.Expr]], tirx.Stmt]) -> tirx.Stmt:
        return over(self._view.k_axes[:-1], body)

    def _step(self, around: list[ir.Expr], k: ir.Expr) -> ir.Expr:
        """Count the k of the panel that came before, in this tile and those of the part above."""
        place = self._place
        step = simplified(tirx.floordiv(place.offset, index(place.sizes.mr)))
        for axis, i in zip(self._view.k_axes, [*around, k], strict=True):
            step = step * (place.panel.k if i is k else axis.extent) + i
        return step


class VectorAccumulators(Accumulators):
    """Sums in vector registers; products one k, or one word of K, after the other."""

    def __init__(
        self,
        view: GemmView,
        place: TilePlace,
        dtype: str,
        operands: tuple[OperandA, OperandB],
        dot: DotProduct | None,
        is_first: bool = False,
    ) -> None:
        super().__init__(view, place, local("acc", [place.height, place.width], dtype))
        self._a, self._b = operands
        self._dot, self._is_first = dot, is_first

    def clear(self, initial: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Set the registers."""
        return self._each(lambda i, lane: tirx.BufferStore(self.buffer, initial(i), [i, lane]))

    def load(self, source: At) -> tirx.Stmt:
        """Load the registers."""
        return self._each(lambda i, j: tirx.BufferStore(self.buffer, source(i, j), [i, j]))

    def accumulate(self) -> tirx.Stmt:
        """Multiply, and prefetch the next panel."""
        place, a, b = self._place, self._a, self._b
        tiles = place.sizes.mc // place.sizes.mr

        def summing(around: list[ir.Expr]) -> tirx.Stmt:
            given = (
                self.buffer,
                place.panel.k,
                lambda i, k: a.at(place.rows, place.offset + i, [*around, k], place.clamp),
                lambda k, lane: b.at(place.panel, [*around, k], lane),
                lambda k: b.prefetch(place.panel, self._step(around, k), tiles),
            )
            if self._dot is not None:
                return self._dot.accumulate(*given)
            if not self._is_first:
                return accumulate(*given)
            return accumulate(*given, lambda k: b.begin_step(place.panel, [*around, k]))

        return self._over_k(summing)

    def store(self, target: At) -> tirx.Stmt:
        """Store the registers."""

        def one(i: ir.Expr, lane: ir.Expr) -> tirx.Stmt:
            to = target(i, lane)
            return tirx.BufferStore(to.source, load(self.buffer, [i, lane]), list(to.indices))

        return self._each(one)

    def finish(self, epilogue: tirx.Stmt) -> tirx.Stmt:
        """Leave the sums where they are."""
        return epilogue

    def _each(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return each(self.buffer, body)


def first_of(buffer: ir.Var, offset: ir.Expr, sizes: Blocking) -> ir.Expr:
    """Return where in the buffer of :class:`TileAccumulators` the sums of a tile begin."""
    number = tirx.floordiv(offset, index(sizes.mr))
    return simplified(tirx.floormod(number, index(2)) * (int(buffer.ty.shape[0]) // 2))


class TileAccumulators(Accumulators):
    """Sums in tile registers; products of whole tiles.

    A tile with fewer rows than others takes its rows from the padded rows of a copy, or shapes the
    tile registers for itself.

    Parameters
    ----------
    tiles
        The tiles as the task has shaped them.
    config
        Memory of the shapes.
    buffer
        Where they are stored for the epilogue: rows of two tiles, for one after the other in turns.
        In the same rows each time a GEMM of 1,024 rows took 1.05 times as long.
    """

    def __init__(
        self,
        view: GemmView,
        place: TilePlace,
        operands: tuple[TileRows, OperandB],
        tiles: TileBlock,
        config: ir.Var,
        buffer: ir.Var,
    ) -> None:
        self._a, self._b = operands
        self._config, self._given = config, tiles
        heights: tuple[ir.Expr | int, ...] = heights_of(place.height)
        super().__init__(view, place, buffer)
        self.first = first_of(buffer, place.offset, place.sizes)
        self._firsts = [index(i * TILE_ROWS) for i in range(len(heights))]
        self._is_shaped = self._a.pads or (heights == tiles.heights and not place.clamp)
        if place.clamp and not self._is_shaped:
            # Rows below M; a tile that has none repeats the last one.
            rest = self._a.rows - place.rows.start - place.offset
            heights = tuple(
                tirx.min(tirx.max(rest - first, index(1)), index(TILE_ROWS))
                for first in self._firsts
            )
            self._firsts = [tirx.min(first, rest - 1) for first in self._firsts]
        if not self._is_shaped:
            tiles = TileBlock(tiles.row, heights, tiles.columns, tiles.words)
        self._tiles = tiles.part(len(heights), -(-place.width // TILE_ROWS))

    def clear(self, initial: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
        """Set the tiles to zero: other initial values are not multiplied in tiles."""
        return self._tiles.clear()

    def load(self, source: At) -> tirx.Stmt:
        """Load the tiles."""
        return self._tiles.load(self._part_of(source))

    @property
    def steps(self) -> ir.Expr:
        """Count the steps of a pass over K."""
        outer = [index(axis.extent) for axis in self._view.k_axes[:-1]]
        return simplified(product([*outer, self._steps]))

    @property
    def _steps(self) -> ir.Expr:
        return simplified(tirx.floordiv(index(self._place.panel.k), index(self._tiles.words)))

    def accumulate(self, beside: Callable[[ir.Expr], tirx.Stmt] | None = None) -> tirx.Stmt:
        """Multiply; ``beside`` is what else is done in a step, by its number in the pass."""
        place, words = self._place, self._tiles.words

        def summing(around: list[ir.Expr]) -> tirx.Stmt:
            def a_tile(i: int, k: ir.Expr) -> TileAddress:
                row = place.offset + self._firsts[i]
                return self._a.tile(place.rows, row, [*around, k * words])

            def b_tile(j: int, k: ir.Expr) -> TileAddress:
                element = self._b.at(place.panel, [*around, k * words], index(j * TILE_ROWS))
                return TileAddress(element, self._b.width * WORD_BYTES)

            def more(k: ir.Expr) -> tirx.Stmt:
                stmts = [] if around else [self._prefetched(k)]
                if beside is not None:
                    number = index(0)
                    for axis, i in zip(self._view.k_axes, around, strict=False):
                        number = number * index(axis.extent) + i
                    stmts.append(beside(simplified(number * self._steps + k)))
                return sequence(stmts)

            return self._tiles.accumulate(self._steps, a_tile, b_tile, more, streams=True)

        return self._over_k(summing)

    def _prefetched(self, k: ir.Expr) -> tirx.Stmt:
        """Prefetch a part of the next pass over K, a part of it in each tile."""
        place, words = self._place, self._tiles.words
        sizes, line = place.sizes, TILE_ROW_BYTES // WORD_BYTES
        tiles = sizes.mc // sizes.mr
        if tiles < 2:
            return sequence([])
        lines = -(-words * self._b.width // (line * tiles))
        number = tirx.floordiv(place.offset, index(sizes.mr))
        step = simplified(number * self._steps) + k
        found = [self._b.ahead(place.panel, (step * lines + n) * line) for n in range(lines)]
        return sequence([prefetch(one, level=2) for one in found if one is not None])

    def store(self, target: At) -> tirx.Stmt:
        """Store the tiles."""
        return self._tiles.store(self._part_of(target))

    def finish(self, epilogue: tirx.Stmt) -> tirx.Stmt:
        """Store the tiles to the buffer."""
        return sequence([self.keep(), epilogue])

    def keep(self) -> tirx.Stmt:
        """Store the tiles to the buffer, for an epilogue that comes later."""
        first = self.first

        def sums(i: ir.Expr, j: ir.Expr) -> ir.TensorLoad:
            return load(self.buffer, [first + i, j])

        return self._tiles.store(self._part_of(sums))

    def around(self, body: tirx.Stmt) -> tirx.Stmt:
        """Shape the tiles for this one, and for the others again."""
        if self._is_shaped:
            return body
        before, after = (configure(self._config, t.shapes()) for t in (self._tiles, self._given))
        return sequence([before, body, after])

    def _part_of(self, at: At) -> Callable[[int, int], TileAddress]:
        def tile(i: int, j: int) -> TileAddress:
            first = at(index(i * TILE_ROWS), index(j * TILE_ROWS))
            width = int(first.source.ty.shape[-1])
            return TileAddress(first, width * WORD_BYTES)

        return tile
