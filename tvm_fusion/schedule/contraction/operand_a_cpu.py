"""How a tile reads elements of the left factor: where they are, or copied by the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ..loops import coordinates, product, substitute
from .gemm_view import Roles


@dataclass(frozen=True)
class RowBlock:
    """The rows of a task in one pass over the terms.

    Attributes
    ----------
    place : Mapping
        Batch axes and outer columns, by variable.
    start : PrimExpr
        First row.
    slot : PrimExpr
        The first row, counted from the first of the task.
    first_term, terms : PrimExpr
        The pass, along the last reduction axis.
    """

    place: dict[ir.Var, ir.Expr]
    start: ir.Expr
    slot: ir.Expr
    first_term: ir.Expr
    terms: ir.Expr | int


class Left(ABC):
    """The left factor, an element at a time.

    Parameters
    ----------
    roles : Roles
        Of the contraction's axes.
    """

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.rows = product([a.extent for a in roles.rows])

    def buffers(self) -> list[ir.Var]:
        """Buffers of one task."""
        return []

    def fill(self, rows: RowBlock) -> tirx.Stmt | None:
        """Prepare the rows of a task, all terms of them."""
        return None

    @abstractmethod
    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """One element.

        Parameters
        ----------
        rows : RowBlock
            What was filled in.
        row : PrimExpr
            Counted from the first of the block.
        reduced : sequence of PrimExpr
            Terms; the last one counts from the first term of the pass.
        clamp : bool
            Whether the row may lie beyond the last one; what is read then does not matter.
        """

    def element(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """One element where the factor has it."""
        number = rows.start + row
        if clamp:
            number = tirx.min(number, self.rows - 1)
        *outer, last = reduced
        terms = [*outer, rows.first_term + last]
        where = {**rows.place, **self.row_place(number)}
        where.update(zip((a.var for a in self.roles.reduce), terms, strict=True))
        return substitute(self.roles.left, where)

    def row_place(self, number: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Tell the row axes of a row of the product."""
        axes = self.roles.rows
        place = coordinates(number, [a.extent for a in axes])
        return dict(zip((a.var for a in axes), place, strict=True))


class DirectLeft(Left):
    """Elements from where they are."""

    def at(
        self, rows: RowBlock, row: ir.Expr, reduced: Sequence[ir.Expr], clamp: bool = False
    ) -> ir.Expr:
        """Read the factor itself."""
        return self.element(rows, row, reduced, clamp)
