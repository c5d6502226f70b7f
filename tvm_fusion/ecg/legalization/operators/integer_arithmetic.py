"""Negation, signs, quotients, remainders and means of integers, where TOPI's are wrong.

TOPI multiplies by -1 and compares with it, which no unsigned type has, and TVM refuses to divide by
a literal 0. That is 0 here, as it is of a divisor that is 0 when a kernel runs; see
:mod:`tvm_fusion.core.tir.integers`. TOPI's mean sums in the operator's type, which
overflows, divides by a count of 64 bits, so that its result has another type than the operator's,
and by zero where an extent is zero, which ends the process.
"""

from collections.abc import Callable

from tvm import ir, relax, te, tirx, topi

from ....core.tir.integers import is_integer
from ..expand import Legalization
from ..narrow import HALF, WIDE
from .elementwise import elementwise


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


# Floored quotients and remainders of floating point numbers, exact up to one rounding.
#
# TOPI's are ``floor(x / y)`` and ``x - floor(x / y) * y``, in the type of the operands: where the
# quotient is large or rounds up to an integer, what they leave is no remainder, 10000 modulo -3 is
# 0 in float16. Here, as in Python, numpy and PyTorch, both come from C's fmod, which is exact.
def _is_off(rest: ir.Expr, y: ir.Expr) -> ir.Expr:
    """Whether a remainder has the sign of the dividend alone."""
    zero = tirx.const(0, str(y.ty.dtype))
    return tirx.Or(
        tirx.And(rest < zero, y > zero),
        tirx.And(rest > zero, y < zero),
    )


def _floor_mod(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    rest = tirx.Mod(x, y)
    return tirx.Select(_is_off(rest, y), rest + y, rest)


def _floor_divide(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """Divide what the remainder leaves, and round away what that division rounds.

    A zero has the sign of the quotient.
    """
    dtype = str(x.ty.dtype)
    rest = tirx.Mod(x, y)
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    quotient = tirx.round((x - rest) / y) - tirx.Select(_is_off(rest, y), one, zero)
    signed = tirx.trunc(x / y * tirx.const(0.5, dtype))  # of -1 to 1
    quotient = tirx.Select(quotient.equal(zero), signed, quotient)
    return tirx.Select(y.equal(zero), x / y, quotient)


def _of_two(name: str, function: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> Legalization:
    stock_name = f"relax.{name}"

    def value(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        dtype = str(x.ty.dtype)
        if dtype not in HALF:
            return function(x, y)
        return tirx.Cast(dtype, function(tirx.Cast(WIDE, x), tirx.Cast(WIDE, y)))

    of_floats = elementwise(name, value)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        is_float = all("float" in str(arg.ty.dtype) for arg in call.args)
        return (of_floats if is_float else ir.Op.get(stock_name).get_attr("FLegalize"))(bb, call)

    return legalize


REMAINDERS = {
    f"relax.{name}": _of_two(name, function)
    for name, function in (("floor_mod", _floor_mod), ("floor_divide", _floor_divide))
}


MEAN = "relax.mean"


def mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Divide the sum by the number of its terms, at least 1; the quotient is truncated.

    A mean fits its type, its sum may not: it is one of 64 bits, or of those a float64, as numpy's
    and ONNX Runtime's.
    """
    x, attrs, dtype = call.args[0], call.attrs, str(call.ty.dtype.dtype)
    stock = ir.Op.get(MEAN).get_attr("FLegalize")
    if "int" not in dtype or not isinstance(x.ty.shape, relax.ShapeExpr):
        return stock(bb, call)
    rank = x.ty.ndim
    axes = range(rank) if attrs.axis is None else [int(axis) % rank for axis in attrs.axis]
    wide = "float64" if dtype.endswith("int64") else "int64"

    def compute(data: te.Tensor) -> te.Tensor:
        total = topi.sum(topi.cast(data, wide), list(axes), bool(attrs.keepdims))
        count = tirx.const(1, "int64")
        for axis in axes:
            count = count * data.shape[axis]
        divisor = tirx.max(count, tirx.const(1, "int64")).astype(wide)
        divide = tirx.div if wide == "float64" else tirx.truncdiv

        def quotient(*indices: tirx.Var) -> ir.Expr:
            return divide(total(*indices), divisor).astype(dtype)

        return te.compute(total.shape, quotient, name="mean")

    return bb.call_te(compute, x, primfunc_name_hint="mean")
