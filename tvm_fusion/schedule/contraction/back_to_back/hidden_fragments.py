"""Hidden columns of two GEMMs back to back: sums of the first, as fragments of A of the second.

    before the first product is waited for:
      for tile of 8 columns, for the two rows of a thread:
        load what the two columns of a thread read                            global, in vectors
    behind it:
      fragments[k16, row, column tile, 2] = epilogue(sums), of H's type       registers
      zeros beyond the last column

Accumulators of 16 columns lie as a fragment of A of 16 terms does: groupID + 8 * row, 2 * quad +
8 * column tile.
"""

from __future__ import annotations

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import constant, coordinates, index, local, sequence, unrolled
from ...gpu.shared_tiles import touch
from ...gpu.wgmma import K
from ..tile.grid import TilePlace
from ..tile.result_vectors import ResultVectors
from ..tile.results import VectorResults
from ..tile.shape import M16
from .config import BackToBackConfig

PAIR = 2  # adjacent columns of an accumulator


class HiddenFragments:
    """Computes a chunk of the hidden columns.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    first : TensorLoad
        The first element of the fragments.
    """

    def __init__(self, config: BackToBackConfig) -> None:
        self._config = config
        extent = constant(config.first.problem.n_axes[-1].extent) or 1
        self._width = PAIR if extent % PAIR == 0 else 1
        in_row = config.first.problem.mma.c.lanes_per_row
        self._pairs = config.chunk // PAIR // in_row * 2  # of both rows of a thread
        vectors = ResultVectors(self._width, False)
        self._results = VectorResults(config.first, vectors, self._pairs * PAIR // self._width)
        (result,) = config.first.problem.contraction.results
        self._made = self._results.made[result.buffer]
        dtype = str(result.buffer.ty.dtype)
        self._fragments = local("fragments", [self._pairs * PAIR], dtype)
        self.first = load(self._fragments, [index(0)])
        self.buffers = [self._fragments, *self._results.buffers]

    def loads(self, place: TilePlace, thread: ir.Expr, chunk: ir.Expr) -> tirx.Stmt:
        """Load what the epilogue of a chunk reads."""
        if not self._results.reads:
            return sequence([])

        def one(i: ir.Expr) -> tirx.Stmt:
            stmts = []
            for number in range(PAIR // self._width):
                copy = i * (PAIR // self._width) + number
                where, _ = self._where(place, thread, chunk, i, number * self._width)
                stmts.append(self._results.load(copy, where))
            return sequence(stmts)

        return unrolled("pair", self._pairs, one)

    def stmt(self, sums: ir.Var, place: TilePlace, thread: ir.Expr, chunk: ir.Expr) -> tirx.Stmt:
        """Compute the fragments of a chunk of the sums."""
        config, width = self._config, self._width
        count = config.first.problem.mma.c.per_lane

        def one(i: ir.Expr) -> tirx.Stmt:
            n8, row = coordinates(i, [index(self._pairs // 2), 2])
            k16, tile = coordinates(n8, [index(config.chunk // K), 2])
            to = ((k16 * 2 + row) * 2 + tile) * PAIR
            stmts = []
            for first in range(0, PAIR, width):
                where, column = self._where(place, thread, chunk, i, first)

                def total(_: int, lane: int, first: int = first) -> ir.Expr:
                    return load(sums, [n8 * count + row * PAIR + first + lane])

                copy = i * (PAIR // width) + first // width
                stmts.append(self._results.compute(copy, where, total))
                for lane in range(width):
                    value: ir.Expr = load(self._made, [index(lane)])
                    for inside in config.first.grid.column_bounds(chunk, column + lane):
                        value = tirx.Select(inside, value, tirx.const(0, str(value.ty.dtype)))
                    stmts.append(tirx.BufferStore(self._fragments, value, [to + first + lane]))
            return sequence(stmts)

        whole = touch(self._fragments, self._pairs * PAIR - 1)
        return sequence([whole, unrolled("pair", self._pairs, one)])

    def _where(
        self, place: TilePlace, thread: ir.Expr, chunk: ir.Expr, i: ir.Expr, lane: int
    ) -> tuple[dict[ir.Var, ir.Expr], ir.Expr]:
        """Return the axes at columns, or at the last that exist, and their place in the chunk."""
        first = self._config.first
        mma, c = first.problem.mma, first.problem.mma.c
        warp, in_warp = coordinates(thread, [index(1), mma.lanes])
        own_row, own_column = c.of_lane(in_warp)
        down, _ = c.of_register(c.run)  # from a lane's first row to the other
        n8, half = coordinates(i, [index(self._pairs // 2), 2])
        row, column = warp * M16 + half * down + own_row, n8 * mma.n + own_column + lane
        rows = first.problem.axes_at(()) | first.grid.row_at(place.m_tile, row, is_clamped=True)
        return rows | first.grid.column_at(chunk, column, clamped=self._width), column
