"""Products whose constant weight is packed so that the terms of a sum lie side by side.

    C[m, n] = sum over k of A[m, k] * packed[n, k]

AMD's matrix instructions want terms of a column in a lane, and no instruction transposes what is
loaded from LDS. Of a weight ``[k, n]`` threads would transpose each tile; packed at compile time,
its rows are copied as they are. Beside an image that is computed as it is loaded, such as the cast
one of a network's first layer, rows are padded to whole vectors:

    C[m, n] = sum over k < 32 of (A[m, k] if k < 27 else 0) * packed[n, k]
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import constant, coordinates, index, substitute
from ....program.stage import Axis
from ...gpu.launch import VECTOR_BYTES
from ...index.address import known_step
from ..problem.sum_of_products import SumOfProducts, is_weight
from ..tile.config import is_plain, narrow_operand, unguarded
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
    other = contraction.left if weight is contraction.right else contraction.right
    steps = known_step(read.source, read.indices, reduce[-1].var, [a.var for a in reduce])
    terms = prod(constant(a.extent) or 1 for a in reduce)
    padding = -terms % (VECTOR_BYTES // DataType(str(core.ty.dtype)).itemsize)
    if is_plain(unguarded(narrow_operand(other))[0]) or contraction.column_split is not None:
        padding = 0
    if steps == 1 and not padding:
        return other_form("Its weight is contiguous along K already.")
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
    if padding:
        return _padded(contraction, weight, core, (*own, *reduce), len(own), terms + padding)
    shape = [index(a.extent) for a in axes]
    packed = declare(shape, str(core.ty.dtype), f"{read.source.name}_packed")
    made = with_weight(contraction, weight, load(packed, [a.var for a in axes]))
    return ImplicitGemm(made, read.source, packed, axes, core)


def _padded(
    contraction: SumOfProducts,
    weight: ir.Expr,
    core: ir.Expr,
    axes: Sequence[Axis],
    outer: int,
    size: int,
) -> ImplicitGemm:
    """Make one axis of all terms and of zeros behind them, ``size`` in all.

    Parameters
    ----------
    core
        The weight over ``axes``, of which those of the sum come behind ``outer`` others.
    """
    own, reduce = axes[:outer], axes[outer:]
    k = Axis(tirx.Var("k", "int64"), index(size))
    terms = prod(constant(a.extent) or 1 for a in reduce)
    last = tirx.min(k.var, index(terms - 1))
    at = dict(
        zip((a.var for a in reduce), coordinates(last, [a.extent for a in reduce]), strict=True)
    )
    at |= {a.var: index(0) for a in contraction.stage.reduce if a not in reduce}

    def padded(value: ir.Expr) -> ir.Expr:
        zero = tirx.const(0, str(value.ty.dtype))
        return tirx.if_then_else(k.var < index(terms), substitute(value, at), zero)

    (read,) = loads(core)
    other = contraction.left if weight is contraction.right else contraction.right
    packed = declare(
        [*(index(a.extent) for a in own), index(size)],
        str(core.ty.dtype),
        f"{read.source.name}_packed",
    )
    made = with_weight(contraction, weight, load(packed, [*(a.var for a in own), k.var]))
    made = with_weight(made, other, padded(narrow_operand(other)))
    made = replace(made, stage=replace(contraction.stage, reduce=(k,)))
    return ImplicitGemm(made, read.source, packed, (*own, k), padded(core))
