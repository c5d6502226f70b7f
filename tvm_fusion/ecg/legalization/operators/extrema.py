"""Largest and smallest elements and their places, of rows that hold infinities and NaN.

TOPI's start from the lowest finite number: the maximum of ``[-inf, -inf]`` would be that, and the
place of it -1. Its places ignore NaN, which is the first of all in numpy and PyTorch.
"""

import math
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx, topi

#: Those whose reductions start from an infinity instead.
EXTREMA = frozenset({"relax.max", "relax.min", *(f"relax.nn.max_pool{n}d" for n in (1, 2, 3))})
_BITS = {  # the integer of as many bits, and infinity's bits
    "float32": ("int32", 0x7F800000),
    "float64": ("int64", 0x7FF0000000000000),
}


def from_infinity(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put infinities in the place of the largest and the lowest finite numbers."""

    def infinite(number: tirx.FloatImm) -> tirx.FloatImm:
        dtype, value = str(number.ty.dtype), number.value
        limits = {bound(dtype).value: sign for bound, sign in _LIMITS}
        return tirx.const(limits[value] * math.inf, dtype) if value in limits else number

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloatImm, infinite)))


_LIMITS = ((tirx.min_value, -1), (tirx.max_value, 1))


def place_of_extremum(
    stock: Callable[..., te.Tensor], of_nan: Callable[[str], ir.Expr]
) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """Make the legalization of argmax or argmin.

    Parameters
    ----------
    stock
        TOPI's; what it compares here are integers in the order of the numbers.
    of_nan
        The integer of NaN, by the type of integers.
    """

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        def compute(x: te.Tensor) -> te.Tensor:
            if "float" not in str(x.dtype):
                return stock(x, call.attrs.axis, call.attrs.keepdims)
            places = te.compute(x.shape, lambda *i: ordered(x(*i), of_nan), name="ordered")
            return stock(places, call.attrs.axis, call.attrs.keepdims)

        hint = str(call.op.name).rsplit(".", 1)[-1]
        return bb.call_te(compute, call.args[0], primfunc_name_hint=hint)

    return legalize


def ordered(number: ir.Expr, of_nan: Callable[[str], ir.Expr]) -> ir.Expr:
    """Write an integer that is as large among others: both zeros are 0.

    Of bits alone: TVM's passes visit conditions within conditions again and again, and what a
    reduction of many lanes makes of a choice takes them minutes.
    """
    if str(number.ty.dtype) != "float64":
        number = number.astype("float32")
    integer, infinity = _BITS[str(number.ty.dtype)]
    bits = tirx.reinterpret(integer, number)
    last = tirx.const(tvm.DataType(integer).bits - 1, integer)
    magnitude = tirx.max_value(integer)
    sign = tirx.shift_right(bits, last)  # -1 or 0
    signed = tirx.bitwise_xor(bits, tirx.bitwise_and(sign, magnitude)) - sign
    above = tirx.const(infinity, integer) - tirx.bitwise_and(bits, magnitude)
    is_nan = tirx.shift_right(above, last)  # -1 or 0
    # Not by bitwise_not: TVM 0.27 writes it as ~, which CUDA does not have for vectors.
    return tirx.bitwise_or(
        tirx.bitwise_and(signed, tirx.bitwise_xor(is_nan, tirx.const(-1, integer))),
        tirx.bitwise_and(of_nan(integer), is_nan),
    )


LEGALIZATIONS = {
    "relax.argmax": place_of_extremum(topi.argmax, tirx.max_value),
    "relax.argmin": place_of_extremum(topi.argmin, tirx.min_value),
}
