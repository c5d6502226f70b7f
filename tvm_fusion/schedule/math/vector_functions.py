"""The functions of :mod:`vector_math`, written with arithmetic, comparisons and bits alone.

Infinities, NaN, signed zeros and subnormal arguments are honoured. The error bounds hold over all
float32 arguments.
"""

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx

LOWEST, HIGHEST = -104.0, 89.0  # beyond these a float32 exponential is 0 or infinite
LN2_HIGH = 0.693359375  # ln 2 in ten bits, so that its products with small integers are exact
LN2_LOW = math.log(2) - LN2_HIGH
ROUND, ROUND_BITS = 12582912.0, 0x4B400000  # 1.5 * 2**23: adding it leaves an integer in its bits
BIASED = ROUND + 127  # leaves the bits of a float32 exponent
ZERO = -88.0  # rounds to -127 powers of two, for which the bits of the exponent are 0
# (exp(r) - 1 - r) / r**2 on |r| <= ln 2 / 2, lowest power first: least squares at the Chebyshev
# points; its own error in exp(r) is 0.09 ulp.
EXP = (0.5, 0.16666576266288757, 0.04166646674275398, 0.008363181725144386,
       0.0013933652080595493)  # fmt: skip
# (2**r - 1) / r on |r| <= 1/2: least squares reweighted until the errors of 2**r were even; 1.6e-8.
EXP2 = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262,
        0.0013398875016719103, 0.00015353361959569156)  # fmt: skip
# The same to 2**-18, for results of half types.
HALF_EXP2 = (0.6931241750717163, 0.24024099111557007, 0.055906426161527634, 0.009582852013409138)
# Quotients of two polynomials in x**2, lowest power first, times x; 1 and -1 beyond the limit:
# weighted least squares at Chebyshev points, reweighted until the errors were even; their own
# errors are below 2e-8.
ERF_LIMIT = 3.92
ERF = (
    (1.1283791065216064, 0.19039687514305115, 0.052747275680303574, 0.0037651588208973408,
     0.0002848648582585156, 2.0500617665675236e-06),
    (1.0, 0.5020675659179688, 0.1141049861907959, 0.014968302100896835, 0.001162410480901599,
     3.8090514863142744e-05),
)  # fmt: skip
TANH_LIMIT = 9.0
TANH = (
    (1.0, 0.13380980491638184, 0.0034955344162881374, 2.060818405880127e-05,
     1.3353411709715601e-08),
    (1.0, 0.4671429693698883, 0.025876779109239578, 0.0003285546263214201, 7.776046686558402e-07),
)  # fmt: skip
# (log(1 + f) - f + f**2 / 2) / f**3 between the roots of 1/2 and 2; its own error is below 7e-9.
LOG = (0.333333283662796, -0.2500084638595581, 0.20001448690891266, -0.16622772812843323,
       0.1419726312160492, -0.1316087394952774, 0.12789621949195862,
       -0.07666336745023727)  # fmt: skip
ROOT_BITS = 0x3F3504F3  # of the root of 1/2
MANTISSA = 0x007FFFFF
TINY = 2.0**-126  # smaller numbers are subnormal


def exp(argument: ir.Expr) -> ir.Expr:
    """``2**n * exp(r)`` with ``n`` whole and ``r`` small: Cody and Waite's reduction.

    Right to 2 ulp. ``2**n`` is applied in two halves, so that results may be subnormal or infinite.
    """
    raw, x, shifted, r = (tirx.Var(name, "float32") for name in ("raw", "x", "shifted", "r"))
    whole = tirx.Var("whole", "int32")
    # Inside calls only: TVM's NarrowDataType bounds integers within the binding, and those inside
    # calls again without it, and stops where the two differ.
    half = whole >> tirx.const(1, "int32")
    result = _polynomial((1.0, 1.0, *EXP), r) * _power_of_two(half) * _power_of_two(whole - half)
    rounded = shifted - _float(ROUND)
    bits = tirx.reinterpret("int32", shifted)
    for variable, value in (
        (whole, bits - tirx.const(ROUND_BITS, "int32")),
        (r, x - rounded * _float(LN2_HIGH) - rounded * _float(LN2_LOW)),
        (shifted, x * _float(1 / math.log(2)) + _float(ROUND)),
        (x, _clipped(raw, LOWEST, HIGHEST)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def log(argument: ir.Expr) -> ir.Expr:
    """Natural logarithm, right to 2 ulp: ``k ln 2 + log(1 + f)``, ``k`` whole and ``f`` small."""
    raw, x, f, k = (tirx.Var(name, "float32") for name in ("raw", "x", "f", "k"))
    bits = tirx.Var("bits", "int32")
    tail = f * f * f * _polynomial(LOG, f) + k * _float(LN2_LOW)
    result = k * _float(LN2_HIGH) + (f - (_float(0.5) * f * f - tail))
    # Infinite and NaN arguments are their own logarithms; negative ones have none.
    result = tirx.Select(raw < _float(math.inf), result, raw)
    result = tirx.Select(raw < _float(0), _float(math.nan), result)
    result = tirx.Select(raw == _float(0), _float(-math.inf), result)
    small = raw < _float(TINY)
    power = tirx.reinterpret(
        "float32", (bits >> tirx.const(23, "int32")) + tirx.const(ROUND_BITS, "int32")
    )
    near_one = tirx.reinterpret(
        "float32",
        tirx.bitwise_and(bits, tirx.const(MANTISSA, "int32")) + tirx.const(ROOT_BITS, "int32"),
    )
    for variable, value in (
        (f, near_one - _float(1)),
        (k, power - tirx.Select(small, _float(ROUND + 23), _float(ROUND))),
        (bits, tirx.reinterpret("int32", x) - tirx.const(ROOT_BITS, "int32")),
        (x, tirx.Select(small, raw * _float(2.0**23), raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def decay(argument: ir.Expr) -> ir.Expr:
    """``exp(x)`` of a number that is not positive, right to 1.5 ulp; may be 0 below -87.34.

    For softmax, whose arguments are differences from a row's maximum. Beside the 1 of the maximum,
    numbers below the smallest normal one count for nothing, and processors take a hundred times as
    long for them. So ``2**n`` is one normal number, or 0: the bits of ``x / ln 2`` rounded, to
    which the exponent's bias was added, are shifted into the place of an exponent. Arguments up to
    88 are as right; beyond, results mean nothing. NaN stays NaN.
    """
    return _exp_of_normal(argument, lambda raw: _at_least(raw, ZERO))


def _exp_of_normal(argument: ir.Expr, limited: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """Compute :func:`decay` of an argument within limits."""
    raw, x, shifted, r = (tirx.Var(name, "float32") for name in ("raw", "x", "shifted", "r"))
    result = _polynomial((1.0, 1.0, *EXP), r) * _power_of_biased(shifted)
    rounded = shifted - _float(BIASED)
    for variable, value in (
        (r, x - rounded * _float(LN2_HIGH) - rounded * _float(LN2_LOW)),
        (shifted, x * _float(1 / math.log(2)) + _float(BIASED)),
        (x, limited(raw)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def unit_decay(argument: ir.Expr) -> ir.Expr:
    """``exp(x)`` of a number that is not positive, right to half an ulp of 1; else like `decay`.

    Two multiplications less than that: ``x / ln 2`` is rounded, which is an error of the result by
    ``|x| exp(x) / 2**24`` at most. Softmax sums such weights next to the 1 of the maximum.
    """
    return _exp2_of_normal(argument, EXP2, lambda raw: _at_least(raw, -127))


def half_decay(argument: ir.Expr) -> ir.Expr:
    """``exp(x)`` of a number that is not positive, right to 2**-16; else like `decay`.

    For results that are rounded to a half type, an ulp of which is 2**-10 at best.
    """
    return _exp2_of_normal(argument, HALF_EXP2, lambda raw: _at_least(raw, -127))


def half_sigmoid(argument: ir.Expr) -> ir.Expr:
    """Compute :func:`sigmoid` right to 2**-16, for results that are rounded to a half type."""
    growth = _exp2_of_normal(_float(0) - argument, HALF_EXP2, lambda raw: _clipped(raw, -127, 128))
    return _float(1) / (_float(1) + growth)


def _exp2_of_normal(
    argument: ir.Expr, coefficients: Sequence[float], limited: Callable[[ir.Expr], ir.Expr]
) -> ir.Expr:
    """Compute ``exp(x)`` as ``2**(x / ln 2)``, where the quotient is within limits."""
    raw, x, shifted, r = (tirx.Var(name, "float32") for name in ("raw", "x", "shifted", "r"))
    result = _polynomial((1.0, *coefficients), r) * _power_of_biased(shifted)
    for variable, value in (
        (r, x - (shifted - _float(BIASED))),
        (shifted, x + _float(BIASED)),
        (x, limited(raw)),
        (raw, argument * _float(1 / math.log(2))),
    ):
        result = tirx.Let(variable, value, result)
    return result


def sigmoid(argument: ir.Expr) -> ir.Expr:
    """``1 / (1 + exp(-x))``, right to 3 ulp; 0 where the result is no normal number.

    Exponentials below the smallest normal number count for nothing next to 1; those from
    ``2**127.5`` on, where ``2**n`` is infinite, give 0.
    """
    growth = _exp_of_normal(_float(0) - argument, lambda raw: _clipped(raw, ZERO, HIGHEST))
    return _float(1) / (_float(1) + growth)


def erf(argument: ir.Expr) -> ir.Expr:
    """Error function, right to 6 ulp."""
    return _odd(argument, ERF_LIMIT, *ERF)


def tanh(argument: ir.Expr) -> ir.Expr:
    """Hyperbolic tangent, right to 6 ulp."""
    return _odd(argument, TANH_LIMIT, *TANH)


def _odd(
    argument: ir.Expr, limit: float, above: Sequence[float], below: Sequence[float]
) -> ir.Expr:
    raw, x, square, ratio = (tirx.Var(name, "float32") for name in ("raw", "x", "square", "ratio"))
    result = _clipped(ratio, -1, 1)
    for variable, value in (
        (ratio, x * _polynomial(above, square) / _polynomial(below, square)),
        (square, x * x),
        (x, _clipped(raw, -limit, limit)),
        (raw, argument),
    ):
        result = tirx.Let(variable, value, result)
    return result


def _polynomial(coefficients: Sequence[float], x: ir.Expr) -> ir.Expr:
    value = _float(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + _float(coefficient)
    return value


def _clipped(x: ir.Expr, low: float, high: float) -> ir.Expr:
    """Comparisons with NaN fail, so that it goes its way through the arithmetic."""
    return _at_least(tirx.Select(x > _float(high), _float(high), x), low)


def _at_least(x: ir.Expr, low: float) -> ir.Expr:
    return tirx.Select(x < _float(low), _float(low), x)


def _power_of_biased(shifted: ir.Expr) -> ir.Expr:
    """Return ``2**n`` after adding ``BIASED`` rounded to an integer n from -127 (0) to 128."""
    return tirx.reinterpret(
        "float32", tirx.reinterpret("int32", shifted) << tirx.const(23, "int32")
    )


def _power_of_two(exponent: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(
        "float32", (exponent + tirx.const(127, "int32")) << tirx.const(23, "int32")
    )


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")


def nearbyint(x: ir.Expr) -> ir.Expr:
    """Round to whole numbers, halves to even ones: LLVM's function, which TVM has no vectors of."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", x)
