"""Hyperbolic functions as :mod:`tvm_fusion.core.tir.hyperbolic` writes them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax

from ....core.tir.hyperbolic import DTYPES, atanh, cosh, sinh
from ..expand import Legalization
from .broadcast import elementwise


def _legalization(name: str, function: Callable[[ir.Expr], ir.Expr]) -> Legalization:
    of_every_element = elementwise(name, function)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        is_known = str(call.args[0].ty.dtype.dtype) in DTYPES
        return of_every_element(bb, call) if is_known else call

    return legalize


HYPERBOLIC: dict[str, Legalization] = {
    "relax.cosh": _legalization("cosh", cosh),
    "relax.sinh": _legalization("sinh", sinh),
    "relax.atanh": _legalization("atanh", atanh),
}
