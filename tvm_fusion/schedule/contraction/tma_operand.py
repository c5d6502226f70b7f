"""Operands of a GEMM as tensor maps: which views the Tensor Memory Accelerator copies.

    A[m, k], B[n, k]     contiguous along K:       boxes of 64 k times the rows of a tile
    A[k, m], B[k, n]     contiguous along M or N:  panels of 64 rows, boxes of 64 times block_k

Rows, terms and the batch may each be several axes that lie in memory as one; a batch of several
strides takes a dimension each. Addresses and strides are multiples of 16 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import ir, sym, tirx

from ...core.expressions import int64
from ...core.loops import constant, index, product, simplified, substitute
from ...program.stage import Axis
from ..address import offset, stride
from ..gpu.tma import ALIGNMENT, MAX_RANK, PANEL, ROW_BYTES, TensorMap
from ..gpu.wgmma import Operand
from .gemm_view import GemmView
from .tile_gemm_config import half_operand, is_plain

ITEM_BYTES = 2  # of a half type


@dataclass(frozen=True)
class TmaOperand:
    """An operand that TMA copies.

    Attributes
    ----------
    map : TensorMap
        Its view, without the batch broadcast.
    is_k_contiguous : bool
        Whether rows of shared memory are of K.
    batch : tuple of Var
        The batch axes that are dimensions of the view, in order.
    rows : int
        Rows of A, or columns of B, of a block's tile.
    block_k : int
        Terms of a pipeline stage.
    """

    map: TensorMap
    is_k_contiguous: bool
    batch: tuple[ir.Var, ...]
    rows: int
    block_k: int

    def of_rows(self, rows: int) -> TmaOperand:
        """Change the rows of A, or columns of B, of a tile."""
        box = self.map.box
        if self.is_k_contiguous:
            box = (box[0], rows, *box[2:])
        return replace(self, map=replace(self.map, box=box), rows=rows)

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
    ) -> list[tuple[int, list[ir.Expr]]]:
        """List the boxes of a tile: place in shared memory in bytes, and coordinates."""
        behind = [batch[axis] for axis in self.batch]
        if self.is_k_contiguous:
            return [(0, [k, first, *behind])]
        return [
            (i * self.panel_bytes, [first + i * PANEL, k, *behind])
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
    box = [PANEL, rows if is_k_contiguous else block_k]
    if not is_k_contiguous:
        sizes.reverse()
    batch = [a for a in view.batch if a.var in used]
    sizes += [index(a.extent) for a in batch]
    # A tensor map has no extent of 0; a kernel without rows is launched with no blocks.
    sizes = [s if constant(s) is not None else tirx.max(s, index(1)) for s in sizes]
    strides += [int64(step_of[a.var]) for a in batch]
    start = simplified(substitute(place, dict.fromkeys(axes, index(0))))
    analyzer = sym.Analyzer()
    lanes = ALIGNMENT // ITEM_BYTES
    aligned = [start, *strides]
    if len(sizes) > MAX_RANK or any(constant(s) == 0 for s in strides):
        return None
    if not all(analyzer.can_prove_equal(tirx.floormod(x, index(lanes)), 0) for x in aligned):
        return None
    box += [1] * len(batch)
    tensor_map = TensorMap(load.source, start, tuple(sizes), tuple(strides), tuple(box))
    return TmaOperand(tensor_map, is_k_contiguous, tuple(a.var for a in batch), rows, block_k)


def _merged(axes: Sequence[Axis], step_of: dict[ir.Var, ir.Expr | None]) -> ir.Expr | None:
    """Give the stride of axes that lie in memory as one, ``None`` if they do not."""
    analyzer = sym.Analyzer()
    for outer, inner in itertools.pairwise(axes):
        whole = int64(step_of[inner.var]) * index(inner.extent)
        if not analyzer.can_prove_equal(int64(step_of[outer.var]), whole):
            return None
    return int64(step_of[axes[-1].var])
