"""Absolute values, signs, rounding, and functions that are odd, even or their own repetition.

Taking a sign away, or putting it elsewhere, is exact; but the smallest integer has no opposite.
"""

from __future__ import annotations

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import function, one_of, tensors
from .conditions import OnFloats, floating, nonnegative

a, b = tensors("a b")
absolute, sign, square = (function(f"relax.{f}") for f in ("abs", "sign", "square"))
odd = one_of("f", "tanh", "erf", "sin", "tan", "sinh", "asinh", "atan", "asin", "sign", "trunc")
even = one_of("f", "abs", "square", "cos", "cosh")
rounds = one_of("f", "floor", "ceil", "trunc")
rounds_again = one_of("g", "floor", "ceil", "trunc")


class MultiplyAbsolutes(OnFloats):
    """abs(a) * abs(b) = abs(a * b)."""

    name = "multiply_absolutes"
    before = absolute(a) * absolute(b)
    after = absolute(a * b)


class DivideAbsolutes(OnFloats):
    """abs(a) / abs(b) = abs(a / b)."""

    name = "divide_absolutes"
    before = absolute(a) / absolute(b)
    after = absolute(a / b)


class AbsoluteOfNonnegative(Law):
    """abs(a) = a."""

    name = "absolute_of_nonnegative"
    before = absolute(a)
    after = a

    def check(self, match: Match) -> Refusal | None:
        """Refuse what may be negative."""
        return nonnegative(match, "a")


class AbsoluteOfNonpositive(Law):
    """abs(a) = -a."""

    name = "absolute_of_nonpositive"
    before = absolute(a)
    after = -a

    def check(self, match: Match) -> Refusal | None:
        """Refuse what may be positive."""
        if match.graph[match.number("a")].bounds.high > 0:
            return Refusal("may_be_positive", "The tensor a may be positive.")
        return floating(match)


class AbsoluteTwice(Law):
    """abs(abs(a)) = abs(a)."""

    name = "absolute_twice"
    before = absolute(absolute(a))
    after = absolute(a)


class AbsoluteOfDifference(Law):
    """abs(a - b) = abs(b - a)."""

    # No operator less, but one of them may be there already.
    name = "absolute_of_difference"
    before = absolute(a - b)
    after = absolute(b - a)


class SquareOfDifference(Law):
    """square(a - b) = square(b - a)."""

    name = "square_of_difference"
    before = square(a - b)
    after = square(b - a)


class SquareOfAbsolute(Law):
    """square(abs(a)) = square(a)."""

    name = "square_of_absolute"
    before = square(absolute(a))
    after = square(a)


class SignTimesAbsolute(OnFloats):
    """sign(a) * abs(a) = a."""

    name = "sign_times_absolute"
    before = sign(a) * absolute(a)
    after = a


class SignTimesItself(OnFloats):
    """a * sign(a) = abs(a)."""

    name = "sign_times_itself"
    before = a * sign(a)
    after = absolute(a)


class OddOfNegative(OnFloats):
    """f(-a) = -f(a)."""

    name = "odd_of_negative"
    before = odd(-a)
    after = -odd(a)
    both = True


class EvenOfNegative(Law):
    """f(-a) = f(a)."""

    # Of integers as well: the smallest one is its own opposite.
    name = "even_of_negative"
    before = even(-a)
    after = even(a)


class RoundTwice(Law):
    """g(f(a)) = f(a)."""

    name = "round_twice"
    before = rounds_again(rounds(a))
    after = rounds(a)


LAWS: tuple[Law, ...] = (
    AbsoluteOfNonnegative(),
    AbsoluteOfNonpositive(),
    AbsoluteTwice(),
    MultiplyAbsolutes(),
    DivideAbsolutes(),
    SquareOfAbsolute(),
    AbsoluteOfDifference(),
    SquareOfDifference(),
    SignTimesAbsolute(),
    SignTimesItself(),
    OddOfNegative(),
    EvenOfNegative(),
    RoundTwice(),
)
