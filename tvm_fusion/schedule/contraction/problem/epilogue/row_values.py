"""Row values of a GEMM: what its results read of sums over few elements of each row.

    C[m, n] = rsqrt(sum over t of var[m, t] + epsilon) * (sum over k of A[m, k] * B[k, n])

Behind a GEMM that has written statistics of its tiles of columns, a norm is such sums. Every thread
adds up those of its own rows, before the main loop, and keeps only what results read.
"""

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from .....core.contract.template import Refusal
from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, index, substitute
from .....program.contractions import term_of
from .....program.stage import Stage
from ..results import axes_at
from ..sum_of_products import SumOfProducts

MOST_TERMS = 64  # of a sum that every thread adds up for itself
_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


@dataclass(frozen=True, eq=False)
class RowSum:
    """A sum, one term after the other."""

    # Loads of it, in later terms and in row values, are of the sum of their own row (float32).
    target: ir.Var
    terms: tuple[ir.Expr, ...]  # over the product's axes of M


@dataclass(frozen=True, eq=False)
class RowValues:
    """What results read of their rows."""

    sums: tuple[RowSum, ...]  # each is complete before another reads it
    # By the variable that stands for it in results (float32): over sums, and axes of M.
    values: Mapping[ir.Var, ir.Expr]


def is_row_sum(stage: Stage) -> bool:
    """Whether a reduction is a sum from zero of few terms, in float32."""
    sizes = [constant(a.extent) for a in stage.reduce]
    count = 1
    for size in sizes:
        count *= MOST_TERMS + 1 if size is None else size
    return (
        len(stage.targets) == 1
        and count <= MOST_TERMS
        and str(stage.targets[0].ty.dtype) == "float32"
        and isinstance(stage.values[0], tirx.Add)
        and stage.init is not None
        and isinstance(stage.init[0], tirx.FloatImm)
        and float(stage.init[0].value) == 0
    )


def with_row_values(contraction: SumOfProducts, stages: Sequence[Stage]) -> SumOfProducts | Refusal:
    """Put variables in the place of what results read of row sums.

    Parameters
    ----------
    contraction
        Its results read the targets of the stages.
    stages
        Reductions as :func:`is_row_sum` takes them, in order.

    Returns
    -------
    SumOfProducts or Refusal
        With ``row_values``; refused where a value depends on more than the row.
    """
    targets = {s.targets[0] for s in stages}
    read = [x for r in contraction.results for x in loads(r.value)]
    places = {x.source: x.indices for x in read if x.source in targets}
    sums: list[RowSum] = []
    for stage in reversed(stages):
        target = stage.targets[0]
        if target not in places:
            continue
        where = axes_at(stage, stage.indices[0], places[target])
        sums.insert(0, RowSum(target, _terms(stage, where)))
        places |= {
            x.source: [substitute(i, where) for i in x.indices]
            for x in stage.loads
            if x.source in targets
        }
    rows = {v for place in places.values() for i in place for v in variables(i)}
    values = _Values(targets, rows)
    results = tuple(replace(r, value=values.of(r.value)) for r in contraction.results)
    a, b = (variables(x) for x in (contraction.left, contraction.right))
    of_columns = b - a if contraction.stage.axes[-1].var in b else a - b
    left = [x for r in results for x in loads(r.value) if x.source in targets]
    if rows & of_columns or left:
        return Refusal(
            "no_row_value",
            f"What the results of {contraction.stage.title} read of the sums of rows is more than "
            "arithmetic on a row alone.",
        )
    return replace(contraction, results=results, row_values=RowValues(tuple(sums), values.found))


def _terms(stage: Stage, where: Mapping[ir.Var, ir.Expr]) -> tuple[ir.Expr, ...]:
    """Write out the terms of a row sum, at a place of its axes."""
    term = term_of(stage)
    assert term is not None
    counts = itertools.product(*(range(constant(a.extent) or 1) for a in stage.reduce))
    axes = [a.var for a in stage.reduce]
    return tuple(
        substitute(term, {**where, **dict(zip(axes, map(index, count), strict=True))})
        for count in counts
    )


class _Values:
    """Replaces the largest parts of expressions that read row sums, and nothing else."""

    def __init__(self, sums: Set[ir.Var], rows: set[ir.Var]) -> None:
        self._sums, self._rows = sums, rows
        self.found: dict[ir.Var, ir.Expr] = {}

    def of(self, expr: ir.Expr) -> ir.Expr:
        """Put variables in the place of row values."""
        sources = {x.source for x in loads(expr)}
        if not sources & self._sums:
            return expr
        is_whole = sources <= self._sums and variables(expr) <= self._rows
        if is_whole and str(expr.ty.dtype) == "float32":
            return self._variable(expr)
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(str(expr.ty.dtype), self.of(expr.value))
        if isinstance(expr, ir.Call):
            args = [self.of(x) for x in expr.args]
            return ir.Call(expr.op, args, expr.attrs, expr.ty_args, None, ret_ty=expr.ty)
        if isinstance(expr, _BINARY):
            return type(expr)(self.of(expr.a), self.of(expr.b))
        return expr

    def _variable(self, value: ir.Expr) -> ir.Var:
        for variable, known in self.found.items():
            if tvm_ffi.structural_equal(known, value):
                return variable
        variable = tirx.Var(f"row_value{len(self.found)}", "float32")
        self.found[variable] = value
        return variable
