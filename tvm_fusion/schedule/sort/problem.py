"""The problem of a sort: which keys, along which axis, and what of them is wanted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir


@dataclass(frozen=True)
class SortProblem:
    """A sort along one axis of static shapes."""

    source: ir.Var  # a buffer of integers
    # Buffers to write, and whether values, rather than their places, go there.
    targets: tuple[tuple[ir.Var, bool], ...]
    axis: int
    falls: bool  # whether the largest comes first

    @property
    def others(self) -> list[int]:
        """Extents of the other axes."""
        shape = list(map(int, self.source.shape))
        return shape[: self.axis] + shape[self.axis + 1 :]

    @property
    def rows(self) -> int:
        """Rows that are sorted, each on its own."""
        return math.prod(self.others)

    @property
    def keys(self) -> int:
        """Of a row."""
        return int(self.source.shape[self.axis])

    @property
    def bytes(self) -> int:
        """Of a key."""
        return int(DataType(str(self.source.dtype)).itemsize)

    @property
    def kept(self) -> int:
        """The first of a sorted row that are wanted."""
        return int(self.targets[0][0].shape[self.axis])

    def place(self, row: Sequence[ir.Expr], number: ir.Expr) -> list[ir.Expr]:
        """Return the indices of an element of a row."""
        return [*row[: self.axis], number, *row[self.axis :]]
