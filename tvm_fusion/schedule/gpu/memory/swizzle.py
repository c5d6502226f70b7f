"""Rows of 16-byte vectors in shared memory that ``ldmatrix`` reads without bank conflicts.

A matrix is the same vector of eight rows: these must lie in different banks, as must eight vectors
of one row, which copies write. Rows of a multiple of eight vectors (128 bytes) are permuted by an
XOR swizzle, as are those of two and four: vector v of row r lies in place ``v ^ swizzle(r)``. Other
rows are padded to an odd number of vectors.
"""

from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.loops import index

VECTOR = 8  # elements of two bytes
BANKS = 8  # vectors that shared memory delivers at once


def swizzle(row: ir.Expr, vectors: int) -> ir.Expr:
    """Return the XOR mask of a row's vector indices; it repeats every eighth row.

    Parameters
    ----------
    row
        The row, or its remainder by 8.
    vectors
        Of a row, a power of two or a multiple of eight.
    """
    wide = min(vectors, BANKS)
    return tirx.floormod(tirx.floordiv(row, index(BANKS // wide)), index(wide))


def exchanged(vector: ir.Expr, by: ir.Expr) -> ir.Expr:
    """Return the place of a vector in a row.

    In int32: TVM 0.27 narrows no index that goes through a call.
    """
    a, b = (x if str(x.ty.dtype) == "int32" else tirx.Cast("int32", x) for x in (vector, by))
    return tirx.Cast("int64", tirx.bitwise_xor(a, b))


@dataclass(frozen=True)
class SwizzledRows:
    """Rows of a tile."""

    first: int  # where the first row begins, in vectors
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
        """Return the place of the first element of a vector.

        Parameters
        ----------
        row_in_16
            ``row % 16``, where that is shorter.
        """
        if self.is_swizzled and self.vectors > 1:
            by = swizzle(row if row_in_16 is None else row_in_16, self.vectors)
            vector = tirx.bitwise_xor(vector, by)
        return (row * self.pitch + vector + self.first) * VECTOR


@dataclass(frozen=True)
class WaveRows(SwizzledRows):
    """Rows of a tile in LDS, for fragments of AMD that make the sums of a lane neighbours.

    Eight lanes read the same vector of rows 0 to 3 and 8 to 11. Places are of words of 32 bits.
    """

    @property
    def pitch(self) -> int:
        """Vectors from one row to the next: a power of two, or a multiple of eight."""
        return next((n for n in (1, 2, 4) if self.vectors <= n), -(-self.vectors // BANKS) * BANKS)

    def element(self, row: ir.Expr, vector: ir.Expr, row_in_16: ir.Expr | None = None) -> ir.Expr:
        """Return the place of the first word of a vector."""
        by = row if row_in_16 is None else row_in_16
        wide = min(self.pitch, BANKS)
        if wide > 1:
            low = tirx.floormod(tirx.floordiv(by, index(BANKS // wide)), index(wide // 2))
            high = tirx.floormod(tirx.floordiv(by, index(8)), index(2))
            vector = exchanged(vector, low + high * (wide // 2))
        return (row * self.pitch + vector + self.first) * (VECTOR // 2)


@dataclass(frozen=True)
class PanelRows(SwizzledRows):
    """Tiles of panels of eight vectors, as wgmma reads them with a swizzle of 128 bytes."""

    rows: int  # of a tile: a multiple of eight

    @property
    def pitch(self) -> int:
        """Vectors from one row to the next, over all panels."""
        return self.vectors

    @property
    def panel_bytes(self) -> int:
        """From one panel of a tile to the next."""
        return self.rows * BANKS * 16

    def element(self, row: ir.Expr, vector: ir.Expr, row_in_16: ir.Expr | None = None) -> ir.Expr:
        """Return the place of the first element of a vector; rows are those of all tiles."""
        tile, row = tirx.floordiv(row, index(self.rows)), tirx.floormod(row, index(self.rows))
        by = swizzle(row if row_in_16 is None else row_in_16, BANKS)
        panel = tirx.floordiv(vector, index(BANKS))
        vector = tirx.bitwise_xor(tirx.floormod(vector, index(BANKS)), by)
        tile = tile * (self.rows * self.vectors) + panel * (self.rows * BANKS)
        return (tile + row * BANKS + vector + self.first) * VECTOR
