"""Matching of an RMS norm prologue whose scale commutes with the GEMM behind it.

``sum_k (x[k] * r * g[k]) * w[k, n]`` is ``r * sum_k (x[k] * g[k]) * w[k, n]``. Where ``r`` needs a
sum over ``x``, as in an RMS norm, one pass over K gathers both sums, and the epilogue scales.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul

from tvm import ir, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, substitute
from ....program.contractions import is_contraction, operands_of
from ....program.program import Program
from ....program.stage import Stage
from ...index.address import same
from ..dequantize.float32 import factors, widened
from .norm_prologue import replace_operand
from .sum_of_products import SumOfProducts, analyse


@dataclass(frozen=True)
class NormScale:
    """A sum over each row of A, and the scale of the row's results that it gives."""

    total: ir.TensorLoad  # the sum as ``scale`` reads it
    term: ir.Expr  # a summand, over the axes of the product
    scale: ir.Expr  # the factor of the row's results

    def at(self, place: Sequence[ir.Expr], total: ir.Expr, stage: Stage) -> ir.Expr:
        """Express the scale at a place of the product's axes, given the value of the sum."""
        axes = dict(zip((a.var for a in stage.axes), place, strict=True))

        def swap(load: ir.TensorLoad) -> ir.Expr:
            return total if load.source.same_as(self.total.source) else load

        return substitute(self.scale, axes, swap)


def with_norm_scale(
    program: Program, stages: Sequence[Stage]
) -> tuple[SumOfProducts, NormScale] | Refusal:
    """Read a program of two reductions as a GEMM whose rows a row reduction scales.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    """
    first, product = (s for s in stages if not s.is_map)
    given = operands_of(product)
    if given is None or is_contraction(first) or not is_contraction(product):
        is_one = is_contraction(first) or is_contraction(product)
        return Refusal(
            "several_reductions" if is_one else "not_mine",
            f"Of two reductions ({first.title}, {product.title}) a contraction kernel computes "
            "the first as a norm prologue of the second only.",
        )
    unlike = Refusal(
        "no_norm_scale",
        f"{product.title} is not fused behind {first.title}: operand A is not x[m, k] * f[m], "
        f"with one factor f of each row, computed from {first.title} alone.",
    )
    (target, *others), term = first.targets, _summand(first)
    normed = [f for f in given if any(x.source.same_as(target) for x in loads(f))]
    readers = [s for s in stages if s is not first and target in s.reads]
    if term is None or others or len(normed) != 1 or readers != [product]:
        return unlike
    total = next(x for x in loads(normed[0]) if x.source.same_as(target))
    place = _place(first, product, total)
    if target in program.outputs or place is None:
        return unlike
    k_vars = {a.var for a in product.reduce}
    split: dict[bool, list[ir.Expr]] = {False: [], True: []}
    for factor in factors(widened(normed[0], lambda _: None)):
        split[bool(variables(factor) & k_vars)].append(factor)
    varying, constant_in_k = split[True], split[False]
    if not varying or not constant_in_k:
        return unlike
    a, scale = reduce(mul, varying), reduce(mul, constant_in_k)
    if any(x.source.same_as(target) for x in loads(a)):
        return unlike
    if any(x.source.same_as(target) and not same(x, total) for x in loads(scale)):
        return unlike
    replaced = replace_operand(product, normed[0], a)
    after = tuple(replaced if s is product else s for s in stages if s is not first)
    contraction = analyse(replace(program, stages=after), after)
    if isinstance(contraction, Refusal):
        return contraction
    if not str(target.ty.dtype) == contraction.dtype == "float32":
        return unlike
    return contraction, NormScale(total, substitute(term, place), scale)


def _summand(stage: Stage) -> ir.Expr | None:
    """Return what a stage adds up from zero; ``None`` where it does something else."""
    update, initial = stage.values[0], (stage.init or (None,))[0]
    if not isinstance(update, tirx.Add) or not isinstance(initial, tirx.FloatImm):
        return None
    if float(initial.value) != 0:
        return None
    own = [isinstance(x, ir.TensorLoad) and x.source in stage.targets for x in (update.a, update.b)]
    return {(True, False): update.b, (False, True): update.a}.get((own[0], own[1]))


def _place(stage: Stage, product: Stage, total: ir.TensorLoad) -> dict[ir.Var, ir.Expr] | None:
    """Map the row reduction's axes to those of the product; ``None`` where they differ."""
    written = dict(zip(stage.indices[0], total.indices, strict=True))
    place = {a.var: written.get(a.var, tirx.IntImm("int64", 0)) for a in stage.axes}
    along = [[a for a in s.reduce if constant(a.extent) != 1] for s in (stage, product)]
    if len(along[0]) != len(along[1]):
        return None
    for own, other in zip(*along, strict=True):
        size = constant(own.extent)
        if size is None or size != constant(other.extent):
            return None
        place[own.var] = other.var
    zeros = {a.var: tirx.IntImm("int64", 0) for a in stage.reduce if a.var not in place}
    return place | zeros
