"""Products whose number of rows is known when they run: few rows have kernels of their own.

One function holds them all, and its host code launches the one that fits: a kernel for a single
row, one that has places for as many as a thread can hold, and tiles for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.target import Target

from ...fusion.expressions import variables
from ...fusion.program import Axis, Program
from ..loops import block, constant, index, one_of, substitute
from .gemv_config import MOST_SUMS, Slim, slim
from .gemv_gpu import slim_gpu
from .operands import Result, SumOfProducts
from .skinny_mma_config import fragment_slim
from .skinny_mma_gpu import fragment_gpu


@dataclass(frozen=True)
class FewRows:
    """A product as it is where it has few rows.

    Attributes
    ----------
    condition : Expr
        When that is.
    contraction : SumOfProducts
        Of so many rows; those that there are not are like the last one, and not written.
    """

    condition: ir.Expr
    contraction: SumOfProducts


def guarded_rows(
    program: Program, contraction: SumOfProducts, general: tirx.PrimFunc, target: Target
) -> tirx.PrimFunc:
    """Put kernels of few rows in front of one for any number of rows.

    Parameters
    ----------
    program : Program
        What all compute.
    contraction : SumOfProducts
        The same, as one product.
    general : PrimFunc
        A kernel of the program.
    target : Target
        A GPU.
    """
    choices: list[tuple[ir.Expr, tirx.Stmt]] = []
    rest = tirx.const(True)
    for few in _few_rows(contraction):
        cut = slim(few.contraction, target)
        if cut is not None:
            made = few_rows_gpu(program, cut, target)
            choices.append((tirx.And(rest, few.condition), made.body))
            rest = tirx.Not(few.condition)
    if not choices:
        return general
    return general.with_body(block("root", one_of([*choices, (rest, general.body)])))


def few_rows_gpu(program: Program, cut: Slim, target: Target) -> tirx.PrimFunc:
    """Make the kernel of a product of few rows: on tensor cores where they multiply it."""
    fragments = fragment_slim(cut, target)
    if fragments is not None:
        return fragment_gpu(program, fragments)
    return slim_gpu(program, cut, target)


def _few_rows(contraction: SumOfProducts) -> Iterator[FewRows]:
    """List one row, then as many as a thread can hold, of a product with a symbolic number."""
    axis = _symbolic_rows(contraction)
    if axis is None:
        return
    for count in (1, MOST_SUMS // len(contraction.totals)):
        last = axis.extent - 1
        nearest = {axis.var: tirx.min(axis.var, last)}
        axes = tuple(Axis(a.var, index(count)) if a is axis else a for a in contraction.stage.axes)
        results = contraction.results
        if count > 1:
            results = tuple(_where(r, axis.var <= last) for r in results)
        yield FewRows(
            axis.extent <= count,
            replace(
                contraction,
                stage=replace(contraction.stage, axes=axes),
                left=substitute(contraction.left, nearest),
                right=substitute(contraction.right, nearest),
                results=results,
            ),
        )


def _where(result: Result, condition: ir.Expr) -> Result:
    both = condition if result.condition is None else tirx.And(condition, result.condition)
    return replace(result, condition=both)


def _symbolic_rows(contraction: SumOfProducts) -> Axis | None:
    """Find the only axis of a symbolic extent, if it is one of rows; the last is one of columns."""
    stage = contraction.stage
    symbolic = [a for a in (*stage.axes, *stage.reduce) if constant(a.extent) is None]
    if len(symbolic) != 1 or symbolic[0] not in stage.axes[:-1]:
        return None
    used = [symbolic[0].var in variables(f) for f in (contraction.left, contraction.right)]
    return symbolic[0] if sum(used) == 1 else None
