"""A of a GEMM on a CPU: read where it is, or normalized rows in a buffer of the task."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from ....._tvm.ir.buffer import declare
from .....core.tir.expressions import load
from .....core.tir.loops import coordinates, index, loop, product, substitute
from ....rows.cpu.kernel import row_by_number
from ...problem.gemm_view import GemmView
from ...problem.norm_prologue import NormPrologue

PADDING = 16  # elements between rows: a stride of a multiple of 4 KB would alias cache sets


@dataclass(frozen=True)
class RowBlock:
    """The rows of a task in one pass over K."""

    place: dict[ir.Var, ir.Expr]  # batch axes and outer columns, by variable
    start: ir.Expr  # the first row
    slot: ir.Expr  # the first row, relative to the task's
    # The range of the pass along the last axis of K.
    first_k: ir.Expr
    k: ir.Expr | int


class OperandA(ABC):
    """A, an element at a time."""

    def __init__(self, view: GemmView) -> None:
        self.view = view
        self.rows = product([a.extent for a in view.m_axes])

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return []

    def fill(self, rows: RowBlock) -> tirx.Stmt | None:
        """Prepare the rows of a task, for all of K."""
        return None

    def end(self) -> list[tirx.Stmt]:
        """Give up what a task holds."""
        return []

    def begin_tile(self, rows: RowBlock, offset: ir.Expr, height: int) -> tirx.Stmt | None:
        """Prepare the rows of a tile, for all panels of a part of a task in one pass over K."""
        return None

    @abstractmethod
    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read an element.

        Parameters
        ----------
        rows
            The rows that were filled.
        row
            Relative to the first row of the block.
        reduced
            The place in K; the last index is relative to the pass.
        clamp
            Whether the row may lie beyond M; the value does not matter then.
        """

    def element(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read an element of A in place."""
        number = rows.start + row
        if clamp:
            number = tirx.min(number, self.rows - 1)
        *outer, last = reduced
        k = [*outer, rows.first_k + last]
        where = {**rows.place, **self.row_place(number)}
        where.update(zip((a.var for a in self.view.k_axes), k, strict=True))
        return substitute(self.view.a, where)

    def row_place(self, number: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the axes of M at a row."""
        axes = self.view.m_axes
        place = coordinates(number, [a.extent for a in axes])
        return dict(zip((a.var for a in axes), place, strict=True))


class DirectA(OperandA):
    """A, read in place."""

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read A itself."""
        return self.element(rows, row, reduced, clamp)


class NormalizedA(OperandA):
    """Normalized rows of a task's block, in a buffer of the task.

    Parameters
    ----------
    view
        The GEMM, whose A is the prologue's operand.
    prologue
        The program of the rows.
    padding
        Elements between rows.
    """

    def __init__(
        self,
        view: GemmView,
        prologue: NormPrologue,
        block: int,
        target: Target,
        padding: int = PADDING,
    ) -> None:
        super().__init__(view)
        row = row_by_number(prologue.rows, target)
        if row is None:
            raise RuntimeError("the lanes of these rows are rows")
        self._row, self._block, self._operand = row, block, prologue.operand
        self._outer = prologue.rows.row_rank
        *extents, last = (int(d) for d in self._operand.ty.shape[self._outer :])
        shape = [index(d) for d in (block, *extents, last + padding)]
        self.buffer = declare(shape, str(self._operand.ty.dtype), "rows", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the block of rows."""
        return [self.buffer]

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Normalize the rows of a block."""
        count = tirx.min(index(self._block), self.rows - rows.start)
        return loop("row", count, lambda row: self._here(self._row(rows.start + row), row))

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read a normalized element; rows beyond M have a place, too."""
        *outer, last = reduced
        return load(self.buffer, [rows.slot + row, *outer, rows.first_k + last])

    def _here(self, stmt: tirx.Stmt, row: ir.Expr) -> tirx.Stmt:
        def place(indices: Sequence[ir.Expr]) -> list[ir.Expr]:
            return [row, *indices[self._outer :]]

        def store(node: tirx.BufferStore) -> tirx.BufferStore:
            if not node.buffer.same_as(self._operand):
                return node
            return tirx.BufferStore(self.buffer, node.value, place(node.indices))

        def address(node: ir.TensorLoad) -> ir.TensorLoad:  # of a prefetch
            is_own = node.source.same_as(self._operand)
            return load(self.buffer, place(node.indices)) if is_own else node

        callbacks = [(tirx.BufferStore, store), (ir.TensorLoad, address)]
        return tvm_ffi.structural_map(stmt, callbacks, order="post")
