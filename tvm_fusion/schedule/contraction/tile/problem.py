"""What a tiled GEMM on tensor cores computes, in tiles of any shape, and how large it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tvm import ir

from ....core.tir.loops import constant, index, product
from ....ecg.work import at
from ....program.stage import Axis
from ..problem.gemm_view import GemmView, interleave_parts, static_extent
from ..problem.sum_of_products import SumOfProducts, reads_windows
from .ragged_tiles import RaggedTiles
from .shape import TileOperands

ROWS_OF_SYMBOLIC_M = 512


@dataclass(frozen=True)
class GemmProblem(TileOperands, GemmView):
    """A product of types that tensor cores multiply, as a batch of GEMMs; no tile is chosen yet.

    M and the batch may be symbolic. Of a column split, ``n_axes`` have no axis of the parts.
    """

    contraction: SumOfProducts = field(kw_only=True)
    # Groups of rows whose number is the batch; then the place of a tile along M is its first row.
    ragged: RaggedTiles | None = field(default=None, kw_only=True)
    # Whether results are stored to be evicted first: see
    # :func:`..problem.result_traffic.outgrows_l2`.
    is_streamed: bool = field(default=False, kw_only=True)

    @property
    def m(self) -> ir.Expr:
        """Rows of C, of one matrix of the batch."""
        return product([a.extent for a in self.m_axes])

    @property
    def n(self) -> int:
        """Columns of C, of each part of a column split."""
        return static_extent(self.n_axes)

    @property
    def k(self) -> int:
        """Terms of a sum."""
        return static_extent(self.k_axes)

    @property
    def is_static(self) -> bool:
        """Whether M and the batch are known."""
        return all(constant(a.extent) is not None for a in (*self.batch, *self.m_axes))

    @property
    def stored_n_axes(self) -> tuple[Axis, ...]:
        """The axes of N as B has them: with that of the parts of a column split."""
        split = self.contraction.column_split
        if split is None:
            return self.n_axes
        return (*self.n_axes[:-1], split.part, split.position)

    def interleaved(self) -> GemmView:
        """View B with its columns in the order of a tile: a panel of each part."""
        split = self.contraction.column_split
        return self if split is None else interleave_parts(self, split, self.panel)

    @property
    def table_bytes(self) -> int:
        """Shared memory of the table of ragged rows."""
        return 0 if self.ragged is None else self.ragged.table_bytes

    def axes_at(self, batch: Sequence[ir.Expr]) -> dict[ir.Var, ir.Expr]:
        """Return the values of the batch axes, and of those of extent 1."""
        found = {a.var: index(0) for a in self.contraction.stage.axes}
        found |= {a.var: index(0) for a in self.contraction.stage.reduce}
        for axis in (*self.m_axes, *self.n_axes, *self.k_axes):
            del found[axis.var]
        return found | {a.var: p for a, p in zip(self.batch, batch, strict=True)}


class Sizes(NamedTuple):
    """How large a product is: matrices, and rows, columns and terms of each."""

    batch: int
    m: int
    n: int
    k: int

    def row_tiles(self, block_m: int) -> int:
        """Count the tiles of rows, of all matrices."""
        return self.batch * -(-self.m // block_m)


class RaggedSizes(Sizes):
    """The same of a matrix for each group of ragged rows, of which ``m`` is the mean."""

    def row_tiles(self, block_m: int) -> int:
        """Guess: of a group that is longer or shorter than the mean half of a tile is empty.

        On an H100, 64 groups of 128 rows on the average, 2048x1024: 138 us with tiles of 128 rows,
        117 with those of 64.
        """
        return math.ceil(self.batch * max(1.0, self.m / block_m + 0.5))


def assumed_rows(problem: GemmProblem) -> int:
    """Guess M where it is symbolic: few rows of matrices, the pixels of whole images."""
    if not reads_windows(problem.contraction):
        return ROWS_OF_SYMBOLIC_M
    return math.prod(at(a.extent) for a in problem.m_axes)


def gemm_sizes(view: GemmView, rows: int = ROWS_OF_SYMBOLIC_M) -> Sizes:
    """Count; a symbolic M is guessed."""
    m = constant(product([a.extent for a in view.m_axes]))
    batch = math.prod(at(a.extent) for a in view.batch)
    n, k = (int(product([a.extent for a in axes])) for axes in (view.n_axes, view.k_axes))
    if isinstance(view, GemmProblem):
        n *= view.parts
        if view.ragged is not None:
            return RaggedSizes(batch, -(-(rows if m is None else m) // batch), n, k)
    return Sizes(batch, rows if m is None else m, n, k)
