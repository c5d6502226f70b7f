"""Layouts: which element of a matrix each register of each lane holds.

A layout numbers lanes and registers in mixed radix. Each digit has an extent and adds a multiple of
its value to the row and to the column; the lowest digit comes first. So rows of four lanes with two
contiguous elements each, as C of ``mma.m16n8k16`` has them, are

    lanes      (4: column += 2), (8: row += 1)
    registers  (2: column += 1), (2: row += 8)

A digit that adds nothing says that lanes hold copies. A place is linear in the digits: that of a
register is ``of_lane(lane)``, where the lane's first element lies, plus ``of_register(register)``.
Numbers may be expressions of a kernel: so it computes addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple


class Digit(NamedTuple):
    """A digit of a lane's or a register's number, and what a one in it adds to the place."""

    extent: int
    row: int
    column: int


@dataclass(frozen=True)
class Layout:
    """Where a matrix lies in the registers of lanes."""

    # Digits of a lane's number, and of the number of an element among those of a lane.
    lanes: tuple[Digit, ...]
    registers: tuple[Digit, ...]

    @cached_property
    def lane_count(self) -> int:
        """Number of lanes."""
        return prod(digit.extent for digit in self.lanes)

    @cached_property
    def per_lane(self) -> int:
        """Number of elements that a lane holds."""
        return prod(digit.extent for digit in self.registers)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        digits = (*self.lanes, *self.registers)
        rows = 1 + sum((digit.extent - 1) * digit.row for digit in digits)
        return rows, 1 + sum((digit.extent - 1) * digit.column for digit in digits)

    @cached_property
    def transposed(self) -> Layout:
        """The layout of the transposed matrix in the same registers."""
        lanes, registers = (
            tuple(Digit(d.extent, d.column, d.row) for d in digits)
            for digits in (self.lanes, self.registers)
        )
        return Layout(lanes, registers)

    @cached_property
    def lanes_per_row(self) -> int:
        """Number of lanes that share a row."""
        return prod(digit.extent for digit in self.lanes if not digit.row)

    @property
    def row_distances(self) -> tuple[int, ...]:
        """Bits of a lane's number that differ between lanes that share a row, as powers of two."""
        found, stride = [], 1
        for digit in self.lanes:
            if not digit.row:
                found += [stride << bit for bit in range(digit.extent.bit_length() - 1)]
            stride *= digit.extent
        return tuple(found)

    @cached_property
    def lanes_per_column(self) -> int:
        """Number of lanes that share a column: each has rows of its own."""
        return prod(digit.extent for digit in self.lanes if not digit.column)

    @property
    def run(self) -> int:
        """How many contiguous columns of a row follow each other in registers."""
        first = self.registers[0] if self.registers else None
        return first.extent if first is not None and (first.row, first.column) == (0, 1) else 1

    def place(self, lane: Any, register: Any) -> tuple[Any, Any]:
        """Return row and column of an element.

        Parameters
        ----------
        lane, register : int, numpy.ndarray or PrimExpr
            Numbers of the lane and of the element in it; so are the results.
        """
        (row, column), (down, right) = self.of_lane(lane), self.of_register(register)
        return row + down, column + right

    def of_lane(self, lane: Any) -> tuple[Any, Any]:
        """Return row and column of a lane's first element."""
        return _place(lane, self.lanes)

    def of_register(self, register: Any) -> tuple[Any, Any]:
        """Return how far below and right of a lane's first element another one lies."""
        return _place(register, self.registers)


def layout(
    lanes: Sequence[tuple[int, int, int]], registers: Sequence[tuple[int, int, int]]
) -> Layout:
    """Make a layout of digits ``(extent, row, column)``; those of extent 1 are left out."""
    return Layout(*(tuple(Digit(*d) for d in digits if d[0] > 1) for digits in (lanes, registers)))


def _place(number: Any, digits: Sequence[Digit]) -> tuple[Any, Any]:
    row, column = 0, 0
    for position, digit in enumerate(digits):
        is_highest = position == len(digits) - 1
        value, number = number if is_highest else number % digit.extent, number // digit.extent
        row = row + value * digit.row if digit.row else row
        column = column + value * digit.column if digit.column else column
    return row, column
