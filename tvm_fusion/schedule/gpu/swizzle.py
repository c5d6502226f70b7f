"""Rows of 16-byte vectors in shared memory that ``ldmatrix`` reads without bank conflicts.

A matrix is the same vector of eight rows: these must lie in different banks. Rows of a multiple of
eight vectors (128 bytes) are permuted by an XOR swizzle, as are those of two and four; others are
padded to an odd number of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ...core.loops import index

VECTOR = 8  # elements of two bytes
BANKS = 8  # vectors that shared memory delivers at once


@dataclass(frozen=True)
class SwizzledRows:
    """Rows of a tile.

    Attributes
    ----------
    first : int
        Where the first row begins, in vectors.
    vectors : int
        Of a row.
    """

    first: int
    vectors: int

    @property
    def is_swizzled(self) -> bool:
        """Whether vectors are permuted, not rows padded."""
        return self.vectors % BANKS == 0 or BANKS % self.vectors == 0

    @property
    def pitch(self) -> int:
        """Vectors from one row to the next."""
        return self.vectors if self.is_swizzled else self.vectors | 1

    def size(self, rows: int) -> int:
        """Vectors of some rows, a multiple of eight."""
        return -(-rows * self.pitch // BANKS) * BANKS

    def element(self, row: ir.Expr, vector: ir.Expr, row_in_16: ir.Expr | None = None) -> ir.Expr:
        """Give the place of the first element of a vector.

        Parameters
        ----------
        row, vector : PrimExpr
            Which.
        row_in_16 : PrimExpr, optional
            ``row % 16``, where that is shorter.
        """
        if self.is_swizzled and self.vectors > 1:
            key = row if row_in_16 is None else row_in_16
            several = max(1, BANKS // self.vectors)
            if several > 1:
                key = tirx.floordiv(key, index(several))
            key = tirx.floormod(key, index(min(self.vectors, BANKS)))
            vector = tirx.bitwise_xor(vector, key)
        return (row * self.pitch + vector + self.first) * VECTOR


@dataclass(frozen=True)
class PanelRows(SwizzledRows):
    """Tiles of panels of eight vectors, as wgmma reads them with a swizzle of 128 bytes.

    Attributes
    ----------
    rows : int
        Of a tile: a multiple of eight.
    """

    rows: int

    @property
    def pitch(self) -> int:
        """Vectors from one row to the next, over all panels."""
        return self.vectors

    @property
    def panel_bytes(self) -> int:
        """From one panel of a tile to the next."""
        return self.rows * BANKS * 16

    def element(self, row: ir.Expr, vector: ir.Expr, row_in_16: ir.Expr | None = None) -> ir.Expr:
        """Give the place of the first element of a vector; rows are those of all tiles."""
        tile, row = tirx.floordiv(row, index(self.rows)), tirx.floormod(row, index(self.rows))
        key = tirx.floormod(row if row_in_16 is None else row_in_16, index(BANKS))
        panel = tirx.floordiv(vector, index(BANKS))
        vector = tirx.bitwise_xor(tirx.floormod(vector, index(BANKS)), key)
        tile = tile * (self.rows * self.vectors) + panel * (self.rows * BANKS)
        return (tile + row * BANKS + vector + self.first) * VECTOR
