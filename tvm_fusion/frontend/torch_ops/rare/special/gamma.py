"""Convert the logarithm of the gamma function and its derivatives."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from tvm import tirx

from ...call import Call
from ..registry import REAL
from .piecewise import Piecewise, choose, const, elementwise, horner, sine_of_pi

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
