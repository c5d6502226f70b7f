"""Products whose constant weight is packed so that the terms of a sum lie side by side.

    C[m, n] = sum over k of A[m, k] * packed[n, k]

AMD's matrix instructions want terms of a column in a lane, and no instruction transposes what is
loaded from LDS. Of a weight ``[k, n]`` threads would transpose each tile; packed at compile time,
its rows are copied as they are.
"""

from __future__ import annotations

from collections.abc import Collection

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import constant, index, substitute
from ...index.address import known_step
from ..problem.sum_of_products import SumOfProducts, is_weight
from ..tile.config import is_plain, narrow_operand
from .implicit_gemm import ImplicitGemm, with_weight


def weight_along_k(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> ImplicitGemm | Refusal:
    """Pack a weight in the order of its sum; parameters as of implicit_gemm."""
    reduce = [a for a in contraction.stage.reduce if constant(a.extent) != 1]
    if not reduce or not isinstance(contraction.term(), tirx.Mul):
        return other_form("It has no sum of plain products.")
    for weight in (contraction.right, contraction.left):
        core = narrow_operand(weight)
        if is_weight(weight, constants) and is_plain(core):
            break
    else:
        return other_form("Neither operand is a weight: a single tensor, read as it is.")
    (read,) = loads(core)
    if known_step(read.source, read.indices, reduce[-1].var, [a.var for a in reduce]) == 1:
        return other_form("The terms of its weight lie side by side.")
    other = contraction.left if weight is contraction.right else contraction.right
    if any(
        x.source.same_as(read.source)
        for e in (other, *(r.value for r in contraction.results))
        for x in loads(e)
    ):
        return other_form("Something other than the product reads the weight, too.")
    used = variables(core)
    own = [a for a in contraction.stage.axes if a.var in used and constant(a.extent) != 1]
    axes = (*own, *reduce)
    if any(constant(a.extent) is None for a in axes) or not {a.var for a in reduce} <= used:
        return other_form("An extent of the weight is symbolic.")
    core = substitute(core, {v: index(0) for v in used - {a.var for a in axes}})
    shape = [index(a.extent) for a in axes]
    packed = declare(shape, str(core.ty.dtype), f"{read.source.name}_packed")
    made = with_weight(contraction, weight, load(packed, [a.var for a in axes]))
    return ImplicitGemm(made, read.source, packed, axes, core)
