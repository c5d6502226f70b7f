"""Blocks of tile registers (AMX): a few tiles of C, which share tiles of A and of B.

    shape the tiles                                      once for a task
    C[rows][columns] = 0, or loaded
    for k: load A[rows], B[columns]; for row, column: C[row][column] += A[row] * B[column]
    store C
    release                                              before the task ends

As in a register tile of vectors (:mod:`.register_tile`), loads are few compared with products: two
by two tiles of C take four loads for four products, one by four take five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...core.tir.loops import loop, sequence
from ..instructions.instruction import Instruction
from ..instructions.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TILES,
    TileAddress,
    TileShape,
    load_tile,
    multiply_tiles,
    store_tile,
    zero,
)

WORD_BYTES = 4

TileAt = Callable[[int, ir.Expr], TileAddress]  # by number of a row or column of tiles, and step
TileOf = Callable[[int, int], TileAddress]  # by row and column of tiles


@dataclass(frozen=True)
class TileBlock:
    """A block of C in tile registers: C's tiles row by row, then A's, then B's."""

    row: Instruction  # that multiplies tiles
    # Rows of each row of tiles, at most 16; of the same block elsewhere they may be fewer.
    heights: tuple[ir.Expr | int, ...]
    columns: int  # columns of tiles, of 16 columns each
    words: int = TILE_ROW_BYTES // WORD_BYTES  # words of 4 bytes of K in a step, at most 16
    # How many rows and columns of tiles are computed, the first ones; all by default.
    used: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Check that the tiles exist."""
        if not fits(len(self.heights), self.columns):
            raise ValueError(f"{len(self.heights)} x {self.columns} tiles are too many")

    def shapes(self) -> list[TileShape]:
        """Shape the tiles, in the order of their numbers."""
        width = TILE_ROW_BYTES
        sums = [TileShape(h, width) for h in self.heights for _ in range(self.columns)]
        a = [TileShape(h, self.words * WORD_BYTES) for h in self.heights]
        b = [TileShape(self.words, width)] * (TILES - len(sums) - len(a))
        return [*sums, *a, *b]

    def part(self, rows: int, columns: int) -> TileBlock:
        """Return the same tiles, of which only the first rows and columns are computed."""
        return replace(self, used=(rows, columns))

    def clear(self) -> tirx.Stmt:
        """Set C to zero."""
        return sequence([zero(self._sum(*at)) for at in self._places()])

    def load(self, source: TileOf) -> tirx.Stmt:
        """Load C."""
        return sequence([load_tile(self._sum(*at), source(*at)) for at in self._places()])

    def store(self, target: TileOf) -> tirx.Stmt:
        """Store C."""
        return sequence([store_tile(self._sum(*at), target(*at)) for at in self._places()])

    def accumulate(
        self,
        steps: ir.Expr | int,
        a: TileAt,
        b: TileAt,
        prefetched: Callable[[ir.Expr], tirx.Stmt] | None = None,
        streams: bool = False,
    ) -> tirx.Stmt:
        """Add the products of all steps.

        Parameters
        ----------
        a
            Tile of A of a row of tiles in a step.
        b
            Tile of B of a column of tiles in a step, in VNNI order.
        prefetched
            What to prefetch in a step.
        streams
            Whether A is not read again before the level-1 cache is full of it, while B is.
        """

        def step(k: ir.Expr) -> tirx.Stmt:
            products = self._step(a, b, streams, k)
            return products if prefetched is None else sequence([products, prefetched(k)])

        return loop("k", steps, step)

    def _step(self, a: TileAt, b: TileAt, streams: bool, k: ir.Expr) -> tirx.Stmt:
        first = len(self.heights) * self.columns
        others = range(first + len(self.heights), TILES)
        rows, columns = map(range, self._used)
        stmts = []
        for start in columns[:: len(others)]:
            tiles = dict(zip(columns[start:], others, strict=False))
            # Loads before products: a product takes more cycles than its loads, so that those of
            # the next step are on their way meanwhile. In turns a GEMM took 1.2 times as long.
            loads = [load_tile(tile, b(j, k)) for j, tile in tiles.items()]
            if start == 0:
                rows_of_a = [load_tile(first + i, a(i, k), streams) for i in rows]
                loads = [*rows_of_a[:1], *loads, *rows_of_a[1:]]
            products = [
                multiply_tiles(self.row, first + i, tile, self._sum(i, j))
                for i in rows
                for j, tile in tiles.items()
            ]
            stmts += [*loads, *products]
        return sequence(stmts)

    @property
    def _used(self) -> tuple[int, int]:
        return self.used or (len(self.heights), self.columns)

    def _sum(self, row: int, column: int) -> int:
        return row * self.columns + column

    def _places(self) -> list[tuple[int, int]]:
        rows, columns = self._used
        return [(i, j) for i in range(rows) for j in range(columns)]


def fits(rows: int, columns: int) -> bool:
    """Whether there are tiles for a block of C, a column of A's and one of B."""
    return rows * columns + rows + 1 <= TILES


def heights_of(rows: int) -> tuple[int, ...]:
    """Divide rows among tiles: all but the last one are full."""
    return tuple(min(TILE_ROWS, rows - first) for first in range(0, rows, TILE_ROWS))
