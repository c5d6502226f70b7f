"""Where the tiles of a GEMM lie: which tile a block takes, which elements are in it.

grid     batch * tiles of C, M innermost in groups of group_m, times split_k ranks
split    a tile has the same columns of each part of a column split, so that sums of one position
         meet in a warp: panels of 8 columns of each part
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.loops import ceildiv, constant, coordinates, index, product
from ....program.stage import Axis
from .problem import GemmProblem
from .ragged_tiles import Table
from .shape import TileConfig


@dataclass(frozen=True)
class TilePlace:
    """A block's tile: coordinates of its matrix, tile along M and N, rank among split-K blocks."""

    batch: tuple[ir.Expr, ...]
    m_tile: ir.Expr
    n_tile: ir.Expr
    rank: ir.Expr


@dataclass(frozen=True)
class TileGrid:
    """The grid of tiles of a problem."""

    problem: GemmProblem  # what is computed
    tile: TileConfig  # the numbers of a tile

    @property
    def k_tiles(self) -> int:
        """Pipeline steps of a block."""
        return -(-self.problem.k // (self.tile.block_k * self.tile.split_k))

    @property
    def tiles_n(self) -> int:
        """Block tiles along N."""
        return -(-self.problem.n // self.tile.tile_positions)

    @property
    def tiles_m(self) -> ir.Expr:
        """Block tiles along M, at most where rows are ragged."""
        if self.problem.ragged is not None:
            return self.problem.ragged.most_tiles(self.tile.block_m)
        return ceildiv(self.problem.m, self.tile.block_m)

    @property
    def tiles(self) -> ir.Expr:
        """Tiles of C, times ranks of split-K."""
        batch = [a.extent for a in self.problem.batch] if self.problem.ragged is None else []
        return product([*batch, self.tiles_m, self.tiles_n, self.tile.split_k])

    def tile_of(self, block: ir.Expr, tiles_m: ir.Expr | None = None) -> TilePlace:
        """Return the tile of a block: tiles along M innermost, in groups that share B.

        Parameters
        ----------
        tiles_m
            Tiles along M, of a group of ragged rows.
        """
        tiles_m, tiles_n = self.tiles_m if tiles_m is None else tiles_m, self.tiles_n
        rank = tirx.floormod(block, index(self.tile.split_k))
        block = tirx.floordiv(block, index(self.tile.split_k))
        matrix, tile = index(0), block
        if constant(product([a.extent for a in self.problem.batch])) != 1:
            matrix, tile = _divided(block, product([tiles_m, tiles_n]))
        batch = coordinates(matrix, [a.extent for a in self.problem.batch])
        static = constant(tiles_m)
        if static is not None and static <= self.tile.group_m:
            first, size = index(0), index(static)
            inside = tile
        else:
            width = index(self.tile.group_m * tiles_n)
            first = tirx.floordiv(tile, width) * self.tile.group_m
            inside = tirx.floormod(tile, width)
            size = index(self.tile.group_m)
            if static is None or static % self.tile.group_m:
                size = tirx.min(tiles_m - first, size)
        column, row = _divided(inside, size)
        return TilePlace(tuple(batch), first + row, column, rank)

    def found(self, block: ir.Expr, table: Table) -> tuple[TilePlace, list[tirx.Stmt]]:
        """Return the tile of a block, and the statements that find it where rows are ragged."""
        rows = self.problem.ragged
        if rows is None:
            return self.tile_of(block), []
        each = self.tiles_n * self.tile.split_k
        find = rows.find(tirx.floordiv(block, index(each)), table)
        own = self.tile_of(block - rows.before * each, rows.tiles_of_group)
        keep = rows.place(own.m_tile, own.n_tile, self.tile.block_m)
        return TilePlace((rows.group,), rows.first, rows.column, own.rank), [find, keep]

    def first_row(self, m_tile: ir.Expr) -> ir.Expr:
        """Return the first row of a tile."""
        return m_tile if self.problem.ragged is not None else m_tile * self.tile.block_m

    def element_at(self, place: TilePlace, row: ir.Expr, column: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the values of the axes at a row and a column of a tile."""
        rows, columns = self.row_at(place.m_tile, row), self.column_at(place.n_tile, column)
        return {**self.problem.axes_at(place.batch), **rows, **columns}

    def row_at(
        self, m_tile: ir.Expr, row: ir.Expr, is_clamped: bool = False
    ) -> dict[ir.Var, ir.Expr]:
        """Return the axes of M at a row of a tile; clamped, of the last row that exists."""
        m = self.first_row(m_tile) + row
        if is_clamped and self.row_bounds(m_tile, row):
            m = tirx.min(m, self.problem.m - 1)
        return axis_values(self.problem.m_axes, m)

    def row_bounds(self, m_tile: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """List when a row of a tile exists, where the last tile reaches beyond the edge."""
        if self.problem.ragged is not None:
            return [m_tile + row < self.problem.ragged.end]
        rows = constant(self.problem.m)
        if rows is None or rows % self.tile.block_m:
            return [m_tile * self.tile.block_m + row < self.problem.m]
        return []

    def column_at(
        self, n_tile: ir.Expr, column: ir.Expr, clamped: int = 0
    ) -> dict[ir.Var, ir.Expr]:
        """Return the values of the axes of N at a column of a tile.

        Clamped to a vector of so many columns, of the last that exists.
        """
        n = n_tile * self.tile.tile_positions + column
        if clamped and self.column_bounds(n_tile, column):
            n = tirx.min(n, index(self.problem.n - clamped))
        return axis_values(self.problem.n_axes, n)

    def column_bounds(self, n_tile: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """List when a column of a tile exists, where the last tile reaches beyond the edge."""
        if self.problem.n % self.tile.tile_positions == 0:
            return []
        return [n_tile * self.tile.tile_positions + column < self.problem.n]

    def bounds(self, place: TilePlace, row: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """List when a row and a column of a tile exist."""
        return self.row_bounds(place.m_tile, row) + self.column_bounds(place.n_tile, column)


def _divided(number: ir.Expr, count: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Divide a number of tiles, with the remainder.

    By a symbolic count in 32 bits, which hold any number of a grid: in 64 it is 90 instructions
    more, and a branch, of a thread that others wait for.
    """
    if constant(count) is not None:
        return tirx.floordiv(number, count), tirx.floormod(number, count)
    short = [tirx.Cast("int32", x) for x in (number, count)]
    return tirx.Cast("int64", tirx.truncdiv(*short)), tirx.Cast("int64", tirx.truncmod(*short))


def axis_values(axes: Sequence[Axis], flat: ir.Expr) -> dict[ir.Var, ir.Expr]:
    """Return the values of axes at a flat position."""
    values = coordinates(flat, [a.extent for a in axes])
    return {a.var: v for a, v in zip(axes, values, strict=True)}
