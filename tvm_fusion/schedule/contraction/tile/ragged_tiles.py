"""Tiles of ragged rows on a GPU: which group a tile is of, and which rows it has.

    warp 0, a lane for each group, 32 at a time:
      count = ceil(rows of the group / block_m)
      table[group] = tiles before, by a scan over lanes; first row                       shared
    barrier
    of a tile:  the last group with no more tiles before, by bisection;  its place in the group

All tiles of a group are next to each other, so that its B is read from memory once. Rows behind
the last offset are a group more, without products: their sums are zeros. Without the table each
thread would go through all offsets for every tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tvm import DataType, ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, loop, sequence, simplified, when
from ...gpu.memory.shared_tiles import touch
from ...gpu.memory.vector_moves import VectorMoves
from ...gpu.threads.warp import LANES, shuffle
from ..problem.ragged_rows import RaggedRows

ENTRY_BYTES, WORD_BYTES = 8, 4  # tiles before a group, and its first row
# Registers: the entries of the group that was found, and of the next one; the tile.
BEFORE, ROW, AFTER, END, GROUP, FIRST, COLUMN, TOTAL, SUM, OTHER = range(10)


class Table(NamedTuple):
    """Where the table lies."""

    shared: ir.Var  # shared memory
    first: int  # the byte of it where the table begins
    moves: VectorMoves  # how threads read and write it


@dataclass(frozen=True, eq=False)
class RaggedTiles(RaggedRows):
    """The groups of a product's rows, in tiles."""

    registers: ir.Var  # of a thread: what it found

    @classmethod
    def of(cls, rows: RaggedRows) -> RaggedTiles:
        """Declare registers."""
        return cls(rows.offsets, rows.groups, rows.rows, local("rows", [OTHER + 1], "int32"))

    @property
    def table_bytes(self) -> int:
        """Shared memory of the table: an entry more for rows of no group, and for the end."""
        return -(-ENTRY_BYTES * (self._count + 2) // 16) * 16

    def most_tiles(self, block_m: int) -> ir.Expr:
        """Bound the tiles of rows: each group has one at most that is not full."""
        rest = (self._count + 1) * (block_m - 1)
        return simplified(tirx.floordiv(index(self.rows.extent) + rest, index(block_m)))

    @property
    def tiles(self) -> ir.Expr:
        """The tiles of rows, once they were counted (:meth:`count`)."""
        return tirx.Cast("int64", self._at(TOTAL))

    @property
    def group(self) -> ir.Expr:
        """The group of the tile that was found."""
        return tirx.Cast("int64", self._at(GROUP))

    @property
    def first(self) -> ir.Expr:
        """The first row of the tile."""
        return tirx.Cast("int64", self._at(FIRST))

    @property
    def end(self) -> ir.Expr:
        """The row behind the last one of the group."""
        return tirx.Cast("int64", self._at(END))

    @property
    def before(self) -> ir.Expr:
        """The tiles along M of groups before."""
        return tirx.Cast("int64", self._at(BEFORE))

    @property
    def tiles_of_group(self) -> ir.Expr:
        """The tiles along M of the group, at least one, so that it divides."""
        return tirx.Cast("int64", tirx.max(self._at(AFTER) - self._at(BEFORE), 1))

    @property
    def column(self) -> ir.Expr:
        """The number of the tile along N."""
        return tirx.Cast("int64", self._at(COLUMN))

    @property
    def has_products(self) -> ir.Expr:
        """Whether the tile's rows are of a group, and not behind the last."""
        return self.group < self._count

    @property
    def copied_first(self) -> ir.Expr:
        """The first row that TMA copies: for rows of no group zeros, from behind all rows."""
        return tirx.Select(self.has_products, self.first, index(self.rows.extent))

    def fill(self, thread: ir.Expr, block_m: int, table: Table) -> tirx.Stmt:
        """Fill the table; a barrier stands behind."""

        def some(number: ir.Expr) -> tirx.Stmt:
            group = number * LANES + thread
            count = tirx.floordiv(
                self._start(group + 1) - self._start(group) + (block_m - 1), index(block_m)
            )
            stmts = [self._set(BEFORE, tirx.max(count, index(0))), self._set(SUM, self._at(BEFORE))]
            for distance in (1, 2, 4, 8, 16):
                lane = tirx.max(tirx.Cast("int32", thread) - distance, 0)
                other = tirx.Select(thread >= distance, self._at(OTHER), tirx.const(0, "int32"))
                stmts.append(self._set(OTHER, shuffle(self._at(SUM), lane)))
                stmts.append(self._set(SUM, self._at(SUM) + other))
            before = self._at(TOTAL) + self._at(SUM) - self._at(BEFORE)
            stmts += [self._set(BEFORE, before), self._set(ROW, self._start(group))]
            entry = self._entry(table, group)
            stored = table.moves.store(entry, self._at(BEFORE), ENTRY_BYTES)
            stmts.append(when(group < self._count + 2, stored))
            last = shuffle(self._at(SUM), tirx.const(LANES - 1, "int32"))
            return sequence(
                [
                    *stmts,
                    self._set(OTHER, last),
                    self._set(TOTAL, self._at(TOTAL) + self._at(OTHER)),
                ]
            )

        rounds = loop("groups", -(-(self._count + 2) // LANES), some)
        whole = touch(self.registers, OTHER)
        return sequence([whole, when(thread < LANES, sequence([self._set(TOTAL, 0), rounds]))])

    def count(self, table: Table) -> tirx.Stmt:
        """Read how many tiles there are."""
        return table.moves.load(
            self._at(TOTAL), self._entry(table, index(self._count + 1)), WORD_BYTES
        )

    def find(self, number: ir.Expr, table: Table) -> tirx.Stmt:
        """Find the group of a tile, by its number if each group had tiles along M alone."""
        wanted, group = tirx.Cast("int32", number), self._at(GROUP)
        stmts, step = [self._set(GROUP, 0)], 1 << self._count.bit_length() - 1
        while step:
            entry = self._entry(table, tirx.Cast("int64", tirx.min(group + step, self._count + 1)))
            is_behind = tirx.all(group + step <= self._count, self._at(BEFORE) <= wanted)
            stmts.append(table.moves.load(self._at(BEFORE), entry, WORD_BYTES))
            stmts.append(self._set(GROUP, tirx.Select(is_behind, group + step, group)))
            step //= 2
        stmts.append(
            table.moves.load(self._at(BEFORE), self._entry(table, self.group), ENTRY_BYTES)
        )
        behind = self._entry(table, self.group + 1)
        stmts.append(table.moves.load(self._at(AFTER), behind, ENTRY_BYTES))
        return sequence(stmts)

    def place(self, m_tile: ir.Expr, n_tile: ir.Expr, block_m: int) -> tirx.Stmt:
        """Keep the place of a tile in its group."""
        first = self._at(ROW) + tirx.Cast("int32", m_tile) * block_m
        return sequence([self._set(FIRST, first), self._set(COLUMN, n_tile)])

    @property
    def _count(self) -> int:
        return int(self.groups.extent)

    def _start(self, group: ir.Expr) -> ir.Expr:
        """Return the first row of a group, or of what is behind."""
        before = tirx.min(tirx.max(group - 1, index(0)), index(self._count - 1))
        row = tirx.if_then_else(group > 0, self.row_behind(before), index(0))
        return tirx.if_then_else(group <= self._count, row, index(self.rows.extent))

    def _entry(self, table: Table, group: ir.Expr) -> ir.TensorLoad:
        item = DataType(str(table.shared.ty.dtype)).itemsize
        return load(table.shared, [group * (ENTRY_BYTES // item) + table.first // item])

    def _at(self, register: int) -> ir.TensorLoad:
        return load(self.registers, [index(register)])

    def _set(self, register: int, value: ir.Expr | int) -> tirx.Stmt:
        value = tirx.const(value, "int32") if isinstance(value, int) else value
        value = value if str(value.ty.dtype) == "int32" else tirx.Cast("int32", value)
        return tirx.BufferStore(self.registers, value, [register])
