"""Where the results of a consumer's accumulators belong: rows and columns of C, and its edge."""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import constant, index, product
from .tile_gemm_config import TilePlace, axis_values
from .wgmma_config import WgmmaConfig


class ResultPlaces:
    """The places of a tile's results.

    Parameters
    ----------
    cut : WgmmaConfig
        The product.
    place : TilePlace
        The tile.
    """

    def __init__(self, cut: WgmmaConfig, place: TilePlace) -> None:
        self._cut, self._tile = cut, place
        self._rows = product([a.extent for a in cut.m_axes])

    def of(self, row: ir.Expr, column: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """Give the row and the column of C of those of the tile."""
        cut = self._cut
        return self._tile.m_tile * cut.block_m + row, self._tile.n_tile * cut.block_n + column

    def where(self, m: ir.Expr, n: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Give all axes at a row and a column."""
        cut = self._cut
        rows, columns = axis_values(cut.m_axes, m), axis_values(cut.n_axes, n)
        return {**cut.axes_at(self._tile.batch), **rows, **columns}

    def clamped(self, m: ir.Expr, n: ir.Expr, width: int) -> dict[ir.Var, ir.Expr]:
        """Give the axes of the last row, or vector, where the tile reaches beyond."""
        last_row = self._last(m, self._rows, self._cut.block_m, 1)
        last_column = self._last(n, index(self._cut.n), self._cut.block_n, width)
        return self.where(last_row, last_column)

    def inside(self, m: ir.Expr, n: ir.Expr) -> ir.Expr:
        """Whether a row and a column exist."""
        cut, found = self._cut, [tirx.const(True)]
        rows = constant(self._rows)
        if rows is None or rows % cut.block_m:
            found.append(m < self._rows)
        if cut.n % cut.block_n:
            found.append(n < cut.n)
        return tirx.all(*found)

    def _last(self, position: ir.Expr, extent: ir.Expr, block: int, width: int) -> ir.Expr:
        known = constant(extent)
        if known is not None and known % block == 0:
            return position
        return tirx.min(position, extent - width)
