"""Operand A on tile registers: where it lies, or rows that a task copies."""

import math
from abc import abstractmethod
from collections.abc import Sequence

from tvm import DataType, ir, sym, tirx
from tvm.target import Target

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import (
    ceildiv,
    constant,
    index,
    loop,
    over,
    sequence,
    simplified,
    substitute,
    vectorized,
)
from .....core.tir.loops import product as product_of
from .....program.stage import Axis
from ....cpu.register_tile import in_vectors
from ....index.address import known_step, offset, stride
from ....instructions.tiles import TILE_ROW_BYTES, TileAddress, keep_extents
from ....math.vector_math import vector_math
from ...problem.gemm_view import GemmView
from ...problem.norm_prologue import NormPrologue
from ..blocking import Blocking
from ..tile_product import TileProduct
from .a import NormalizedA, OperandA, RowBlock

CACHE_SETS = 64  # of the level-1 cache, a line each
FEW_SETS = 4  # for the 16 rows of a tile
COPY_PANELS = 8  # of a task, that read a copy again


class TileRows(OperandA):
    """A, a tile at a time."""

    #: Whether tiles of rows beyond M may be loaded.
    pads = True

    @abstractmethod
    def tile(self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr]) -> TileAddress:
        """Tell where the tile is that begins at a row.

        Parameters
        ----------
        row
            Relative to the first row of the block.
        reduced
            The place in K; the last index is in words, relative to the pass.
        """

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read the first element of a tile."""
        return self.tile(rows, row, reduced).element


class RowsInPlace(TileRows):
    """A, loaded where it lies."""

    pads = False

    def __init__(self, view: GemmView, product: TileProduct, step: ir.Expr) -> None:
        super().__init__(view)
        self._product = product
        self._stride = step * DataType(product.a_dtype).itemsize

    def tile(self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr]) -> TileAddress:
        """Tell where A's own rows are."""
        element = element_of(self.view, self._product, rows, self.row_place(rows.start + row))
        *outer, last = reduced
        where = dict(zip((a.var for a in self.view.k_axes[:-1]), outer, strict=True))
        where[self._product.axis.var] = (rows.first_k + last) * self._product.group
        return TileAddress(substitute(element, where), self._stride)


class CopiedRows(TileRows):
    """Rows of A that a task copies: computed ones, and those that are no whole tiles.

    K is padded with zeros; rows beyond M hold anything.
    """

    def __init__(self, view: GemmView, product: TileProduct, sizes: Blocking) -> None:
        super().__init__(view)
        self._product, self._height = product, sizes.block_m
        self._chunk = product.words * product.group
        size = DataType(product.a_dtype).itemsize
        line = TILE_ROW_BYTES // size
        width = simplified(ceildiv(view.k_axes[-1].extent * product.group, line) * line + line)
        outer = [index(a.extent) for a in view.k_axes[:-1]]
        shape = [index(sizes.block_m), *outer, index(width)]
        self._stride = product_of([*outer, width]) * size
        self._buffer = declare(shape, product.a_dtype, "rows", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the copied rows."""
        return [self._buffer]

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Copy the rows of a task, a step of K at a time."""
        product, axes = self._product, self.view.k_axes
        count = tirx.min(index(self._height), self.rows - rows.start)
        steps = tirx.floordiv(index(rows.k), index(product.words))
        extent = index(product.axis.extent)

        def step(row: ir.Expr, outer: list[ir.Expr], number: ir.Expr) -> tirx.Stmt:
            element = element_of(self.view, product, rows, self.row_place(rows.start + row))
            here = dict(zip((a.var for a in axes[:-1]), outer, strict=True))
            first = number * self._chunk

            def copy(lane: ir.Expr, is_inside: bool) -> tirx.Stmt:
                k = first + lane
                value = vector_math(substitute(element, {**here, product.axis.var: k}))
                if not is_inside:
                    value = tirx.if_then_else(k < extent, value, tirx.const(0, product.a_dtype))
                to = [row, *outer, number * self._chunk + lane]
                return tirx.BufferStore(self._buffer, value, to)

            whole = vectorized(self._chunk, lambda lane: copy(lane, True))
            size = constant(extent)
            if size is not None and size % self._chunk == 0:
                return whole
            rest = loop("lane", self._chunk, lambda lane: copy(lane, False))
            return tirx.IfThenElse(first + self._chunk <= extent, whole, rest)

        def row(i: ir.Expr) -> tirx.Stmt:
            return over(axes[:-1], lambda outer: loop("step", steps, lambda n: step(i, outer, n)))

        return sequence([keep_extents(self._buffer), loop("row", count, row)])

    def tile(self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr]) -> TileAddress:
        """Tell where copied rows are."""
        *outer, last = reduced
        place = [rows.slot + row, *outer, (rows.first_k + last) * self._product.group]
        return TileAddress(load(self._buffer, place), self._stride)


class NormalizedTileRows(NormalizedA, TileRows):
    """Normalized rows, padded with zeros to whole steps."""

    def __init__(
        self,
        view: GemmView,
        prologue: NormPrologue,
        block: int,
        target: Target,
        product: TileProduct,
    ) -> None:
        self._product = product
        chunk, size = product.words * product.group, DataType(product.a_dtype).itemsize
        k = int(prologue.operand.ty.shape[-1])
        line = TILE_ROW_BYTES // size
        padding = -k % line + line
        super().__init__(view, prologue, block, target, padding)
        self._zeros = k, -k % chunk
        self._stride = size * math.prod(int(d) for d in self.buffer.ty.shape[1:])

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Normalize the rows of a block; what is beyond K becomes zero."""
        first, count = self._zeros
        zero = tirx.const(0, self._product.a_dtype)

        def pad(place: list[ir.Expr]) -> tirx.Stmt:
            return in_vectors(
                count, lambda lane: tirx.BufferStore(self.buffer, zero, [*place, first + lane])
            )

        axes = [Axis(tirx.Var("row", "int64"), extent) for extent in self.buffer.ty.shape[:-1]]
        zeros = [over(axes, pad)] if count else []
        return sequence([keep_extents(self.buffer), *zeros, super().fill(rows)])

    def tile(self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr]) -> TileAddress:
        """Tell where normalized rows are."""
        *outer, last = reduced
        place = [rows.slot + row, *outer, (rows.first_k + last) * self._product.group]
        return TileAddress(load(self.buffer, place), self._stride)


def tile_rows(view: GemmView, product: TileProduct, sizes: Blocking) -> TileRows:
    """Read A in place if its tiles are rows of memory at one distance, or copy it."""
    step = _row_stride(view, product)
    if step is None or _pays_copy(view, product, sizes, step):
        return CopiedRows(view, product, sizes)
    return RowsInPlace(view, product, step)


def _pays_copy(view: GemmView, product: TileProduct, sizes: Blocking, step: ir.Expr) -> bool:
    """Whether rows in place would push each other and B's panel out of the level-1 cache.

    Rows at a distance of many powers of two share few of its sets. On one core of a Xeon 1,024 x
    1,024 x 1,024 takes 0.91 of the time with rows that a task copies.
    """
    distance, columns = constant(step), constant(view.n_axes[-1].extent)
    if distance is None or columns is None:
        return False
    lines, rest = divmod(distance * DataType(product.a_dtype).itemsize, TILE_ROW_BYTES)
    sets = CACHE_SETS // math.gcd(lines, CACHE_SETS)
    panels = min(sizes.panels, math.ceil(columns / sizes.nr))
    return rest == 0 and sets <= FEW_SETS and panels >= COPY_PANELS


def element_of(
    view: GemmView, product: TileProduct, rows: RowBlock, place: dict[ir.Var, ir.Expr]
) -> ir.Expr:
    """Return an element of A at a row, over the axes of K."""
    return substitute(product.core, {**rows.place, **place})


def _row_stride(view: GemmView, product: TileProduct) -> ir.Expr | None:
    """Return the elements between A's rows; ``None`` if tiles cannot be loaded from A."""
    a, k = product.core, constant(product.axis.extent)
    if not isinstance(a, ir.TensorLoad) or k is None or k % (product.words * product.group):
        return None
    axes = [a.var for a in (*view.batch, *view.m_axes, *view.k_axes[:-1], product.axis)]
    if known_step(a.source, a.indices, product.axis.var, axes) != 1:
        return None
    place = offset(a.source, a.indices)
    found, inner = None, index(1)
    for axis in reversed(view.m_axes):
        step = stride(place, axis.var, axes)
        if step is None:
            return None
        if found is None:
            found = step
        elif not sym.Analyzer().can_prove_equal(step, found * inner):
            return None
        inner = inner * index(axis.extent)
    return index(0) if found is None else found
