"""Configuration of a tiled GEMM on tensor cores: block tiles, warps, pipeline stages, split-K.

C[m, n] = sum over k of A[m, k] * B[k, n]; M and the batch may be symbolic
grid     batch * tiles of C, M innermost in groups of group_m, times split_k ranks
block    warps_m * warps_n warps of warp_m * warp_n sums, times warps_k slices of each block_k
split    a tile has the same columns of each part of a column split, so that sums of one position
         meet in a warp: panels of 8 columns of each part
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tvm import ir, tirx

from ....core.expressions import call_name, loads
from ....core.loops import ceildiv, constant, coordinates, index, product
from ....program.stage import Axis
from ...instructions.nvidia import BYTE_TYPES, FLOAT8_TYPES, HALF_TYPES
from ..problem.sum_of_products import SumOfProducts
from .problem import GemmProblem
from .ragged_tiles import RaggedTiles, Table
from .shape import TileShape

ONE_STAGE = 0.65  # of the registers of a loop over stages


@dataclass(frozen=True)
class TileGemmConfig(TileShape):
    """Configuration of a tiled GEMM: a problem in tiles of a shape.

    Attributes
    ----------
    problem : GemmProblem
        What is computed.
    min_blocks_per_sm : int
        Blocks of a multiprocessor that the compiler leaves registers for: as many as the model
        counts with. Left alone, it took 158 registers of 256 threads where 126 did not spill, and
        multiprocessors had one block.
    """

    problem: GemmProblem = field(kw_only=True)
    min_blocks_per_sm: int = field(default=1, kw_only=True)
    steps_of_no_group: ClassVar[int] = 0  # along K, of a tile of rows of no group

    # What kernels and epilogues read of the problem.
    @property
    def contraction(self) -> SumOfProducts:
        """The product."""
        return self.problem.contraction

    @property
    def ragged(self) -> RaggedTiles | None:
        """Groups of rows whose number is the batch."""
        return self.problem.ragged

    @property
    def batch(self) -> tuple[Axis, ...]:
        """Axes of A, B and C."""
        return self.problem.batch

    @property
    def m_axes(self) -> tuple[Axis, ...]:
        """Axes of A and C."""
        return self.problem.m_axes

    @property
    def n_axes(self) -> tuple[Axis, ...]:
        """Axes of B and C."""
        return self.problem.n_axes

    @property
    def k_axes(self) -> tuple[Axis, ...]:
        """The reduction axes."""
        return self.problem.k_axes

    @property
    def m(self) -> ir.Expr:
        """Rows of C, of one matrix of the batch."""
        return self.problem.m

    @property
    def n(self) -> int:
        """Columns of C, of each part of a column split."""
        return self.problem.n

    @property
    def k(self) -> int:
        """Terms of a sum."""
        return self.problem.k

    @property
    def k_tiles(self) -> int:
        """Pipeline steps of a block."""
        return -(-self.k // (self.block_k * self.split_k))

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claimed_resources.

        Of split operands (3xTF32) fewer than of any K: a warp with one step of each stage adds to
        one set of sums, and a single stage leaves no loop.
        """
        found = self.registers_at_most
        if self.products == 1:
            return found
        if self.block_k == self.k_step * self.warps_k:
            found -= self.accumulators
        return max(32, round(found * ONE_STAGE)) if self.k_tiles == 1 else found

    @property
    def tiles_n(self) -> int:
        """Block tiles along N."""
        return -(-self.n // self.tile_positions)

    @property
    def tiles_m(self) -> ir.Expr:
        """Block tiles along M, at most where rows are ragged."""
        if self.ragged is not None:
            return self.ragged.most_tiles(self.block_m)
        return ceildiv(self.m, self.block_m)

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the grid."""
        batch = [a.extent for a in self.batch] if self.ragged is None else []
        return product([*batch, self.tiles_m, self.tiles_n, self.split_k])

    @property
    def workspace_elements(self) -> int:
        """Partial sums of split-K in global memory: whole tiles of every rank."""
        if not self.has_workspace:
            return 0
        return int(self.blocks) * self.accumulators * self.threads

    def tile_of(self, block: ir.Expr, tiles_m: ir.Expr | None = None) -> TilePlace:
        """Return the tile of a block: tiles along M innermost, in groups that share B.

        Parameters
        ----------
        tiles_m : Expr, optional
            Tiles along M, of a group of ragged rows.
        """
        tiles_m, tiles_n = self.tiles_m if tiles_m is None else tiles_m, self.tiles_n
        rank = tirx.floormod(block, index(self.split_k))
        block = tirx.floordiv(block, index(self.split_k))
        per_matrix = product([tiles_m, tiles_n])
        matrix, tile = tirx.floordiv(block, per_matrix), tirx.floormod(block, per_matrix)
        batch = coordinates(matrix, [a.extent for a in self.batch])
        static = constant(tiles_m)
        if static is not None and static <= self.group_m:
            first, size = index(0), index(static)
            inside = tile
        else:
            width = index(self.group_m * tiles_n)
            first = tirx.floordiv(tile, width) * self.group_m
            inside = tirx.floormod(tile, width)
            size = index(self.group_m)
            if static is None or static % self.group_m:
                size = tirx.min(tiles_m - first, size)
        return TilePlace(
            tuple(batch), first + tirx.floormod(inside, size), tirx.floordiv(inside, size), rank
        )

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return super().shared_bytes + self.problem.table_bytes

    def table(self, shared: ir.Var) -> Table:
        """Return the shared-memory offset of the table of ragged rows: behind all else."""
        return shared, self.shared_bytes - self.problem.table_bytes

    def found(self, block: ir.Expr, shared: ir.Var) -> tuple[TilePlace, list[tirx.Stmt]]:
        """Return the tile of a block, and the statements that find it where rows are ragged."""
        rows = self.ragged
        if rows is None:
            return self.tile_of(block), []
        each = self.tiles_n * self.split_k
        find = rows.find(tirx.floordiv(block, index(each)), self.table(shared))
        own = self.tile_of(block - rows.before * each, rows.tiles_of_group)
        keep = rows.place(own.m_tile, own.n_tile, self.block_m)
        return TilePlace((rows.group,), rows.first, rows.column, own.rank), [find, keep]

    def steps(self, count: int) -> ir.Expr:
        """Return how many of the steps along K a tile that was found takes."""
        if self.ragged is None:
            return index(count)
        rest = index(self.steps_of_no_group)
        return tirx.Select(self.ragged.has_products, index(count), rest)

    def first_row(self, m_tile: ir.Expr) -> ir.Expr:
        """Return the first row of a tile."""
        return m_tile if self.ragged is not None else m_tile * self.block_m

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
            m = tirx.min(m, self.m - 1)
        return axis_values(self.m_axes, m)

    def row_bounds(self, m_tile: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """List when a row of a tile exists, where the last tile reaches beyond the edge."""
        if self.ragged is not None:
            return [m_tile + row < self.ragged.end]
        rows = constant(self.m)
        if rows is None or rows % self.block_m:
            return [m_tile * self.block_m + row < self.m]
        return []

    def column_at(
        self, n_tile: ir.Expr, column: ir.Expr, clamped: int = 0
    ) -> dict[ir.Var, ir.Expr]:
        """Return the values of the axes of N at a column of a tile.

        Clamped to a vector of so many columns, of the last that exists.
        """
        n = n_tile * self.tile_positions + column
        if clamped and self.column_bounds(n_tile, column):
            n = tirx.min(n, index(self.n - clamped))
        return axis_values(self.n_axes, n)

    def column_bounds(self, n_tile: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """List when a column of a tile exists, where the last tile reaches beyond the edge."""
        if self.n % self.tile_positions == 0:
            return []
        return [n_tile * self.tile_positions + column < self.n]

    def bounds(self, place: TilePlace, row: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """List when a row and a column of a tile exist."""
        return self.row_bounds(place.m_tile, row) + self.column_bounds(place.n_tile, column)


def tiled(problem: GemmProblem, shape: TileShape, min_blocks_per_sm: int = 1) -> TileGemmConfig:
    """Configure a problem with tiles of a shape."""
    given = vars(TileShape.of(shape))
    return TileGemmConfig(**given, problem=problem, min_blocks_per_sm=min_blocks_per_sm)


@dataclass(frozen=True)
class TilePlace:
    """A block's tile: coordinates of its matrix, tile along M and N, rank among split-K blocks."""

    batch: tuple[ir.Expr, ...]
    m_tile: ir.Expr
    n_tile: ir.Expr
    rank: ir.Expr


def axis_values(axes: Sequence[Axis], flat: ir.Expr) -> dict[ir.Var, ir.Expr]:
    """Return the values of axes at a flat position."""
    values = coordinates(flat, [a.extent for a in axes])
    return {a.var: v for a, v in zip(axes, values, strict=True)}


# Types whose values another type holds exactly.
_EXACT_IN = {
    "float16": FLOAT8_TYPES,
    "bfloat16": FLOAT8_TYPES,
    "float32": HALF_TYPES + FLOAT8_TYPES,
    "int16": BYTE_TYPES,
    "int32": BYTE_TYPES,
}


def narrowed(operand: ir.Expr, dtype: str) -> ir.Expr | None:
    """Cast an operand to a type that holds its values exactly; ``None`` if that one does not."""
    core = narrow_operand(operand)
    own = str(core.ty.dtype)
    if own == dtype:
        return core
    return tirx.Cast(dtype, core) if own in _EXACT_IN.get(dtype, ()) else None


def narrow_operand(operand: ir.Expr) -> ir.Expr:
    """Take casts that change no value off an operand: what tensor cores multiply."""
    while isinstance(operand, tirx.Cast):
        wide, narrow = str(operand.ty.dtype), str(operand.value.ty.dtype)
        if narrow != wide and narrow not in _EXACT_IN.get(wide, ()):
            break
        operand = operand.value
    return operand


def is_plain(operand: ir.Expr) -> bool:
    """Whether an operand is loaded as it is."""
    return isinstance(operand, ir.TensorLoad) and not any(loads(i) for i in operand.indices)


def unguarded(operand: ir.Expr) -> tuple[ir.Expr, ir.Expr | None]:
    """Split an operand that is zero where a condition does not hold, as around an image.

    Returns
    -------
    (Expr, Expr or None)
        What it is where the condition holds, and the condition.
    """
    if isinstance(operand, ir.Call) and call_name(operand) == "if_then_else":
        condition, value, zero = operand.args
        if isinstance(zero, tirx.FloatImm | tirx.IntImm) and float(zero.value) == 0:
            return value, condition
    return operand, None
