"""Negation, signs, quotients and remainders of integers where TOPI's constructors refuse a literal.

TOPI multiplies by -1 and compares with it, which no unsigned type has, and TVM refuses to divide by
a literal 0. That is
0 here, as it is of a divisor that is 0 when a kernel runs; see :mod:`tvm_fusion.core.integers`.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax, tirx

from ...core.integers import is_integer
from ..expand import Legalization
from .broadcast import elementwise
from .remainders import REMAINDERS


def _negative(x: ir.Expr) -> ir.Expr:
    return tirx.const(0, str(x.ty.dtype)) - x


def _sign(x: ir.Expr) -> ir.Expr:
    dtype = str(x.ty.dtype)
    low = tirx.const(0 if dtype.startswith("uint") else -1, dtype)
    return tirx.max(tirx.min(x, tirx.const(1, dtype)), low)


def _quotient(divide: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> Callable[..., ir.Expr]:
    def value(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        is_zero = isinstance(y, tirx.IntImm) and int(y) == 0
        return tirx.const(0, str(x.ty.dtype)) if is_zero else divide(x, y)

    return value


def _legalization(name: str, function: Callable[..., ir.Expr]) -> Legalization:
    stock_name = f"relax.{name}"
    of_integers = elementwise(name, function)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if all(is_integer(str(arg.ty.dtype)) for arg in call.args):
            return of_integers(bb, call)
        others = REMAINDERS.get(stock_name) or ir.Op.get(stock_name).get_attr("FLegalize")
        return others(bb, call)

    return legalize


INTEGERS = {
    "relax.negative": _legalization("negative", _negative),
    "relax.sign": _legalization("sign", _sign),
    **{
        f"relax.{name}": _legalization(name, _quotient(divide))
        for name, divide in (
            ("divide", tirx.truncdiv),
            ("floor_divide", tirx.floordiv),
            ("floor_mod", tirx.floormod),
            ("mod", tirx.truncmod),
        )
    },
}
