"""Float32 exp and isnan that LLVM can vectorise: it calls the C library lane by lane otherwise."""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, tirx

from .expressions import contains, is_call, variables_of

LOWEST, HIGHEST = -104.0, 89.0  # beyond these a float32 exponential is 0 or infinite
LN2_HIGH = 0.693359375  # ln 2 in ten bits, so that its products with small integers are exact
LN2_LOW = math.log(2) - LN2_HIGH
ROUND, ROUND_BITS = 12582912.0, 0x4B400000  # 1.5 * 2**23: adding it leaves an integer in its bits
# (exp(r) - 1 - r) / r**2 on |r| <= ln 2 / 2, lowest power first: least squares at the Chebyshev
# points; its own error in exp(r) is 0.09 ulp.
POLYNOMIAL = (0.5, 0.16666576266288757, 0.04166646674275398, 0.008363181725144386,
              0.0013933652080595493)  # fmt: skip


def vector_math(expr: ir.Expr, lane: ir.Expr | None = None) -> ir.Expr:
    """Replace the float32 exponentials and NaN tests of an expression by whole vectors' arithmetic.

    Right to 2 ulp, subnormal results, overflow, infinities and NaN included. What TVM cannot
    vectorise stays as it is: it would be computed lane by lane, and on the way there TVM visits
    some bindings twice, which it refuses ("Let cannot bind the same var to two values"). What all
    lanes share stays as well: TVM visits the factors of a product twice when one changes and
    none is a vector, and a scalar call always changes. So does an exponential of an exponential:
    TVM's code generation simplifies what a variable is bound to with all earlier bindings put in
    place, which takes minutes for three and for ever for four.

    Parameters
    ----------
    expr : Expr
        A scalar expression, the value of one lane.
    lane : Expr, optional
        Which lane; any variable may be it when omitted.
    """
    expr = tvm_ffi.structural_map(
        expr, [(ir.Call, _without_isnan), (tirx.Cast, _without_truth)], order="post"
    )
    if not makes_vectors(expr, lane):
        return expr

    def lower(call: ir.Call) -> ir.Expr:
        whole = is_call(call, "exp") and str(call.ty.dtype) == "float32"
        shared = lane is not None and not contains(variables_of(call), lane)
        return exp(call.args[0]) if whole and not shared and not _binds(call) else call

    return tvm_ffi.structural_map(expr, (ir.Call, lower), order="post")


def _without_isnan(call: ir.Call) -> ir.Expr:
    """Test the bits of a float32 instead; TVM would ask the C library lane by lane."""
    if not is_call(call, "isnan") or str(call.args[0].ty.dtype) != "float32":
        return call
    bits = tirx.bitwise_and(tirx.reinterpret("int32", call.args[0]), _integer(0x7FFFFFFF))
    return bits > _integer(0x7F800000)  # larger than infinity's


def _without_truth(cast: tirx.Cast) -> ir.Expr:
    """Choose a number instead of casting a comparison.

    TVM's code generation makes a scalar constant of a vector's type of such a cast in a binding.
    """
    if str(cast.value.ty.dtype) != "bool" or isinstance(cast.value, ir.TensorLoad):
        return cast
    dtype = str(cast.ty.dtype)
    return tirx.Select(cast.value, tirx.const(1, dtype), tirx.const(0, dtype))


def _binds(expr: ir.Expr) -> bool:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append))
    return bool(found)


def _integer(value: int) -> ir.Expr:
    return tirx.IntImm("int32", value)


def makes_vectors(body: ir.Expr | tirx.Stmt, lane: ir.Expr | None = None) -> bool:
    """Whether TVM makes vectors of all calls in an expression or statement.

    It makes a scalar loop of a statement where it does not: even of one that binds a variable,
    and the statements that follow then find the value of the last lane in every lane.
    """
    calls: list[ir.Call] = []
    bound: list[tirx.Let] = []
    tvm_ffi.structural_walk(body, [(ir.Call, calls.append), (tirx.Let, bound.append)])
    varying = None if lane is None else [lane, *(let.var for let in bound)]
    return all(_is_vectorised(call, varying) for call in calls)


def _is_vectorised(call: ir.Call, varying: list[ir.Var] | None) -> bool:
    """Whether TVM makes a vector of a call; any variable may vary over lanes when None is given."""

    def varies(expr: ir.Expr) -> bool:
        variables = variables_of(expr)
        return any(varying is None or contains(varying, v) for v in variables)

    if is_call(call, "if_then_else"):
        return not varies(call.args[0])
    if is_call(call, "reinterpret"):
        return True
    vectorises = isinstance(call.op, ir.Op) and bool(call.op.get_attr("TVectorizable"))
    return vectorises or not varies(call)


def exp(argument: ir.Expr) -> ir.Expr:
    """``2**n * exp(r)`` with ``n`` whole and ``r`` small: Cody and Waite's reduction.

    ``2**n`` is applied in two halves, so that results may be subnormal or infinite.
    """
    raw, x, shifted, r = (tirx.Var(name, "float32") for name in ("raw", "x", "shifted", "r"))
    whole = tirx.Var("whole", "int32")
    # Inside calls only: TVM's NarrowDataType bounds integers within the binding, and those inside
    # calls again without it, and stops where the two differ.
    half = whole >> tirx.const(1, "int32")
    series = _float(POLYNOMIAL[-1])
    for coefficient in POLYNOMIAL[-2::-1]:
        series = series * r + _float(coefficient)
    result = (series * r * r + r + _float(1)) * _power_of_two(half) * _power_of_two(whole - half)
    rounded = shifted - _float(ROUND)
    bits = tirx.reinterpret("int32", shifted)
    # Comparisons with NaN fail, so that it goes its way through the arithmetic.
    clipped = tirx.Select(
        raw < _float(LOWEST),
        _float(LOWEST),
        tirx.Select(raw > _float(HIGHEST), _float(HIGHEST), raw),
    )
    for variable, value in (
        (whole, bits - tirx.const(ROUND_BITS, "int32")),
        (r, x - rounded * _float(LN2_HIGH) - rounded * _float(LN2_LOW)),
        (shifted, x * _float(1 / math.log(2)) + _float(ROUND)),
        (x, clipped),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def _power_of_two(exponent: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(
        "float32", (exponent + tirx.const(127, "int32")) << tirx.const(23, "int32")
    )


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")
