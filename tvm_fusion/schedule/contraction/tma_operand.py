"""Operands of a GEMM as tensor maps: which views the Tensor Memory Accelerator copies.

    A[m, k], B[n, k]     contiguous along K:       boxes of 64 k times the rows of a tile
    A[k, m], B[k, n]     contiguous along M or N:  panels of 64 rows, boxes of 64 times block_k

Rows, terms and the batch may each be several axes that lie in memory as one; a batch of several
strides takes a dimension each. Addresses and strides of a map are multiples of 16 bytes, but boxes
begin at any element. So rows along K of any stride are viewed as eight interleaved matrices:

    matrix p    rows p, p + 8, p + 16, .., 8 * stride apart; the address of the first is rounded
                down by shifts[p] elements
    a tile      the boxes of eight matrices, one behind the other: row r lies at
                r % 8 * (rows / 8) + r / 8
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, sym, tirx

from ...core.expressions import int64
from ...core.loops import constant, coordinates, index, product, simplified, substitute
from ...program.stage import Axis
from ..address import offset, stride
from ..gpu.tma import ALIGNMENT, MAX_RANK, ROW_BYTES, TILE_ALIGNMENT, TensorMap
from ..gpu.wgmma import Operand
from .gemm_view import GemmView
from .tile_gemm_config import half_operand, is_plain

ITEM_BYTES = 2  # of a half type
LANES = ALIGNMENT // ITEM_BYTES  # elements that an address is a multiple of
PANEL = ROW_BYTES // ITEM_BYTES  # elements of a row of shared memory
ROWS_OF_BOX = TILE_ALIGNMENT // ROW_BYTES  # at least, so that the next box is aligned


@dataclass(frozen=True)
class TmaOperand:
    """An operand that TMA copies.

    Attributes
    ----------
    maps : tuple of TensorMap
        Its view, without the batch broadcast; or those of eight interleaved matrices.
    shifts : tuple of int
        Where the first element of each view lies.
    is_k_contiguous : bool
        Whether rows of shared memory are of K.
    batch : tuple of Var
        The batch axes that are dimensions of the view, in order.
    rows : int
        Rows of A, or columns of B, of a block's tile.
    block_k : int
        Terms of a pipeline stage.
    """

    maps: tuple[TensorMap, ...]
    shifts: tuple[int, ...]
    is_k_contiguous: bool
    batch: tuple[ir.Var, ...]
    rows: int
    block_k: int

    @property
    def is_interleaved(self) -> bool:
        """Whether rows of a tile are permuted, as those of eight interleaved matrices."""
        return len(self.maps) > 1

    def row(self, place: ir.Expr) -> ir.Expr:
        """Give the row of A, or the column of B, that lies at a place of the tile's rows."""
        if not self.is_interleaved:
            return place
        number, in_box = coordinates(place, [index(1), self.rows // len(self.maps)])
        return in_box * len(self.maps) + number

    @property
    def bytes(self) -> int:
        """Size of a tile in shared memory."""
        return self.rows * self.block_k * ITEM_BYTES

    @property
    def panel_bytes(self) -> int:
        """From one box in shared memory to the next."""
        return PANEL * (self.rows if self.is_k_contiguous else self.block_k) * ITEM_BYTES

    @property
    def layout(self) -> Operand:
        """How the tile lies for wgmma."""
        return Operand(self.is_k_contiguous, self.panel_bytes)

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], first: ir.Expr, k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the boxes of a tile: place in shared memory in bytes, map, and coordinates."""
        behind = [batch[axis] for axis in self.batch]
        if self.is_k_contiguous:
            count = len(self.maps)
            row = first if count == 1 else tirx.floordiv(first, index(count))
            return [
                (i * (self.bytes // count), i, [k + shift, row, *behind])
                for i, shift in enumerate(self.shifts)
            ]
        return [
            (i * self.panel_bytes, 0, [first + i * PANEL, k, *behind])
            for i in range(self.rows // PANEL)
        ]

    def slab(self, row: ir.Expr) -> ir.Expr:
        """Give the place of 64 rows of A that start at a row of the tile, in bytes."""
        if self.is_k_contiguous:
            return row * ROW_BYTES
        return tirx.floordiv(row, index(PANEL)) * self.panel_bytes


def tma_operand(view: GemmView, is_a: bool, rows: int, block_k: int) -> TmaOperand | None:
    """View A or B as a tensor map; ``None`` where TMA cannot copy it.

    Parameters
    ----------
    view : GemmView
        The product.
    is_a : bool
        Whether it is A.
    rows, block_k : int
        The tile: rows of A or columns of B, and terms.
    """
    load = half_operand(view.a if is_a else view.b)
    if not is_plain(load):
        return None
    own = view.m_axes if is_a else view.n_axes
    axes = [a.var for a in (*view.batch, *own, *view.k_axes)]
    used = set(tirx.analysis.undefined_vars(load))
    place = offset(load.source, load.indices)
    step_of = {axis: stride(place, axis, axes) for axis in axes}
    if any(step is None for step in step_of.values()):
        return None
    rows_by, terms_by = _merged(own, step_of), _merged(view.k_axes, step_of)
    if rows_by is None or terms_by is None or 1 not in (constant(rows_by), constant(terms_by)):
        return None
    is_k_contiguous = constant(terms_by) == 1
    sizes = [product([a.extent for a in x]) for x in (view.k_axes, own)]
    strides = [rows_by if is_k_contiguous else terms_by]
    if not is_k_contiguous:
        sizes.reverse()
    batch = [a for a in view.batch if a.var in used]
    sizes += [index(a.extent) for a in batch]
    strides += [int64(step_of[a.var]) for a in batch]
    if len(sizes) > MAX_RANK or not all(map(_is_forward, strides)):
        return None
    box = [PANEL, rows if is_k_contiguous else block_k, *[1] * len(batch)]
    start = simplified(substitute(place, dict.fromkeys(axes, index(0))))
    names = tuple(a.var for a in batch)
    # A tensor map has no extent of 0; a kernel without rows is launched with no blocks.
    sizes = [s if constant(s) is not None else tirx.max(s, index(1)) for s in sizes]
    if all(_is_aligned(x) for x in (start, *strides)):
        whole = TensorMap(load.source, start, tuple(sizes), tuple(strides), tuple(box))
        return TmaOperand((whole,), (0,), is_k_contiguous, names, rows, block_k)
    has_whole_boxes = is_k_contiguous and rows % (LANES * ROWS_OF_BOX) == 0
    if not has_whole_boxes or not all(map(_is_aligned, strides[1:])):
        return None
    box[1] = rows // LANES
    found = _interleaved(load.source, start, sizes, strides, box)
    return None if found is None else TmaOperand(*found, True, names, rows, block_k)


def _interleaved(
    source: ir.Var, start: ir.Expr, sizes: list[ir.Expr], strides: list[ir.Expr], box: list[int]
) -> tuple[tuple[TensorMap, ...], tuple[int, ...]] | None:
    """View rows as eight interleaved matrices, each of a row at least."""
    terms, rows, stride = constant(sizes[0]), constant(sizes[1]), constant(strides[0])
    first_shift = constant(sym.Analyzer().simplify(tirx.floormod(start, index(LANES))))
    if terms is None or rows is None or rows < LANES or stride is None or first_shift is None:
        return None
    maps, shifts = [], []
    for row in range(LANES):
        shift = (first_shift + row * stride) % LANES
        extents = index(shift + terms), index(-(-(rows - row) // LANES)), *sizes[2:]
        steps = index(LANES * stride), *strides[1:]
        begin = simplified(start + (row * stride - shift))
        maps.append(TensorMap(source, begin, extents, steps, tuple(box)))
        shifts.append(shift)
    return tuple(maps), tuple(shifts)


def _is_forward(step: ir.Expr) -> bool:
    known = constant(step)
    return known is None or known > 0


def _is_aligned(place: ir.Expr) -> bool:
    return sym.Analyzer().can_prove_equal(tirx.floormod(place, index(LANES)), 0)


def _merged(axes: Sequence[Axis], step_of: dict[ir.Var, ir.Expr | None]) -> ir.Expr | None:
    """Give the stride of axes that lie in memory as one, ``None`` if they do not."""
    analyzer = sym.Analyzer()
    for outer, inner in itertools.pairwise(axes):
        whole = int64(step_of[inner.var]) * index(inner.extent)
        if not analyzer.can_prove_equal(int64(step_of[outer.var]), whole):
            return None
    return int64(step_of[axes[-1].var])
