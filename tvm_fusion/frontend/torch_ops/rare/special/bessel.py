"""Convert Bessel and Airy functions.

Tabulated up to 32, where Hankel's asymptotic series take over; those with a logarithm at zero have
their power series up to 2.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import torch
from tvm import tirx

from ...call import Call
from ..registry import REAL
from .piecewise import Piecewise, choose, const, elementwise, horner

_FAR = 32
_TERMS = 16
_SERIES = 16
special = torch.special


def _exact(function: Callable[[float], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Evaluate by mpmath, which torch depends on: of these torch's own keep 7 to 8 digits."""
    return lambda x: torch.tensor([float(function(v)) for v in x.tolist()], dtype=torch.float64)


def _over_argument(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Divide by the argument what is zero at zero, which keeps its digits there."""
    return lambda x: function(x) / x


_I = [Piecewise(f, 0, _FAR, 2) for f in (special.i0e, _over_argument(special.i1e))]
_J = [
    Piecewise(_exact(mpmath.j0), 0, _FAR, 2),
    Piecewise(_over_argument(_exact(mpmath.j1)), 0, _FAR, 2),
]
_Y = [Piecewise(_exact(partial(mpmath.bessely, n)), 2, _FAR, 1) for n in (0, 1)]
_K = [
    Piecewise(f, 2, _FAR, 1)
    for f in (special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1)
]
_AIRY = Piecewise(_exact(mpmath.airyai), -16, 16, 0.5)


def _hankel(order: int) -> list[float]:
    """Return the coefficients of 1/x in the asymptotic series of an order."""
    terms = [1.0]
    for k in range(1, _TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return terms


def _alternating(terms: list[float]) -> list[float]:
    return [(-1) ** k * term for k, term in enumerate(terms)]


def _beyond(size: Any) -> Any:
    """Return 1/x where a series of it holds; elsewhere it is not used."""
    one, far = const(1, size), const(_FAR, size)
    return one / choose(size < far, far, size)


def _scaled_i(size: Any, order: int, table: Any) -> Any:
    inverse = _beyond(size)
    far = horner(inverse, _alternating(_hankel(order)))
    far = far * tirx.sqrt(inverse * const(1 / (2 * math.pi), size))
    near = table(size) * size if order else table(size)
    return choose(size < const(_FAR, size), near, far)


def _modified(order: int, is_scaled: bool) -> Callable[[Call], Any]:
    def body(x: Any, table: Any) -> Any:
        size = tirx.abs(x)
        value = _scaled_i(size, order, table)
        if not is_scaled:  # in two factors, which overflow later
            half = tirx.exp(size * const(0.5, x))
            value = value * half * half
        return choose(x < const(0, x), -value, value) if order else value

    name = f"bessel_i{order}{'e' if is_scaled else ''}"
    return lambda call: elementwise(call, name, body, _I[order])


def _phase(size: Any, order: int) -> tuple[Any, Any, Any, Any]:
    """Return P, Q and the cosine and sine of x - (order / 2 + 1 / 4) pi, times the amplitude."""
    terms, inverse = _hankel(order), _beyond(size)
    square = inverse * inverse
    p = horner(square, _alternating(terms[0::2]))
    q = horner(square, _alternating(terms[1::2])) * inverse
    sine, cosine = tirx.sin(size), tirx.cos(size)
    scale = tirx.sqrt(inverse * const(1 / math.pi, size))
    if order == 0:
        return p, q, (cosine + sine) * scale, (sine - cosine) * scale
    return p, q, (sine - cosine) * scale, -(sine + cosine) * scale


def _first(order: int) -> Callable[[Call], Any]:
    def body(x: Any, table: Any) -> Any:
        size = tirx.abs(x)
        p, q, cosine, sine = _phase(size, order)
        near = table(size) * size if order else table(size)
        value = choose(size < const(_FAR, x), near, p * cosine - q * sine)
        return choose(x < const(0, x), -value, value) if order else value

    return lambda call: elementwise(call, f"bessel_j{order}", body, _J[order])


def _harmonic(k: int) -> float:
    """Return digamma(k + 1)."""
    return -0.57721566490153286061 + math.fsum(1 / j for j in range(1, k + 1))


def _powers(order: int, sign: int) -> tuple[list[float], list[float]]:
    """Return the power series in x * x / 4 of I or J, and of what is added to it times log(x)."""
    regular, remainder = [], []
    for k in range(_SERIES):
        term = sign**k / (math.factorial(k) * math.factorial(k + order))
        regular.append(term)
        remainder.append(term * (_harmonic(k) + _harmonic(k + order)))
    return regular, remainder


def _at_zero(x: Any, order: int, sign: int) -> tuple[Any, Any]:
    """Return, for 0 < x < 2, ``log(x / 2)`` times the function of the first kind, and the rest."""
    two, zero = const(2, x), const(0, x)
    small = choose(tirx.all(x > zero, x < two), x, two)
    half = small * const(0.5, x)
    square, (regular, remainder) = half * half, _powers(order, sign)
    log, rest = tirx.log(half) * horner(square, regular), horner(square, remainder)
    return (log * half, rest * half) if order else (log, rest)


def _reciprocal(x: Any) -> Any:
    two, zero = const(2, x), const(0, x)
    return const(1, x) / choose(tirx.all(x > zero, x < two), x, two)


def _second(order: int) -> Callable[[Call], Any]:
    def body(x: Any, table: Any) -> Any:
        log, rest = _at_zero(x, order, -1)
        near = (log * const(2, x) - rest) * const(1 / math.pi, x)
        if order:
            near = near - _reciprocal(x) * const(2 / math.pi, x)
        p, q, cosine, sine = _phase(x, order)
        value = choose(x < const(_FAR, x), table(x), p * sine + q * cosine)
        return _on_positive(x, choose(x < const(2, x), near, value), -math.inf)

    return lambda call: elementwise(call, f"bessel_y{order}", body, _Y[order])


def _third(order: int, is_scaled: bool) -> Callable[[Call], Any]:
    def body(x: Any, table: Any) -> Any:
        log, rest = _at_zero(x, order, 1)
        near = _reciprocal(x) + log - rest * const(0.5, x) if order else rest * const(0.5, x) - log
        inverse = _beyond(x)
        far = horner(inverse, _hankel(order)) * tirx.sqrt(inverse * const(math.pi / 2, x))
        value = choose(x < const(_FAR, x), table(x), far)
        if is_scaled:
            near = near * tirx.exp(x)
        else:
            value = value * tirx.exp(-x)
        return _on_positive(x, choose(x < const(2, x), near, value), math.inf)

    name = f"bessel_k{order}{'e' if is_scaled else ''}"
    return lambda call: elementwise(call, name, body, _K[order])


def _on_positive(x: Any, value: Any, at_zero: float) -> Any:
    value = choose(x == const(0, x), const(at_zero, x), value)
    return choose(x < const(0, x), const(math.nan, x), value)


@REAL.register("special_spherical_bessel_j0", "spherical_bessel_j0")
def spherical(call: Call) -> Any:
    """Take sin(x) / x, by its series near zero."""

    def body(x: Any) -> Any:
        size = tirx.abs(x)
        series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
        is_near = size < const(0.5, x)
        value = tirx.sin(x) / choose(is_near, const(1, x), x)
        value = choose(is_near, horner(x * x, series), value)
        return choose(size == const(math.inf, x), const(0, x), value)

    return elementwise(call, "spherical_bessel_j0", body)


@REAL.register("special_airy_ai")
def airy(call: Call) -> Any:
    """Take the Airy function Ai: tabulated from -16 to 16, its asymptotic series beyond."""
    terms = [1.0]
    for k in range(_TERMS):  # of 1 / zeta, zeta = 2/3 |x|^1.5
        terms.append(
            terms[-1] * (6 * k + 5) * (6 * k + 3) * (6 * k + 1) / (216 * (k + 1) * (2 * k + 1))
        )

    def body(x: Any, table: Any) -> Any:
        size, sixteen = tirx.abs(x), const(16, x)
        size = choose(size < sixteen, sixteen, size)
        root = tirx.sqrt(size)
        zeta = size * root * const(2 / 3, x)
        inverse = const(1, x) / zeta
        scale = const(1 / math.sqrt(math.pi), x) / tirx.sqrt(root)
        above = horner(inverse, _alternating(terms)) * tirx.exp(-zeta) * const(0.5, x) * scale
        square = inverse * inverse
        p = horner(square, _alternating(terms[0::2]))
        q = horner(square, _alternating(terms[1::2])) * inverse
        sine, cosine = tirx.sin(zeta), tirx.cos(zeta)
        below = ((sine + cosine) * p - (cosine - sine) * q) * scale * const(math.sqrt(0.5), x)
        value = choose(x < const(0, x), below, above)
        value = choose(tirx.abs(x) < sixteen, table(x), value)
        return choose(tirx.abs(x) == const(math.inf, x), const(math.nan, x), value)

    return elementwise(call, "airy_ai", body, _AIRY)


def _register() -> None:
    for order in (0, 1):
        REAL.register(f"special_modified_bessel_i{order}", f"bessel_i{order}")(
            _modified(order, False)
        )
        REAL.register(f"special_i{order}e", f"bessel_i{order}e")(_modified(order, True))
        REAL.register(f"special_bessel_j{order}", f"bessel_j{order}")(_first(order))
        REAL.register(f"special_bessel_y{order}")(_second(order))
        REAL.register(f"special_modified_bessel_k{order}")(_third(order, False))
        REAL.register(f"special_scaled_modified_bessel_k{order}")(_third(order, True))
    REAL.register("i0", "special_i0")(_modified(0, False))
    REAL.register("special_i1")(_modified(1, False))


_register()
