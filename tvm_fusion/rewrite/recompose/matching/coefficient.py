"""Numbers with an interval for the rounding of the constants that they are computed from.

``erf(x / sqrt(2))`` over float16 divides by 1.4140625: a constant is the number in an equation if
it is that number rounded to its type. What is computed of several constants has the errors of all.
"""

from __future__ import annotations

import math
from typing import Any

#: Bits of the significand, and the smallest exponent of a normal number.
_HALF = {"float16": (11, -14), "bfloat16": (8, -126)}
_EXACT = 1e-5  # relative: exporters compute constants of the wide types in several ways


class Coefficient(float):
    """A number that is known up to an absolute error.

    Parameters
    ----------
    error
        How far from it the number that was meant may be; 0 for a plain ``float``.
    """

    error: float

    def __new__(cls, value: float, error: float = 0.0) -> Coefficient:
        """Make a float with an error."""
        found = super().__new__(cls, value)
        found.error = error
        return found

    def __add__(self, other: float) -> Coefficient:
        return Coefficient(float(self) + float(other), self.error + error_of(other))

    def __mul__(self, other: float) -> Coefficient:
        one, two = self.error, error_of(other)
        error = one * abs(other) + two * abs(self) + one * two
        return Coefficient(float(self) * float(other), error)

    def __neg__(self) -> Coefficient:
        return Coefficient(-float(self), self.error)

    def __truediv__(self, other: float) -> Coefficient:
        return self * power(other, -1.0)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: float) -> Coefficient:
        return self + -other

    def __rsub__(self, other: float) -> Coefficient:
        return -self + other

    def __rtruediv__(self, other: float) -> Coefficient:
        return power(self, -1.0) * other


def error_of(value: float) -> float:
    """Return the error of a number, whatever its class."""
    return value.error if isinstance(value, Coefficient) else 0.0


def power(value: float, exponent: float) -> Coefficient:
    """Raise a number to a power.

    Raises
    ------
    ZeroDivisionError
        Of zero, to a negative one.
    """
    raised = float(value) ** exponent
    error = abs(exponent * raised) * error_of(value) / abs(value) if value else 0.0
    return Coefficient(raised, error)


def rounded(value: float, dtype: str) -> float:
    """Return a constant; one of a half type stands for any number that rounds to it."""
    if dtype not in _HALF or not math.isfinite(value) or not value:
        return value
    digits, smallest = _HALF[dtype]
    exponent = max(math.frexp(value)[1] - 1, smallest)
    return Coefficient(value, 0.5 * math.ldexp(1.0, exponent - digits + 1))


def is_close(value: float, expected: float) -> bool:
    """Whether two numbers are the same up to the rounding of the constants in them."""
    error = error_of(value) + error_of(expected)
    return abs(float(value) - float(expected)) <= error + _EXACT * abs(expected)


def plain(value: Any) -> float:
    """Return a number without its error, for an operator's attributes."""
    return float(value)
