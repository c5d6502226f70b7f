"""Contractions: a sum of products of two operands, and its epilogues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import is_load_of, loads, variables
from ....core.tir.loops import constant
from ....program.contractions import has_windows, operands_of
from ....program.program import Program
from ....program.stage import Stage
from ...index.address import conditional_loads
from .column_split import ColumnSplit, with_column_split
from .results import Result, result_of

if TYPE_CHECKING:
    from .epilogue.group_sums import GroupSums
    from .epilogue.head_sum import HeadSum
    from .epilogue.pooled_rows import PooledPixels, PooledRows
    from .epilogue.row_values import RowValues


@dataclass(frozen=True)
class SumOfProducts:
    """``total[axes] = init + sum over reduce of left * right``, then results."""

    stage: Stage  # the reduction as the program has it
    # The operands, over axes and reduction axes.
    left: ir.Expr
    right: ir.Expr
    dtype: str  # type of the sum
    total: ir.Var  # stands for the accumulated sum in the results
    results: tuple[Result, ...]  # the epilogues, in order
    # For results that need several sums each: they are over the axes without ``column_split.part``
    # then, and ``column_split.totals`` stand for the sums.
    column_split: ColumnSplit | None = None
    row_values: RowValues | None = None  # what results read of sums of few elements of each row
    group_sums: GroupSums | None = None  # sums over groups of columns of a result
    # What rows are reduced by before the results, for which ``total`` stands for what is pooled.
    pool: PooledRows | PooledPixels | None = None
    head_sum: HeadSum | None = None  # what results read of a sum over their head's columns

    @property
    def has_statistics(self) -> bool:
        """Whether there are sums besides the product's own."""
        return self.row_values is not None or self.group_sums is not None

    @property
    def pooled(self) -> int:
        """Rows of the product that a row of the results is of."""
        return 1 if self.pool is None else self.pool.size

    @property
    def totals(self) -> tuple[ir.Var, ...]:
        """The variables of the sums in results: one, or one for each part of a column split."""
        return (self.total,) if self.column_split is None else self.column_split.totals

    def place_of(self, part: int, lane: int) -> tuple[int, int]:
        """Return the part, and the lane of a vector, whose sum a total stands for at a lane."""
        return part, lane

    @property
    def initial(self) -> ir.Expr:
        """The initial value of the sum."""
        return self.stage.init[0] if self.stage.init else tirx.const(0, self.dtype)

    def term(self) -> ir.Expr:
        """One summand, in the type of the sum."""
        target = self.stage.targets[0]
        update = self.stage.values[0]
        own = update.a if is_load_of(update.a, target) else update.b
        return update.b if own.same_as(update.a) else update.a


def analyse(
    program: Program, stages: Sequence[Stage], takes_pairs: bool = False
) -> SumOfProducts | Refusal:
    """Read a program as one contraction with epilogues.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    takes_pairs
        Whether results may read the column before or behind, as the column decides.

    Returns
    -------
    SumOfProducts or Refusal
        The refusal tells the difference.
    """
    reductions = [s for s in program.stages if not s.is_map]
    if len(reductions) != 1:
        return Refusal("not_mine", f"There are {len(reductions)} reductions.")
    stage = reductions[0]
    operands = operands_of(stage)
    if operands is None:
        return Refusal("not_mine", f"{stage.title} is not a sum over products of two operands.")
    for part in program.stages:
        if part is stage:
            break
        if part.targets[0] in {x.source for f in operands for x in loads(f)}:
            return Refusal(
                "prologue_recomputed",
                f"{stage.title} would compute {part.title} again for every element it adds to.",
            )
    target = stage.targets[0]
    total = tirx.Var("total", str(target.ty.dtype))
    results = []
    for part in stages:
        if part.is_map:
            result = result_of(part, stage, total)
            if isinstance(result, Refusal):
                return _with_split(program, stages, stage, total, takes_pairs) or result
            results.append(result)
    if target in program.outputs:
        results.append(Result(target, stage.indices[0], total, None))
    return SumOfProducts(stage, *operands, str(target.ty.dtype), total, tuple(results))


def _with_split(
    program: Program, stages: Sequence[Stage], stage: Stage, total: ir.Var, takes_pairs: bool
) -> SumOfProducts | None:
    """Read epilogues that need several sums each; ``None`` if no column split serves them."""
    found = with_column_split(program, [s for s in stages if s.is_map], stage, takes_pairs)
    if found is None:
        return None
    split, results = found
    stage = split.apply(stage)
    operands = operands_of(stage)
    if operands is None:
        return None
    dtype = str(stage.targets[0].ty.dtype)
    return SumOfProducts(stage, *operands, dtype, total, results, split)


def is_weight(operand: ir.Expr, constants: Collection[ir.Var]) -> bool:
    """Whether an operand is one constant, read without conditions.

    Parameters
    ----------
    constants
        Inputs that are known at compile time.
    """
    sources = {x.source for x in loads(operand)}
    return len(sources) == 1 and sources <= set(constants) and not conditional_loads(operand)


def reuses_operands(contraction: SumOfProducts) -> bool:
    """Whether the elements of both operands are reused, so that register tiles pay.

    Vectors of a tile lie along an operand in memory: columns that only a condition reads, as in a
    one-hot operand, do not count.
    """
    stage = contraction.stage
    wide = {a.var for a in stage.axes if constant(a.extent) != 1}
    operands = (contraction.left, contraction.right)
    return (
        bool(stage.axes)
        and all(wide - variables(f) for f in operands)
        and any(stage.axes[-1].var in variables(x) for f in operands for x in loads(f))
    )


def reads_windows(contraction: SumOfProducts) -> bool:
    """Whether an index adds up terms and output places, as that of a convolution's image does."""
    sides = (contraction.left, contraction.right)
    return has_windows(contraction.stage, (load for side in sides for load in loads(side)))
