"""Configuration of a GEMM on Hopper's tensor cores: TMA pipeline, wgmma, a persistent grid.

grid     as many blocks as run at once; each takes every grid-th tile of C, M innermost in groups
block    a producer warpgroup, or two that compute B, and consumers that share the tile's rows
stage    tiles of A and B, 128 bytes along K: block_k = 64 terms of half types, 128 of bytes
split    the columns of a tile are whole periods of a column split, in the order of memory, such as
         heads that are rotated; or those of one part behind those of another
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm import ir, tirx

from ....core.tir.loops import ceildiv, constant, index, product
from ....program.stage import Axis
from ...gpu.matrix.wgmma import MOVED_REGISTERS, THREADS, WARPS, M
from ...gpu.memory import mbarrier
from ...gpu.memory.tma import ROW_BYTES
from ..tile.config import TileGemmConfig
from ..tile.grid import TileGrid, axis_values
from ..tile.shape import REGISTER_FILE
from .operands.computed import ComputedOperand
from .operands.matrix import TmaOperand
from .operands.rows import TmaRows
from .operands.window import TmaWindow

STAGE_K_BYTES = ROW_BYTES  # of a row of a stage
# Registers of a thread: 384 threads start with 168 each; consumers take what the producer gives.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = MOVED_REGISTERS[2]
# The same where producers compute B: one, or two.
COMPUTING_REGISTERS = ((104, 200), (104, 152))
MOST_BESIDE_TWO = 96  # accumulators of a consumer's thread besides two producers: more would spill
# Rows of 32 results in shared memory, of a warp; rows of a fragment lie in different banks.
STAGED_STRIDE = 32 + 4
STAGED_WARP_BYTES = 16 * STAGED_STRIDE * 4
SPLIT_REGISTERS = 26  # of a thread that only stores sums, besides them
OTHER_REGISTERS = 96  # of a consumer, besides accumulators: results and what they read


@dataclass(frozen=True)
class WgmmaConfig(TileGemmConfig):
    """Configuration of a GEMM with TMA and wgmma."""

    operand_a: TmaOperand | None = None
    operand_b: TmaOperand | None = None
    consumers: int = 2  # warpgroups that multiply, 1 or 2
    # Whether two consumers are ping-pong, each with a tile of its own: one multiplies while the
    # other stores its results. Otherwise they share the rows of a tile.
    is_ping_pong: bool = False
    # Whether the sums of each stage are added up in float32 outside of the instructions, which keep
    # 13 bits below the largest term of float8.
    is_promoted: bool = False
    blocks_per_sm: int = 1  # blocks that a multiprocessor holds at once
    multiprocessors: int = 1  # how many there are
    # Whether results go through shared memory, because they are not stored in vectors; with split-K
    # they do anyway.
    is_staged: bool = False
    # One, of zeros: consumers that cleared their sums instead would spill 836 bytes of 128 by 256.
    steps_of_no_group: ClassVar[int] = 1

    @property
    def tile_rows(self) -> int:
        """Rows of C of a tile, at most those that are multiplied."""
        return self.tile.block_m

    @property
    def resident(self) -> int:
        """Blocks that run at once."""
        return self.blocks_per_sm * self.multiprocessors

    @property
    def operands(self) -> tuple[TmaOperand, TmaOperand]:
        """A and B."""
        assert self.operand_a is not None
        assert self.operand_b is not None
        return self.operand_a, self.operand_b

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS * (self.producers + self.consumers)

    @property
    def producers(self) -> int:
        """Warpgroups that fill stages: two take turns where they compute B and registers are left.

        One has a warp for each scheduler, which waits for its own instructions.
        """
        has_two = self.computes_b and self.moves_registers and self.grid.k_tiles % 2 == 0
        return 2 if has_two and self.accumulators <= MOST_BESIDE_TWO else 1

    @property
    def moves_registers(self) -> bool:
        """Whether the producer gives registers to consumers."""
        return self.consumers == 2 and self.tile.split_k == 1

    @property
    def computes_b(self) -> bool:
        """Whether the producer's threads compute B; otherwise TMA copies it, as it does A."""
        return isinstance(self.operand_b, ComputedOperand)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of A and B in a pipeline stage."""
        return sum(x.bytes for x in self.operands)

    @property
    def copied_bytes(self) -> int:
        """Bytes of a stage that TMA copies."""
        return sum(x.copied_bytes for x in self.operands if x.maps)

    @property
    def moved_registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread, once they are moved."""
        if self.computes_b:
            return COMPUTING_REGISTERS[self.producers - 1]
        return PRODUCER_REGISTERS, CONSUMER_REGISTERS

    @property
    def slabs(self) -> int:
        """Instructions that a consumer's rows take."""
        return self.tile.block_m // self.consumers_of_tile // M

    @property
    def consumers_of_tile(self) -> int:
        """Consumers that share the rows of a tile."""
        return 1 if self.is_ping_pong else self.consumers

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the grid."""
        if self.tile.split_k > 1:
            return self.grid.tiles
        count = constant(self.grid.tiles)
        if count is not None:
            return index(min(count, self.resident))
        return tirx.min(self.grid.tiles, index(self.resident))

    @property
    def accumulators(self) -> int:
        """Accumulators of a consumer's thread."""
        return self.slabs * self.tile.block_n // 2

    @property
    def held_sums(self) -> int:
        """Registers of sums: of stages, and of all of them."""
        return self.accumulators * (2 if self.is_promoted else 1)

    @property
    def barrier_offset(self) -> int:
        """Where the barriers lie in shared memory, in bytes."""
        return self.tile.stages * self.stage_bytes

    @property
    def staging_offset(self) -> int:
        """Where staged results lie in shared memory, in bytes: behind the barriers."""
        return self.barrier_offset + -(-2 * (self.tile.stages + 1) * mbarrier.BYTES // 16) * 16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, two barriers for each, two for turns, results, rows."""
        if self.tile.split_k > 1:
            return max(
                self.barrier_offset + 2 * (self.tile.stages + 1) * mbarrier.BYTES,
                self.tile.staged_bytes,
            )
        if not self.is_staged:
            return self.staging_offset + self.problem.table_bytes
        return self.staging_offset + staged_bytes(self.consumers) + self.problem.table_bytes

    @property
    def registers(self) -> int:
        """Registers of a thread at the start of a block."""
        if self.tile.split_k > 1:
            return SPLIT_REGISTERS + self.held_sums
        if self.consumers == 2:
            return REGISTER_FILE // self.threads // 8 * 8  # all warpgroups have the whole file
        most = REGISTER_FILE // (self.threads * self.blocks_per_sm) // 8 * 8
        return min(255, most, OTHER_REGISTERS + self.held_sums)

    def first_columns(self, n_tile: ir.Expr) -> list[ir.Expr]:
        """Return the column of B that a tile begins with, for each part of a column split."""
        first = n_tile * self.tile.tile_positions
        split = self.problem.contraction.column_split
        if self.has_periods:
            return [n_tile * self.tile.block_n]
        if split is None or len(self.operands[1].maps) > 1:
            return [first] * self.problem.parts
        extents = [a.extent for a in self.problem.stored_n_axes]
        columns = []
        for part in range(self.problem.parts):
            place = axis_values(self.problem.n_axes, first) | {split.part.var: index(part)}
            column: ir.Expr = index(0)
            for axis, extent in zip(self.problem.stored_n_axes, extents, strict=True):
                column = column * index(extent) + place[axis.var]
            columns.append(column)
        return columns

    @property
    def has_periods(self) -> bool:
        """Whether a tile has whole periods of a column split, in the order of memory."""
        b = self.operand_b
        return self.problem.parts > 1 and isinstance(b, TmaOperand) and b.parts == 1

    def column_of(self, part: int, position: int) -> int:
        """Return the column of a tile that a part of a column split has at a position."""
        split = self.problem.contraction.column_split
        width = self.tile.tile_positions
        if self.has_periods:
            assert split is not None
            width = split.width
        period, within = divmod(position, width)
        return (period * self.problem.parts + part) * width + within

    @property
    def n8(self) -> int:
        """Tiles of eight columns of a thread's accumulators."""
        return self.tile.block_n // self.problem.mma.n


@dataclass(frozen=True)
class WindowGrid(TileGrid):
    """The grid of a convolution: rows of a tile are a rectangle of pixels, or columns are."""

    window: TmaWindow  # the image
    is_of_rows: bool  # whether operand A is the image; otherwise B is

    @property
    def k_tiles(self) -> int:
        """Pipeline steps of a block."""
        return -(-self.window.steps // self.tile.split_k)

    @property
    def tiles_m(self) -> ir.Expr:
        """Tiles along M."""
        return product(self.window.tiles) if self.is_of_rows else super().tiles_m

    @property
    def tiles_n(self) -> int:
        """Tiles along N."""
        return super().tiles_n if self.is_of_rows else self.window.tile_count

    def row_at(
        self, m_tile: ir.Expr, row: ir.Expr, is_clamped: bool = False
    ) -> dict[ir.Var, ir.Expr]:
        """Return the pixel or the channel of a row of a tile; clamped, the nearest that exists."""
        if not self.is_of_rows:
            return super().row_at(m_tile, row, is_clamped)
        return self._pixel(self.problem.m_axes, self.window.pixel(m_tile, row, int(is_clamped)))

    def row_bounds(self, m_tile: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """List when it exists, where the last rectangles reach beyond an edge."""
        if not self.is_of_rows:
            return super().row_bounds(m_tile, row)
        return self.window.bounds(m_tile, row)

    def column_at(
        self, n_tile: ir.Expr, column: ir.Expr, clamped: int = 0
    ) -> dict[ir.Var, ir.Expr]:
        """Return the pixel, or the channel, of a column of a tile."""
        if self.is_of_rows:
            return super().column_at(n_tile, column, clamped)
        return self._pixel(self.problem.n_axes, self.window.pixel(n_tile, column, clamped))

    def column_bounds(self, n_tile: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        """List when it exists."""
        if self.is_of_rows:
            return super().column_bounds(n_tile, column)
        return self.window.bounds(n_tile, column)

    def _pixel(self, axes: Sequence[Axis], place: list[ir.Expr]) -> dict[ir.Var, ir.Expr]:
        return {a.var: x for a, x in zip(axes, place, strict=True)}


@dataclass(frozen=True)
class WgmmaWindowConfig(WgmmaConfig):
    """Configuration of a convolution with TMA and wgmma: rows of a tile are a rectangle of pixels.

    Or its columns are, where results are contiguous along pixels: one operand is a
    :class:`.operands.window.TmaWindow`. Steps along K are taps times chunks of channels.
    """

    @property
    def is_of_rows(self) -> bool:
        """Whether operand A is the image; otherwise B is."""
        return isinstance(self.operand_a, TmaWindow)

    @property
    def window(self) -> TmaWindow:
        """The image."""
        found = self.operand_a if self.is_of_rows else self.operand_b
        assert isinstance(found, TmaWindow)
        return found

    @cached_property
    def grid(self) -> WindowGrid:
        """Where the tiles lie."""
        return WindowGrid(self.problem, self.tile, self.window, self.is_of_rows)


@dataclass(frozen=True)
class RowsGrid(TileGrid):
    """The grid of a product whose tiles have as many rows as boxes do."""

    tile_rows: int  # of a tile; the others are multiplied, and not stored

    @property
    def tiles_m(self) -> ir.Expr:
        """Tiles along M."""
        return ceildiv(self.problem.m, self.tile_rows)

    def first_row(self, m_tile: ir.Expr) -> ir.Expr:
        """Return the first row of a tile."""
        return m_tile * self.tile_rows

    def row_bounds(self, m_tile: ir.Expr, row: ir.Expr) -> list[ir.Expr]:
        """List when a row is in a box of its tile, and exists."""
        rows, found = constant(self.problem.m), []
        if self.tile_rows < self.tile.block_m:
            found.append(row < self.tile_rows)
        if rows is None or rows % self.tile_rows:
            found.append(self.first_row(m_tile) + row < self.problem.m)
        return found


@dataclass(frozen=True)
class WgmmaRowsConfig(WgmmaConfig):
    """Configuration of a product whose rows of A are behind index maps.

    See :class:`~.operands.rows.TmaRows`. A tile has as many rows as its boxes.
    """

    @property
    def tile_rows(self) -> int:
        """Rows of C of a tile."""
        assert isinstance(self.operand_a, TmaRows)
        return self.operand_a.tile_rows

    @cached_property
    def grid(self) -> RowsGrid:
        """Where the tiles lie."""
        return RowsGrid(self.problem, self.tile, self.tile_rows)


def staged_bytes(consumers: int) -> int:
    """Count the bytes of staged results of all warps."""
    return consumers * WARPS * STAGED_WARP_BYTES
