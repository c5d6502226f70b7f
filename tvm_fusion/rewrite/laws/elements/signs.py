"""Absolute values, signs, rounding, and functions that are odd, even or their own repetition.

Taking a sign away, or putting it elsewhere, is exact; but the smallest integer has no opposite.
"""

from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import function, one_of, tensors
from ...nonfinite import ZERO
from ..conditions import floating, nonnegative, signed

a, b = tensors("a b")
absolute, sign, square = (function(f"relax.{f}") for f in ("abs", "sign", "square"))
odd = one_of("f", "tanh", "erf", "sin", "tan", "sinh", "asinh", "atan", "asin", "sign", "trunc")
even = one_of("f", "abs", "square", "cos", "cosh")
rounds = one_of("f", "floor", "ceil", "trunc")
rounds_again = one_of("g", "floor", "ceil", "trunc")


def _absolute_of_nonpositive(match: Match) -> Refusal | None:
    """Refuse what may be positive."""
    if match.graph[match.number("a")].bounds.high > 0:
        return Refusal("may_be_positive", "The tensor a may be positive.")
    return floating(match)


def _even_of_negative(match: Match) -> Refusal | None:
    """Refuse the absolute value of what is unsigned: the number itself."""
    return signed(match) if match.head("f").name == "relax.abs" else None


LAWS: tuple[Law, ...] = (
    Equation(
        "absolute_of_nonnegative",
        absolute(a),
        a,
        lambda match: nonnegative(match, "a"),
        changes=ZERO,
    ),
    Equation("absolute_of_nonpositive", absolute(a), -a, _absolute_of_nonpositive, changes=ZERO),
    Equation("absolute_twice", absolute(absolute(a)), absolute(a)),
    Equation("multiply_absolutes", absolute(a) * absolute(b), absolute(a * b), floating),
    Equation("divide_absolutes", absolute(a) / absolute(b), absolute(a / b), floating),
    Equation("square_of_absolute", square(absolute(a)), square(a)),
    # No operator less, but one of them may be there already.
    Equation("absolute_of_difference", absolute(a - b), absolute(b - a), signed),
    Equation("square_of_difference", square(a - b), square(b - a)),
    # Of integers as well: the smallest one is its own opposite.
    Equation("sign_times_absolute", sign(a) * absolute(a), a, changes=ZERO),
    Equation("sign_times_itself", a * sign(a), absolute(a), changes=ZERO),
    Equation("odd_of_negative", odd(-a), -odd(a), floating, both=True, changes=ZERO),
    Equation("even_of_negative", even(-a), even(a), _even_of_negative),
    Equation("round_twice", rounds_again(rounds(a)), rounds(a)),
)
