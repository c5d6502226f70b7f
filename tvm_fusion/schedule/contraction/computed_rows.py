"""A left factor that a task computes for its block of rows, before the tiles that read it."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from ..._tvm_buffer import declare
from ...fusion.expressions import load
from ..loops import index, loop
from ..rows.cpu import row_by_number
from .gemm_view import Roles
from .norm_prologue import RowPrologue
from .operand_a_cpu import Left, RowBlock

PADDING = 16  # elements between rows: those a multiple of 4 KB apart would share cache lines


class ComputedRows(Left):
    """A block of rows in a buffer of the task.

    Parameters
    ----------
    roles : Roles
        Of the product; its left factor is the prologue's operand.
    prologue : RowPrologue
        What computes rows.
    block : int
        Rows of a block.
    target : Target
        What to compute them on.
    """

    def __init__(self, roles: Roles, prologue: RowPrologue, block: int, target: Target) -> None:
        super().__init__(roles)
        row = row_by_number(prologue.rows, target)
        if row is None:
            raise RuntimeError("the lanes of these rows are rows")
        self._row, self._block, self._operand = row, block, prologue.operand
        self._outer = prologue.rows.rows
        *extents, last = (int(d) for d in self._operand.ty.shape[self._outer :])
        shape = [index(d) for d in (block, *extents, last + PADDING)]
        self._buffer = declare(shape, str(self._operand.ty.dtype), "rows", "local")

    def buffers(self) -> list[ir.Var]:
        """Return the block of rows."""
        return [self._buffer]

    def fill(self, rows: RowBlock) -> tirx.Stmt:
        """Compute rows, each in its place."""
        count = tirx.min(index(self._block), self.rows - rows.start)
        return loop("row", count, lambda row: self._here(self._row(rows.start + row), row))

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read a computed element; rows beyond the last one have a place, too."""
        *outer, last = reduced
        return load(self._buffer, [rows.slot + row, *outer, rows.first_term + last])

    def _here(self, stmt: tirx.Stmt, row: ir.Expr) -> tirx.Stmt:
        def place(indices: Sequence[ir.Expr]) -> list[ir.Expr]:
            return [row, *indices[self._outer :]]

        def store(node: tirx.BufferStore) -> tirx.BufferStore:
            if not node.buffer.same_as(self._operand):
                return node
            return tirx.BufferStore(self._buffer, node.value, place(node.indices))

        def address(node: ir.TensorLoad) -> ir.TensorLoad:  # of a line that is asked for
            is_own = node.source.same_as(self._operand)
            return load(self._buffer, place(node.indices)) if is_own else node

        callbacks = [(tirx.BufferStore, store), (ir.TensorLoad, address)]
        return tvm_ffi.structural_map(stmt, callbacks, order="post")
