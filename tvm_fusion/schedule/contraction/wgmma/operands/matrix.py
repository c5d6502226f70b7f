"""Operands of a GEMM as tensor maps: which views the Tensor Memory Accelerator copies.

    A[m, k], B[n, k]     contiguous along K:       boxes of 128 bytes of k times the rows of a tile
    A[k, m], B[k, n]     contiguous along M or N:  panels of 64 rows, boxes of 64 times block_k

Rows, terms and the batch may each be several axes that lie in memory as one; a batch of several
strides takes a dimension each. Addresses and strides are multiples of 16 bytes. Of a column split,
a tile of B has whole periods, as they lie in memory, or a box, or panels, of the same columns of
each part, one part behind the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import DataType, ir, sym, tirx

from ....._tvm.ir.structural import structural_map
from .....core.tir.expressions import int64
from .....core.tir.loops import constant, index, product, simplified, substitute
from .....program.stage import Axis
from ....gpu.matrix.wgmma import Operand
from ....gpu.memory.tma import ALIGNMENT, MAX_RANK, PANEL, ROW_BYTES, TensorMap
from ....gpu.memory.vector_loads import resolved
from ....index.address import offset, stride
from ...problem.column_split import ColumnSplit
from ...problem.gemm_view import GemmView
from ...tile.config import is_plain
from ...tile.problem import GemmProblem

HALF_BYTES = 2  # of a half type


@dataclass(frozen=True)
class TmaOperand:
    """An operand that TMA copies."""

    # Its views, without the batch broadcast: one, or one for each part of a column split.
    maps: tuple[TensorMap, ...]
    is_k_contiguous: bool  # whether rows of shared memory are of K
    batch: tuple[ir.Var, ...]  # the batch axes that are dimensions of the view, in order
    rows: int  # rows of A, or columns of B, of a block's tile
    block_k: int  # terms of a pipeline stage
    parts: int = 1  # parts of a column split; each has ``rows / parts`` of the rows
    # Columns of a part in a period, if there are several, which no box crosses; 0 otherwise.
    period_width: int = 0
    is_padded: bool = False  # whether a tile may end within a panel

    def of_rows(self, rows: int) -> TmaOperand | None:
        """Return it with so many rows (A) or columns (B) in a tile; ``None`` if no boxes fit."""
        each = rows // self.parts
        if rows % self.parts or self.period_width % each:
            return None
        if not self.is_k_contiguous:
            return None if each % PANEL and not self.is_padded else replace(self, rows=rows)
        maps = tuple(replace(m, box=(m.box[0], each, *m.box[2:])) for m in self.maps)
        return replace(self, maps=maps, rows=rows)

    @property
    def item_bytes(self) -> int:
        """Size of an element."""
        return self.maps[0].item_bytes

    @property
    def bytes(self) -> int:
        """Size of a tile in shared memory."""
        return self.copied_rows * self.block_k * self.item_bytes

    @property
    def copied_rows(self) -> int:
        """Rows, or columns, of a tile's boxes."""
        return self.rows if self.is_k_contiguous else -(-self.rows // PANEL) * PANEL

    @property
    def copied_bytes(self) -> int:
        """Size of the boxes of a tile."""
        return self.bytes

    @property
    def panel_bytes(self) -> int:
        """From one box in shared memory to the next."""
        return ROW_BYTES * (self.rows if self.is_k_contiguous else self.block_k)

    @property
    def layout(self) -> Operand:
        """How the tile lies for wgmma."""
        return Operand(self.is_k_contiguous, self.panel_bytes)

    def boxes(
        self, batch: dict[ir.Var, ir.Expr], firsts: Sequence[ir.Expr], k: ir.Expr
    ) -> list[tuple[int, int, list[ir.Expr]]]:
        """List the boxes of a tile: place in shared memory in bytes, map, and coordinates.

        Parameters
        ----------
        batch
            The values of the batch axes.
        firsts
            The first row, of each part.
        """
        behind = [batch[axis] for axis in self.batch]
        rows, found = self.copied_rows // self.parts, []
        for part, first in enumerate(firsts):
            own = part if len(self.maps) > 1 else 0
            if self.is_k_contiguous:
                found.append((part * rows * ROW_BYTES, own, [k, first, *behind]))
                continue
            for i in range(rows // PANEL):
                place = (part * (rows // PANEL) + i) * self.panel_bytes
                found.append((place, own, [first + i * PANEL, k, *behind]))
        return found

    def slab(self, row: ir.Expr) -> ir.Expr:
        """Return the offset of 64 rows of A that start at a row of the tile, in bytes."""
        if self.is_k_contiguous:
            return row * ROW_BYTES
        return tirx.floordiv(row, index(PANEL)) * self.panel_bytes


def tma_operand(view: GemmProblem, is_a: bool, block_k: int) -> TmaOperand | None:
    """View A or B as a tensor map of tiles of no rows yet; ``None`` where TMA cannot copy it."""
    whole = view.a if is_a else view.b
    own, parts, split = view.m_axes, 1, None
    if not is_a:
        own, parts, split = view.stored_n_axes, view.parts, view.contraction.column_split
    loads = [whole]
    if split is not None and not is_plain(whole):  # a weight of its own for each part
        own, loads = view.n_axes, [_of_part(whole, split, part) for part in range(parts)]
    found = [_tensor_map(view, load, own, block_k) for load in loads]
    (first, *others) = found
    if first is None or any(x is None or x[1:] != first[1:] for x in others):
        return None
    maps = tuple(x[0] for x in found if x is not None)
    width = 0 if split is None or len(view.n_axes) == 1 else split.width
    return TmaOperand(maps, *first[1:], 0, block_k, parts, width)


def whole_periods(view: GemmProblem, block_k: int) -> TmaOperand | None:
    """View B of a column split with its columns in the order of memory.

    512x2048x3072 with 40 heads of 64 columns rotated takes 12.8 us on an H200 (cuBLAS without the
    rotation 11.9; without it and a kernel of its own 11.4 and 4.2), 55.1 by mma.sync with halves of
    heads interleaved; 512x2560x7680 with 64 heads of 80 35.1 (cuBLAS 34.4).
    """
    split = view.contraction.column_split
    if split is None or split.width % view.mma.n or not is_plain(view.b):
        return None
    found = _tensor_map(view, view.b, view.stored_n_axes, block_k)
    if found is None:
        return None
    return TmaOperand((found[0],), *found[1:], 0, block_k, is_padded=True)


def _of_part(operand: ir.Expr, split: ColumnSplit, part: int) -> ir.Expr:
    """Choose the weight of a part."""
    analyzer = sym.Analyzer()
    analyzer.bind(split.position.var, ir.Range.from_min_extent(index(0), index(split.width)))
    chosen = resolved(substitute(operand, {split.part.var: index(part)}), analyzer)
    return structural_map(chosen, (ir.TensorLoad, lambda x: _simplified(x, analyzer)))


def _simplified(node: ir.TensorLoad, analyzer: sym.Analyzer) -> ir.Expr:
    return tirx.BufferLoad(node.source, [analyzer.simplify(index(i)) for i in node.indices])


def _tensor_map(
    view: GemmView, load: ir.Expr, own: Sequence[Axis], block_k: int
) -> tuple[TensorMap, bool, tuple[ir.Var, ...]] | None:
    """Make the map of a load over some axes, with one row a box along K.

    Tells whether K is contiguous, and which batch axes are dimensions, too.
    """
    if not isinstance(load, ir.TensorLoad) or not is_plain(load):
        return None
    item_bytes = DataType(str(load.ty.dtype)).itemsize
    axes = [a.var for a in (*view.batch, *own, *view.k_axes)]
    used = set(tirx.analysis.undefined_vars(load))
    place = offset(load.source, load.indices)
    step_of = {axis: stride(place, axis, axes) for axis in axes}
    if any(step is None for step in step_of.values()):
        return None
    rows_by, terms_by = merged(own, step_of), merged(view.k_axes, step_of)
    if rows_by is None or terms_by is None or 1 not in (constant(rows_by), constant(terms_by)):
        return None
    is_k_contiguous = constant(terms_by) == 1
    if item_bytes != HALF_BYTES and not is_k_contiguous:
        return None
    sizes = [product([a.extent for a in x]) for x in (view.k_axes, own)]
    strides = [rows_by if is_k_contiguous else terms_by]
    box = [ROW_BYTES // item_bytes, 1 if is_k_contiguous else block_k]
    if not is_k_contiguous:
        sizes.reverse()
    batch = [a for a in view.batch if a.var in used]
    sizes += [index(a.extent) for a in batch]
    # A tensor map has no extent of 0; a kernel without rows is launched with no blocks.
    sizes = [s if constant(s) is not None else tirx.max(s, index(1)) for s in sizes]
    strides += [int64(step_of[a.var]) for a in batch]
    start = simplified(substitute(place, dict.fromkeys(axes, index(0))))
    analyzer = sym.Analyzer()
    lanes = ALIGNMENT // item_bytes
    aligned = [start, *strides]
    if len(sizes) > MAX_RANK or any(constant(s) == 0 for s in strides):
        return None
    if not all(analyzer.can_prove_equal(tirx.floormod(x, index(lanes)), 0) for x in aligned):
        return None
    box += [1] * len(batch)
    tensor_map = TensorMap(load.source, start, tuple(sizes), tuple(strides), tuple(box))
    return tensor_map, is_k_contiguous, tuple(a.var for a in batch)


def merged(axes: Sequence[Axis], step_of: dict[ir.Var, ir.Expr | None]) -> ir.Expr | None:
    """Return the stride of axes contiguous with each other; ``None`` if they are not."""
    analyzer = sym.Analyzer()
    for outer, inner in itertools.pairwise(axes):
        whole = int64(step_of[inner.var]) * index(inner.extent)
        if not analyzer.can_prove_equal(int64(step_of[outer.var]), whole):
            return None
    return int64(step_of[axes[-1].var])
