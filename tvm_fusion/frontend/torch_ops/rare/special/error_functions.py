"""Convert the complementary error functions and the inverses of the error function."""

import math
from typing import Any

import torch
from tvm import tirx

from ...call import Call
from ..registry import REAL
from .piecewise import Piecewise, choose, const, elementwise, horner

_ERFCX = Piecewise(torch.special.erfcx, 0, 8, 0.5)


def _inverse_over_argument(root: torch.Tensor) -> torch.Tensor:
    """Return erfinv(x) / x by ``root = sqrt(-log(1 - x * x))``.

    Newton's method on ``log erfc(y)``, which keeps the digits of 1 - x near x = 1.
    """
    x = torch.sqrt(-torch.expm1(-(root**2)))
    log_tail = -(root**2) - torch.log1p(x)
    y = torch.where(root < 1, torch.erfinv(x), root)
    for _ in range(12):
        scaled = torch.special.erfcx(y)
        y = y + (torch.log(scaled) - y * y - log_tail) * scaled * (math.sqrt(math.pi) / 2)
    return torch.where(root < 1, torch.erfinv(x), y) / x


# Over all of float64's range: 1 - x is at least 1e-308.
_ERFINV = Piecewise(_inverse_over_argument, 0, 27, 0.5)


def _scaled(size: Any, table: Any) -> Any:
    """Return exp(x * x) * erfc(x) for x >= 0: tabulated, and its asymptotic series beyond 8."""
    inverse = const(1, size) / choose(size < const(1, size), const(1, size), size)
    terms, term = [], 1.0
    for k in range(15):
        terms.append(term)
        term *= -(2 * k + 1) / 2
    far = horner(inverse * inverse, terms) * inverse * const(1 / math.sqrt(math.pi), size)
    return choose(size < const(8, size), table(size), far)


@REAL.register("erfc", "special_erfc")
def erfc(call: Call) -> Any:
    """Take 1 - erf(x), to the full precision of small results."""

    def body(x: Any, table: Any) -> Any:
        size = tirx.abs(x)
        tail = _scaled(size, table) * tirx.exp(-size * size)
        return choose(x < const(0, x), const(2, x) - tail, tail)

    return elementwise(call, "erfc", body, _ERFCX)


@REAL.register("special_erfcx")
def erfcx(call: Call) -> Any:
    """Take exp(x * x) * erfc(x)."""

    def body(x: Any, table: Any) -> Any:
        value = _scaled(tirx.abs(x), table)
        return choose(x < const(0, x), const(2, x) * tirx.exp(x * x) - value, value)

    return elementwise(call, "erfcx", body, _ERFCX)


def _inverse(x: Any, complement: Any, table: Any) -> Any:
    """Return erfinv(x), of which ``complement`` is 1 - x."""
    tail = complement * (const(1, x) + x)
    root = tirx.sqrt(-tirx.log(tail))
    # Of tiny x the logarithm keeps no digits, and the ratio none of them.
    root = choose(tail < const(1, x), root, const(0, x))
    value = table(root) * x
    value = choose(tail == const(0, x), x * const(math.inf, x), value)
    return choose(tail < const(0, x), const(math.nan, x), value)


@REAL.register("erfinv", "special_erfinv", "erf_inv")
def erfinv(call: Call) -> Any:
    """Invert the error function."""
    return elementwise(
        call,
        "erfinv",
        lambda x, table: _inverse(x, const(1, x) - x, table),
        _ERFINV,
    )


@REAL.register("special_ndtri", "ndtri")
def ndtri(call: Call) -> Any:
    """Invert the normal distribution function, from whichever end is nearer."""

    def body(x: Any, table: Any) -> Any:
        half, one = const(0.5, x), const(1, x)
        is_low = x < half
        complement = choose(is_low, x, one - x) * const(2, x)
        size = _inverse(one - complement, complement, table) * const(math.sqrt(2), x)
        return choose(is_low, -size, size)

    return elementwise(call, "ndtri", body, _ERFINV)
