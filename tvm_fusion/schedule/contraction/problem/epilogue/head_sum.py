"""Sums over the columns of each head of a product, which its own results read.

sum[m, h] = sum over columns c of head h of term(total[m, c])       Q and K that are normalized:
C[m, c] = epilogue(total[m, c], sum[m, head of c])                  squares of a head
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from .....core.contract.template import Refusal
from .....core.tir.expressions import loads, variables
from .....core.tir.loops import constant, index, substitute
from .....ecg.graph import Operator
from .....program.contractions import dependents, is_contraction, term_of
from .....program.program import Program
from .....program.stage import Axis, Stage
from ....index.proposals import reductions
from ..column_split import analyzer_of
from ..norm_scale import NormScale, with_norm_scale
from ..results import Result, result_of
from ..sum_of_products import SumOfProducts, analyse

MAX_WIDTH = 256  # of a head


@dataclass(frozen=True, eq=False)
class HeadSum:
    """A sum over each head of a product's columns."""

    width: int  # columns of a head; heads follow each other from the first column on
    element: ir.Var  # stands for an element of the product in ``term``
    term: ir.Expr  # a summand (float32)
    total: ir.Var  # stands for the sum in results

    def term_at(self, element: ir.Expr) -> ir.Expr:
        """Express the summand of an element of the product."""
        return substitute(self.term, {self.element: element})


def is_head_sum(op: Operator) -> bool:
    """Whether an operator only adds up rows as short as those of heads."""
    sums = reductions(op)
    sizes = [constant(a.extent) for s in sums for a in s.reduce]
    return bool(sums) and all(s is not None and s <= MAX_WIDTH for s in sizes)


def with_head_sum(
    program: Program, stages: Sequence[Stage]
) -> tuple[SumOfProducts, NormScale | None] | Refusal | None:
    """Read a program as a product, sums over the heads of its columns, and results that read them.

    Parameters
    ----------
    stages
        The program's, without internal maps.

    Returns
    -------
    tuple, Refusal or None
        The product, and the scale of a norm before it; ``None`` where no sums are behind it.
    """
    product = next((s for s in stages if is_contraction(s)), None)
    behind = [] if product is None else dependents(stages, product)
    sums = [s for s in behind if not s.is_map]
    if product is None or not sums or not product.axes:
        return None
    for one in sums:
        reads = {x.source for x in one.loads} - set(one.targets)
        if one.targets[0] in program.outputs or reads != {product.targets[0]}:
            return None
    rest = tuple(s for s in stages if s not in sums)
    own = replace(program, stages=rest)
    before: tuple[SumOfProducts, NormScale | None] | Refusal
    left = sum(not s.is_map for s in rest)
    if left > 2:
        return None
    if left == 1:
        analysed = analyse(own, rest)
        before = analysed if isinstance(analysed, Refusal) else (analysed, None)
    else:
        before = with_norm_scale(own, rest)
    if isinstance(before, Refusal):
        return before
    found = _read(before[0], product, sums)
    if found is None:
        names = ", ".join(dict.fromkeys(s.title for s in sums))
        return Refusal(
            "no_head_sum",
            f"{names} is not one sum over each head of the columns of {product.title}, of "
            f"{MAX_WIDTH} columns at most, which only results in that head read.",
        )
    return found, before[1]


def _read(
    contraction: SumOfProducts, product: Stage, sums: Sequence[Stage]
) -> SumOfProducts | None:
    """Let results read one sum instead of what the stages of all heads compute."""
    total, element = tirx.Var("head_total", "float32"), tirx.Var("element", contraction.dtype)
    width, term = 0, None
    places: dict[ir.Var, Result] = {}
    for stage in sums:
        summand = term_of(stage)
        if summand is None or str(stage.targets[0].ty.dtype) != "float32":
            return None
        axes = (*stage.axes, *stage.reduce)
        flat = replace(stage, axes=axes, reduce=(), values=(summand,), init=None)
        own = result_of(flat, product, element)
        if isinstance(own, Refusal) or loads(own.value) or variables(own.value) != {element}:
            return None
        is_alike = width == _width(stage) and tvm_ffi.structural_equal(term, own.value)
        if term is not None and not is_alike:
            return None
        width, term = _width(stage), own.value
        places[stage.targets[0]] = own
    if term is None or not 1 < width <= MAX_WIDTH or not _has_heads(contraction, width):
        return None
    results = [_with_total(r, contraction, places, width, total) for r in contraction.results]
    if any(r is None for r in results):
        return None
    head_sum = HeadSum(width, element, term, total)
    kept = tuple(r for r in results if r is not None)
    return replace(contraction, results=kept, head_sum=head_sum)


def _width(stage: Stage) -> int:
    """Count the terms of a sum; 0 where it is over several axes, or a symbolic one."""
    sizes = [constant(a.extent) for a in stage.reduce if constant(a.extent) != 1]
    return (sizes[0] or 0) if len(sizes) == 1 else 0


def _has_heads(contraction: SumOfProducts, width: int) -> bool:
    """Whether heads are the periods of a column split, or a fraction of the columns."""
    split = contraction.column_split
    if split is not None:
        return split.width * split.count == width
    columns = constant(contraction.stage.axes[-1].extent)
    return columns is not None and columns % width == 0


def _with_total(
    result: Result,
    contraction: SumOfProducts,
    places: dict[ir.Var, Result],
    width: int,
    total: ir.Var,
) -> Result | None:
    """Let a result read the sum of its own head; ``None`` where it reads that of another."""
    split, axes = contraction.column_split, contraction.stage.axes
    column = axes[-1] if split is None else split.axis
    head, within = (
        Axis(tirx.Var(name, "int64"), index(extent))
        for name, extent in (("head", int(column.extent) // width), ("within", width))
    )
    analyzer = analyzer_of((*axes, head, within))
    of_column = {column.var: head.var * width + within.var}
    here: dict[ir.Var, ir.Expr] = of_column
    if split is not None:
        here = {} if split.period is None else {split.period.var: head.var}

    def is_own(read: ir.TensorLoad) -> bool:
        """Whether the sum is that of the head, whichever of its columns this is."""
        own = [analyzer.simplify(substitute(i, of_column)) for i in places[read.source].indices]
        found = [substitute(i, here) for i in read.indices]
        is_one = not any(within.var in variables(i) for i in own)
        return is_one and all(map(analyzer.can_prove_equal, found, own))

    reads = [x for x in loads(result.value) if x.source in places]
    if result.condition is None:
        is_valid = all(map(is_own, reads))
    else:
        with analyzer.constraint_scope(substitute(result.condition, here)):
            is_valid = all(map(is_own, reads))

    def swap(read: ir.TensorLoad) -> ir.Expr:
        return total if read.source in places else read

    return replace(result, value=substitute(result.value, {}, swap)) if is_valid else None
