"""Quantization of vectors on CPUs: without a division, and with as few roundings as it needs.

A division of 16 float32 takes 16 cycles on the CPUs of today, a multiplication half of one. After
Markstein ("Computation of elementary functions on the IBM RISC System/6000 processor", 1990) fused
multiply-adds find the same quotient::

    q = x * (1 / s);  q + (x - q * s) * (1 / s)

The rest ``x - q * s`` is exact, since it is rounded once. Rounded to whole numbers, tiny quotients
are zero either way; of huge ones a bound takes the place, so that infinity stays infinity.

Of numbers that are clamped to a byte afterwards two operations find the same whole number, with
the reciprocal in two parts, which have the sign of ``s``, so that infinity stays infinity::

    x * high + x * low

That is checked for each scale, around all halves: both functions grow with ``x``, so that they are
equal everywhere if they step at the same numbers. They are clamped before they are rounded, to
``least - zero point`` and ``most - zero point``, which are whole. So one instruction rounds them
and makes them integers, and what is dequantized at once never becomes one::

    cast(clamp(round(q) + z))            ->  lrint(clamp(q)) + z
    float(cast(clamp(round(q) + z)) - z) ->  round(clamp(q))
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.target.codegen import llvm_lookup_intrinsic_id

from ..._tvm.ir.target import target_kind
from ...core.tir.expressions import call_name
from ...core.tir.integer_ranges import limits
from ...device import device_of

_ROUND = frozenset({"round", "nearbyint"})
_MOST = 2.0**30  # of an estimate; whole numbers beyond are no results of a quantization
_SCALES = 2.0**-60, 2.0**60  # whose reciprocals and rests are normal numbers
_BYTES = ("int8", "uint8")
_NEAR = 4  # float32 numbers on either side of a half that are tried


@tirx.transform.prim_func_pass(opt_level=0, name="DivideByScales")
class DivideByScales:
    """Multiply by the reciprocal of a constant, and correct the quotient, where it is rounded.

    For CPUs with fused multiply-adds, of functions whose loops are vectors already.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Change one function."""
        if target_kind(func) != "llvm" or not device_of(func.attrs["target"]).fused_multiply_add:
            return func
        body = func.body
        for change in ((tirx.Cast, _dequantized), (ir.Call, _quantized), (ir.Call, _rounded)):
            body = tvm_ffi.structural_map(body, change, order="post")
        return func.with_body(body)


def _rounded(call: ir.Call) -> ir.Expr:
    """Change what a function that rounds is called with."""
    value = call.args[-1] if call.args else None
    if not _is_rounding(call) or not isinstance(value, tirx.Div):
        return call
    scale = _scale(value)
    if scale is None:
        return call
    return _with_argument(call, _quotient(value.a, value.b, scale))


def _is_rounding(expr: ir.Expr) -> bool:
    name = call_name(expr)
    is_llvm = name == "call_llvm_pure_intrin" and int(expr.args[0]) == _nearbyint()
    return name in _ROUND or is_llvm


def _with_argument(call: ir.Call, value: ir.Expr) -> ir.Expr:
    """Call a function that rounds with another number."""
    return ir.Call(call.op, [*call.args[:-1], value], call.attrs, None, None, ret_ty=call.ty)


def _scale(quotient: tirx.Div) -> float | None:
    """Return the constant that is divided by; ``None`` where its reciprocal is not normal."""
    scale = _constant(quotient.b)
    if scale is None or str(quotient.ty.dtype).partition("x")[0] != "float32":
        return None
    return scale if _SCALES[0] <= abs(scale) <= _SCALES[1] else None


class _Clamped(NamedTuple):
    """A number that is rounded, and clamped to the range of a byte."""

    rounding: ir.Call
    least: int  # less the zero point, as the next one
    most: int
    zero_point: int

    @property
    def inside(self) -> ir.Expr:
        """What is rounded, clamped before; a quotient without a division.

        Of what is no number it is what the byte 0 stands for, as if the cast had made it.
        """
        value = self.rounding.args[-1]
        if isinstance(value, tirx.Div) and (scale := _scale(value)) is not None:
            parts = _reciprocal(scale, self.least, self.most)
            if parts is None:
                value = _quotient(value.a, value.b, scale)
            else:
                value = _product(value.a, *parts)
        least, most, zero = (
            _filled(float(one), value) for one in (self.least, self.most, -self.zero_point)
        )
        x = tirx.Var("x", str(value.ty.dtype))
        if self.least == -self.zero_point:  # a comparison with what is no number fails
            return tirx.Let(x, value, tirx.Min(tirx.Select(x > least, x, least), most))
        inside = tirx.Max(tirx.Min(x, most), least)
        return tirx.Let(x, value, tirx.Select(_is_no_number(x), zero, inside))


def _clamped(cast: ir.Expr) -> _Clamped | None:
    """Match a cast to a byte of a whole number that is clamped to what the type holds."""
    if call_name(cast) != "wrapping_cast" or _element(cast) not in _BYTES:
        return None
    value, bounds = cast.args[0], []
    for kind in (tirx.Max, tirx.Min):
        bounds.append(_whole(value.b) if isinstance(value, kind) else None)
        value = value.a if isinstance(value, kind) else value
    zero_point: int | None = 0
    if isinstance(value, tirx.Add):
        value, zero_point = value.a, _whole(value.b)
    least, most = bounds
    if least is None or most is None or zero_point is None or not _is_rounding(value):
        return None
    low, high = limits(_element(cast))
    is_inside = low <= least <= most <= high and low <= zero_point <= high
    if not is_inside or _element(value) != "float32":
        return None
    return _Clamped(value, least - zero_point, most - zero_point, zero_point)


def _dequantized(cast: tirx.Cast) -> ir.Expr:
    """Keep a number that is quantized and dequantized at once a float."""
    value = cast.value
    zero_point: int | None = 0
    if isinstance(value, tirx.Sub):
        value, zero_point = value.a, _whole(value.b)
    while isinstance(value, tirx.Cast) and _element(value) in ("int16", "int32"):
        value = value.value
    found = _clamped(value)
    if found is None or _element(cast) != "float32" or found.zero_point != zero_point:
        return cast
    return _with_argument(found.rounding, found.inside)


def _quantized(cast: ir.Call) -> ir.Expr:
    """Round and make integers in one instruction."""
    found = _clamped(cast)
    if found is None:
        return cast
    inside = found.inside
    whole = tirx.call_llvm_pure_intrin(_like("int32", inside), "llvm.lrint", inside)
    if found.zero_point:
        whole = whole + _filled(found.zero_point, whole)
    return tirx.Cast(str(cast.ty.dtype), whole)


@cache
def _reciprocal(scale: float, least: int, most: int) -> tuple[float, float] | None:
    """Find a scale's reciprocal in two parts by which clamped quotients are those of a division.

    Returns
    -------
    (float, float) or None
        Of the scale's sign, the second one may be zero; ``None`` where some quotient differs.
    """
    exact, one = 1.0 / np.float64(np.float32(scale)), np.float32(scale)
    high = np.float32(exact)
    if abs(np.float64(high)) > abs(exact):
        high = np.nextafter(high, np.float32(0))
    low = np.float32(exact - np.float64(high))
    halves = np.arange(least, most + 2) - 0.5
    steps = np.arange(-_NEAR, _NEAR + 1, dtype="int32")
    near = (halves * np.float64(one)).astype("float32")
    x = (near.view("int32")[:, None] + steps).view("float32")
    # The product is exact in float64; a tie is one only if the sum is exact as well.
    product, rest = x.astype("float64") * np.float64(high), (x * low).astype("float64")
    total = product + rest
    lost = rest - (total - product)
    is_tie = ((total.view("int64") & (2**29 - 1)) == 2**28) & (lost != 0)
    total = np.where(is_tie, np.nextafter(total, np.copysign(np.inf, lost)), total)
    found, wanted = np.rint(total.astype("float32")), np.rint(x / one)
    crosses = np.abs(wanted[:, 0] - wanted[:, -1]) == 1
    is_equal = bool(crosses.all()) and np.array_equal(found, wanted)
    return (float(high), float(low)) if is_equal else None


def _product(number: ir.Expr, high: float, low: float) -> ir.Expr:
    """Multiply a scalar or a vector by a reciprocal in two parts."""
    if low == 0:
        return number * _filled(high, number)
    dtype = str(number.ty.dtype)
    x = tirx.Var("x", dtype)
    rest = x * _filled(low, number)
    return tirx.Let(x, number, _fma(dtype, x, _filled(high, number), rest))


def _is_no_number(x: ir.Expr) -> ir.Expr:
    """Test the bits: of a comparison with itself TVM's simplifier would say that it holds."""
    bits = tirx.reinterpret(_like("int32", x), x)
    magnitude = tirx.bitwise_and(bits, _filled(0x7FFFFFFF, bits))
    return magnitude > _filled(0x7F800000, bits)


def _constant(expr: ir.Expr) -> float | None:
    """Return the value of a constant, of a vector of one too."""
    value = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return value.value if isinstance(value, tirx.FloatImm | tirx.IntImm) else None


def _whole(expr: ir.Expr) -> int | None:
    """Return a constant that is a whole number."""
    value = _constant(expr)
    return int(value) if value is not None and value == int(value) else None


def _element(expr: ir.Expr) -> str:
    return str(expr.ty.dtype).partition("x")[0]


def _like(element: str, expr: ir.Expr) -> str:
    """Return a type with the lanes of an expression."""
    lanes = str(expr.ty.dtype).partition("x")[2]
    return f"{element}x{lanes}" if lanes else element


def _filled(constant: float, expr: ir.Expr) -> ir.Expr:
    """Make a constant of the type of an expression."""
    element, _, lanes = str(expr.ty.dtype).partition("x")
    scalar = tirx.const(constant, element)
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def _quotient(number: ir.Expr, scale: ir.Expr, value: float) -> ir.Expr:
    """Divide a scalar or a vector."""
    dtype = str(number.ty.dtype)
    x, estimate = tirx.Var("x", dtype), tirx.Var("estimate", dtype)
    inverse, most, least = (
        _filled(one, scale) for one in (float(np.float32(1) / np.float32(value)), _MOST, -_MOST)
    )
    bounded = tirx.Select(x * inverse < most, x * inverse, most)
    rest = _fma(dtype, estimate, _filled(-value, scale), x)
    result = _fma(dtype, rest, inverse, estimate)
    lower = tirx.Select(bounded > least, bounded, least)
    return tirx.Let(x, number, tirx.Let(estimate, lower, result))


def _fma(dtype: str, a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", a, b, c)


@cache
def _nearbyint() -> int:
    return llvm_lookup_intrinsic_id("llvm.nearbyint")
