"""Negation and signs of unsigned integers.

TOPI's make constants such as -1 of the operand's type, which TVM refuses for unsigned ones.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax, tirx

from ..expand import Legalization
from .broadcast import elementwise


def _one(x: ir.Expr) -> ir.Expr:
    return tirx.const(1, str(x.ty.dtype))


def _legalization(name: str, function: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    of_every_element = elementwise(name, function)
    operator = f"relax.{name}"

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.ty.dtype.dtype).startswith("uint"):
            return of_every_element(bb, call)
        return ir.Op.get(operator).get_attr("FLegalize")(bb, call)

    return legalize


UNSIGNED: dict[str, Legalization] = {
    # Wraps around; of ``0 - x`` TVM's simplifier would make 0.
    "relax.negative": _legalization("negative", lambda x: tirx.bitwise_not(x) + _one(x)),
    "relax.sign": _legalization("sign", lambda x: tirx.min(x, _one(x))),
}
