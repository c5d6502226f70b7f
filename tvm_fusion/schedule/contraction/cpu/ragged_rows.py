"""Rows in groups of lengths known at run time, as the tasks of a GEMM on a CPU.

tasks in parallel: (group, chunk of panels, block of rows), as if a group had all rows
  first, count = rows of the group, found among the offsets
  if the block begins before count:
    the GEMM of the group's rows with its matrix                  (kernel)
    or behind the last group:  results of sums of zero
"""

from dataclasses import dataclass, replace

from tvm import ir, tirx

from ....core.tir.loops import index, loop, over, sequence, substitute, when
from ....program.stage import Axis
from ..problem.epilogue.fuse import store_results
from ..problem.ragged_rows import RaggedRows, ragged_rows
from ..problem.sum_of_products import SumOfProducts


@dataclass(frozen=True, eq=False)
class RaggedTasks:
    """The groups of a GEMM's rows."""

    ragged: RaggedRows  # the groups
    contraction: SumOfProducts  # the product, over groups, rows of a group, and columns
    row: Axis  # the rows of a group, of extent ``count``
    # The first row of the task's group, and how many there are.
    first: ir.Var
    count: ir.Var

    @property
    def most(self) -> ir.Expr:
        """The rows of a group, at most."""
        return index(self.ragged.rows.extent)

    def extent(self, axis: Axis) -> ir.Expr:
        """Return the extent of an axis among tasks: rows behind the last group are one more."""
        return axis.extent + 1 if axis is self.ragged.groups else axis.extent

    def task(
        self,
        where: dict[ir.Var, ir.Expr],
        chunk: ir.Expr,
        rows: tuple[ir.Expr, int],
        body: tirx.Stmt,
    ) -> tirx.Stmt:
        """Write a task.

        Parameters
        ----------
        where
            Axes around the task, with its group.
        chunk
            The number of the task among those of its rows.
        rows
            The first row of the block in its group, and how many it has at most.
        """
        groups, start = index(self.ragged.groups.extent), rows[0]
        group = where[self.ragged.groups.var]
        before = self.ragged.row_behind(tirx.max(group - 1, index(0)))
        first = tirx.if_then_else(group > 0, before, index(0))
        last = tirx.min(group, groups - 1)
        behind = tirx.if_then_else(group < groups, self.ragged.row_behind(last), self.most)
        rest = when(chunk.equal(0), self._rest(*rows))
        return sequence(
            [
                tirx.Bind(self.first, first),
                tirx.Bind(self.count, behind - self.first),
                when(start < self.count, tirx.IfThenElse(group < groups, body, rest)),
            ]
        )

    def _rest(self, start: ir.Expr, most: int) -> tirx.Stmt:
        """Store results of rows behind the last group."""
        contraction = self.contraction
        split, given = contraction.column_split, {self.ragged.groups.var: index(0)}
        if split is not None:
            given[split.part.var] = index(0)
        axes = contraction.stage.axes
        others = [a for a in axes if a is not self.row and a.var not in given]
        totals = [contraction.initial for _ in contraction.totals]

        def one(i: ir.Expr) -> tirx.Stmt:
            def element(place: list[ir.Expr]) -> tirx.Stmt:
                where = dict(zip((a.var for a in others), place, strict=True))
                where = {**where, **given, self.row.var: start + i}
                return store_results(contraction, [where[a.var] for a in axes], *totals)

            return over(others, element)

        return loop("row", tirx.min(index(most), self.count - start), one)


def ragged_tasks(contraction: SumOfProducts) -> RaggedTasks | None:
    """Read a product of ragged rows as one over groups and rows of each; ``None`` of another."""
    found = ragged_rows(contraction)
    if found is None:
        return None
    product, ragged = found
    first, count = (tirx.Var(name, "int64") for name in ("first_row", "rows"))
    row = Axis(tirx.Var("row", "int64"), count)
    place = {ragged.rows.var: first + row.var}
    stage = product.stage
    axes = tuple(row if a is ragged.rows else a for a in stage.axes)
    results = tuple(
        replace(
            r,
            indices=tuple(substitute(i, place) for i in r.indices),
            value=substitute(r.value, place),
            condition=None if r.condition is None else substitute(r.condition, place),
        )
        for r in product.results
    )
    changed = replace(
        product,
        stage=replace(
            stage,
            axes=(ragged.groups, *axes),
            indices=tuple(tuple(substitute(i, place) for i in x) for x in stage.indices),
            values=tuple(substitute(v, place) for v in stage.values),
        ),
        left=substitute(product.left, place),
        right=substitute(product.right, place),
        results=results,
    )
    return RaggedTasks(ragged, changed, row, first, count)
