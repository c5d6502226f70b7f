"""Rows of the left operand that a task computes for itself, before the tiles that read them."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from ..._tvm_buffer import declare
from ...fusion.expressions import load
from ..loops import index, loop
from ..rows.cpu import row_by_number
from .row_prologue import RowPrologue

PADDING = 16  # elements between rows: those a multiple of 4 KB apart would share cache lines


class ComputedRows:
    """A block of rows in a buffer of the task, every element the product reads of them.

    Parameters
    ----------
    prologue : RowPrologue
        What computes rows.
    block : int
        Rows of a block.
    total : PrimExpr
        Rows of the product.
    target : Target
        What to compute them on.
    """

    def __init__(
        self, prologue: RowPrologue, block: int, total: ir.Expr, target: Target
    ) -> None:
        self._operand, self._block, self._total = prologue.operand, block, total
        program = prologue.rows
        row = row_by_number(program.prim_func(), program.rows, target)
        if row is None:
            raise RuntimeError("lanes of a row prologue are rows")
        self._row = row
        self._rows = program.rows
        terms = [int(d) for d in prologue.operand.ty.shape[program.rows :]]
        shape = [block, *terms[:-1], terms[-1] + PADDING]
        self._buffer = declare(
            [index(d) for d in shape], str(prologue.operand.ty.dtype), "rows", "local"
        )

    def buffers(self) -> list[ir.Var]:
        """Return the block of rows."""
        return [self._buffer]

    def fill(self, first: ir.Expr) -> tirx.Stmt:
        """Compute the rows from the first of a block on."""
        count = tirx.min(index(self._block), self._total - first)
        return loop("row", count, lambda r: self._here(self._row(first + r), r))

    def at(self, row: ir.Expr, terms: Sequence[ir.Expr]) -> ir.Expr:
        """Read an element of a row of the block."""
        return load(self._buffer, [row, *terms])

    def _here(self, stmt: tirx.Stmt, row: ir.Expr) -> tirx.Stmt:
        """Let a row go to its place in the block."""

        def store(node: tirx.BufferStore) -> tirx.BufferStore:
            if not node.buffer.same_as(self._operand):
                return node
            return tirx.BufferStore(self._buffer, node.value, [row, *node.indices[self._rows :]])

        return tvm_ffi.structural_map(stmt, (tirx.BufferStore, store), order="post")
