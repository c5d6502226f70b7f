"""Convert special functions of two variables, by loops in a kernel."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from tvm import relax, te, tirx

from .....core.tir.task_kernel import Local, repeat_while, when
from ....registry import Unsupported
from ...call import Call
from ...kernel import emit_map
from ...math.arithmetic import operands
from ..registry import REAL
from .piecewise import Piecewise, choose, const, elementwise, horner, sine_of_pi

_WIDE = "float64"
_LARGEST_ORDER = 100
_LOWEST = -1e6


def _f(value: float) -> Any:
    return tirx.const(value, _WIDE)


# Each polynomial by its value of degree 1 and its recurrence: from n, x, p[n - 1] and p[n - 2].
_POLYNOMIALS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "chebyshev_polynomial_t": (lambda x: x, lambda n, x, p, q: _f(2) * x * p - q),
    "chebyshev_polynomial_u": (lambda x: _f(2) * x, lambda n, x, p, q: _f(2) * x * p - q),
    "chebyshev_polynomial_v": (lambda x: _f(2) * x - _f(1), lambda n, x, p, q: _f(2) * x * p - q),
    "chebyshev_polynomial_w": (lambda x: _f(2) * x + _f(1), lambda n, x, p, q: _f(2) * x * p - q),
    "hermite_polynomial_h": (
        lambda x: _f(2) * x,
        lambda n, x, p, q: _f(2) * (x * p - (n - _f(1)) * q),
    ),
    "hermite_polynomial_he": (lambda x: x, lambda n, x, p, q: x * p - (n - _f(1)) * q),
    "laguerre_polynomial_l": (
        lambda x: _f(1) - x,
        lambda n, x, p, q: ((_f(2) * n - _f(1) - x) * p - (n - _f(1)) * q) / n,
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda n, x, p, q: ((_f(2) * n - _f(1)) * x * p - (n - _f(1)) * q) / n,
    ),
}


def _polynomial(name: str, is_shifted: bool) -> Callable[[Call], Any]:
    first, step = _POLYNOMIALS[name]

    def convert(call: Call) -> Any:
        def body(x: Any, n: Any) -> Any:
            x = _f(2) * x - _f(1) if is_shifted else x
            degree = tirx.trunc(n)
            before, value, number = Local(_WIDE, 0.0), Local(_WIDE, 1.0), Local(_WIDE, 1.0)
            with when(degree < _f(0)):
                value.set(0.0)
            with when(degree >= _f(1)):
                before.set(1.0)
                value.set(first(x))
            with repeat_while(number.value < degree):
                number.set(number.value + _f(1))
                following = Local(_WIDE, step(number.value, x, value.value, before.value))
                before.set(value.value)
                value.set(following.value)
            return value.value

        x, n = operands(call, _WIDE, "x", "n")
        return call.cast(emit_map(call, name, [x, n], _WIDE, body), call.dtype)

    return convert


def _register() -> None:
    for name in _POLYNOMIALS:
        overloads = ("default", "x_scalar", "n_scalar")
        REAL.register(*(f"special_{name}.{o}" for o in overloads))(_polynomial(name, False))
        if name.startswith("chebyshev"):
            shifted = f"special_shifted_{name}"
            REAL.register(*(f"{shifted}.{o}" for o in overloads))(_polynomial(name, True))


_register()


@REAL.register("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", "zeta")
def zeta(call: Call) -> Any:
    """Take Hurwitz's zeta function."""
    first, second = (a.name for a in call.node.target._schema.arguments[:2])
    s, q = operands(call, _WIDE, first, second)
    return call.cast(emit_map(call, "zeta", [s, q], _WIDE, _zeta), call.dtype)


@REAL.register("polygamma", "special_polygamma")
def polygamma(call: Call) -> Any:
    """Take a higher derivative of log gamma(x): ``(-1)^(n + 1) n! zeta(n + 1, x)``."""
    order = call["n"]
    if order == 0:
        return digamma(call)
    if order > _LARGEST_ORDER:
        raise Unsupported(f"of order {order}", f"use an order up to {_LARGEST_ORDER}")
    factor = (1 if order % 2 else -1) * math.factorial(order)

    def body(x: Any) -> Any:
        value = _zeta(_f(order + 1), x) * _f(factor)
        if order > 1:
            return value
        # The trigamma function reflects negative numbers by a sine, which infinity has none of.
        return tirx.Select(x == _f(-math.inf), _f(math.nan), value)

    value = emit_map(call, f"polygamma_{order}", [call.tensor("self", _WIDE)], _WIDE, body)
    return call.cast(value, call.dtype)


def _zeta(s: Any, q: Any) -> Any:
    """Sum terms ``(q + k)^-s`` up to 10, and the rest by the Euler-Maclaurin formula."""
    value, at = Local(_WIDE, 0.0), Local(_WIDE, q)
    exponent = Local(_WIDE, -s)
    is_whole = s == tirx.floor(s)
    is_pole = tirx.all(q <= _f(0), q == tirx.floor(q))
    is_defined = tirx.all(s > _f(1), tirx.any(q > _f(0), is_whole), tirx.Not(is_pole))
    with when(tirx.all(is_defined, q > _f(_LOWEST), q < _f(math.inf))):
        # The sum's error is that of the first term left out, which large s need a larger q for.
        with repeat_while(tirx.any(at.value < _f(10), at.value < s)):
            value.set(value.value + tirx.power(at.value, exponent.value))
            at.set(at.value + _f(1))
        far = at.value
        term = Local(_WIDE, tirx.power(far, exponent.value))
        value.set(value.value + term.value * (far / (s - _f(1)) + _f(0.5)))
        term.set(term.value * s / far)
        for k, b in enumerate(bernoulli(9), 1):
            value.set(value.value + term.value * _f(b / math.factorial(2 * k)))
            rising = (s + _f(2 * k - 1)) * (s + _f(2 * k))
            term.set(term.value * rising / (far * far))
    with when(q == _f(math.inf)):
        value.set(0.0)
    # From below _LOWEST the number of terms would have no bound.
    is_bad = tirx.any(tirx.Not(is_defined), q <= _f(_LOWEST), tirx.isnan(q), tirx.isnan(s))
    with when(is_bad):
        value.set(math.nan)
    with when(tirx.any(s == _f(1), tirx.all(s > _f(1), is_pole))):
        value.set(math.inf)
    return value.value


@REAL.register("special_gammainc", "igamma", "special_gammaincc", "igammac")
def incomplete_gamma(call: Call) -> Any:
    """Take the regularized incomplete gamma functions.

    The lower one by its series where x < a + 1, the upper one by its continued fraction elsewhere
    (Lentz's method); the other is one less it.
    """
    name = call.node.target.__name__
    is_upper = "gammaincc" in name or "igammac" in name
    first, second = (a.name for a in call.node.target._schema.arguments[:2])
    a, x = operands(call, _WIDE, first, second)
    a, x = (call.emit(relax.op.broadcast_to(v, call.shape())) for v in (a, x))
    logarithm = _log_gamma(call, a)

    def body(a: Any, x: Any, logarithm: Any) -> Any:
        lower, number = Local(_WIDE, 0.0), Local(_WIDE, 1.0)
        scale = tirx.exp(a * tirx.log(x) - x - logarithm)
        with when(tirx.all(x > _f(0), x < a + _f(1))):
            term, total = Local(_WIDE, _f(1) / a), Local(_WIDE, _f(1) / a)
            running = tirx.all(
                tirx.abs(term.value) > tirx.abs(total.value) * _f(1e-17), number.value < _f(1e5)
            )
            with repeat_while(running):
                term.set(term.value * x / (a + number.value))
                total.set(total.value + term.value)
                number.set(number.value + _f(1))
            lower.set(total.value * scale)
        with when(tirx.all(x >= a + _f(1), x < _f(math.inf))):
            tiny = _f(1e-300)
            b = Local(_WIDE, x + _f(1) - a)
            c, d = Local(_WIDE, _f(1) / tiny), Local(_WIDE, _f(1) / b.value)
            h, ratio = Local(_WIDE, d.value), Local(_WIDE, 2.0)
            running = tirx.all(tirx.abs(ratio.value - _f(1)) > _f(1e-16), number.value < _f(1e5))
            with repeat_while(running):
                factor = Local(_WIDE, -number.value * (number.value - a))
                b.set(b.value + _f(2))
                d.set(_f(1) / (factor.value * d.value + b.value))
                c.set(b.value + factor.value / c.value)
                ratio.set(c.value * d.value)
                h.set(h.value * ratio.value)
                number.set(number.value + _f(1))
            lower.set(_f(1) - h.value * scale)
            if is_upper:
                lower.set(h.value * scale)
        result = Local(_WIDE, lower.value)
        if is_upper:
            with when(x < a + _f(1)):
                result.set(_f(1) - lower.value)
        with when(x == _f(math.inf)):
            result.set(0.0 if is_upper else 1.0)
        with when(a == _f(0)):
            result.set(0.0 if is_upper else 1.0)
        is_bad = tirx.any(x < _f(0), a < _f(0), tirx.all(a == _f(0), x == _f(0)))
        with when(tirx.any(is_bad, tirx.isnan(x), tirx.isnan(a))):
            result.set(math.nan)
        return result.value

    value = emit_map(call, "incomplete_gamma", [a, x, logarithm], _WIDE, body)
    return call.cast(value, call.dtype)


def _log_gamma(call: Call, a: Any) -> Any:
    table = relax.const(LGAMMA.coefficients(_WIDE), _WIDE)

    def compute(x: te.Tensor, stored: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            return log_gamma(x(*index), lambda v: LGAMMA.at(v, lambda *at: stored(*at)))

        return te.compute(x.shape, element, name="lgamma")

    return call.importer.block_builder.emit_te(compute, a, table, primfunc_name_hint="lgamma")


# Convert the logarithm of the gamma function and its derivatives.
LGAMMA = Piecewise(torch.lgamma, 1, 9, 0.5)
_DIGAMMA = Piecewise(torch.digamma, 1, 9, 0.5)
#: Terms of the series in 1/x, enough for float64 from 9 on.
_TERMS = 9


def bernoulli(count: int) -> list[float]:
    """Return the Bernoulli numbers B2, B4, ... by their recurrence."""
    numbers = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        total = sum((math.comb(m + 1, k) * b for k, b in enumerate(numbers)), Fraction(0))
        numbers.append(-total / (m + 1))
    return [float(b) for b in numbers[2::2]]


@REAL.register("lgamma")
def lgamma(call: Call) -> Any:
    """Take log |gamma(x)|: tabulated from 1 to 9, Stirling's series beyond, reflected below 0."""
    return elementwise(call, "lgamma", log_gamma, LGAMMA)


def log_gamma(x: Any, table: Any) -> Any:
    """Return the TIR expression of log |gamma(x)|."""
    size = tirx.abs(x)
    is_small, one = size < const(1, x), const(1, x)
    near = table(choose(is_small, size + one, size))
    near = near - choose(is_small, tirx.log(size), const(0, x))
    inverse = one / size
    series = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(bernoulli(_TERMS), 1)]
    far = (size - const(0.5, x)) * (tirx.log(size) - one) + const(
        0.5 * math.log(2 * math.pi) - 0.5, x
    )
    far = far + horner(inverse * inverse, series) * inverse
    value = choose(size < const(9, x), near, far)
    sine, _ = sine_of_pi(x)
    # The product of both vanishes before either.
    both = tirx.log(size) + tirx.log(tirx.abs(sine))
    reflected = const(math.log(math.pi), x) - both - value
    value = choose(x < const(0, x), reflected, value)
    infinite = const(math.inf, x)
    is_pole = tirx.all(x <= const(0, x), tirx.floor(x) == x)
    return choose(tirx.any(is_pole, size == infinite), infinite, value)


@REAL.register("digamma", "special_digamma", "special_psi")
def digamma(call: Call) -> Any:
    """Take the derivative of log gamma(x)."""
    return elementwise(call, "digamma", _digamma, _DIGAMMA)


def _digamma(x: Any, table: Any) -> Any:
    one, zero = const(1, x), const(0, x)
    size = choose(x < zero, one - x, x)
    is_small = size < one
    near = table(choose(is_small, size + one, size)) - choose(is_small, one / size, zero)
    inverse = one / size
    series = [b / (2 * k) for k, b in enumerate(bernoulli(_TERMS), 1)]
    square = inverse * inverse
    far = tirx.log(size) - inverse * const(0.5, x) - horner(square, series) * square
    value = choose(size < const(9, x), near, far)
    sine, cosine = sine_of_pi(x)
    reflected = value - const(math.pi, x) * cosine / sine
    is_pole = tirx.all(x < zero, tirx.floor(x) == x)
    nan, infinite = const(math.nan, x), const(math.inf, x)
    value = choose(is_pole, nan, choose(x < zero, reflected, value))
    # At zero its sign decides.
    value = choose(x == zero, -one / x, value)
    return choose(x == infinite, infinite, value)
