"""Quotients and reciprocals, of floating point: integers divide towards zero.

A quotient that is finite and has not overflowed bounds its divisor away from zero; laws without a
flag compute no intermediate result that is farther from 1 than the original's.
"""

import numpy as np

from ....core.contract.template import Refusal
from ...egraph.facts.extents import magnitudes
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, number, tensors
from ...nonfinite import ALL, INFINITE, NAN
from ..conditions import all_of, floating, representable

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def _large_divisor(match: Match) -> Refusal | None:
    """Refuse a divisor ``a * l`` that may overflow, and a quotient that is not tiny then."""
    dividend, factor = magnitudes(match.value("k")), magnitudes(match.value("l"))
    if dividend is not None and factor is not None and not ((dividend > 1) & (factor > 1)).any():
        return None
    return Refusal("divisor_overflows", "A divisor that overflows would give 0.")


LAWS: tuple[Law, ...] = (
    Equation("neutral_divide", a / 1, a),
    Equation("divide_itself", a / a, number(1), floating, changes=NAN),
    # Refuses a reciprocal that overflows, or loses digits.
    Equation(
        "divide_by_constant",
        a / k,
        a * (1 / k),
        lambda match: all_of(floating(match), representable(match, np.reciprocal, "k")),
    ),
    # Refuses a product of constants that overflows, or loses digits.
    Equation(
        "gather_dividend",
        k / a * l,
        k * l / a,
        lambda match: all_of(floating(match), representable(match, np.multiply, "k", "l")),
        changes=ALL,
    ),
    # Refuses a quotient of constants that overflows, or loses digits.
    Equation(
        "gather_divisor",
        k / (a * l),
        k / l / a,
        lambda match: all_of(
            floating(match), representable(match, np.divide, "k", "l"), _large_divisor(match)
        ),
        changes=INFINITE,
    ),
    Equation("cancel_factor", a * b / b, a, floating, changes=ALL),
    Equation("cancel_divisor", a / b * b, a, floating, changes=ALL),
    Equation("cancel_dividend_twice", a / b / a, 1 / b, floating, changes=ALL),
    # A divisor that overflows gives 0 in the original.
    Equation("cancel_dividend", a / (a / b), b, floating, needs="reassociate"),
    Equation("cancel_into_reciprocal", a / (a * b), 1 / b, floating, needs="reassociate"),
    Equation("cancel_common_factor", a * c / (b * c), a / b, floating, needs="reassociate"),
    Equation("cancel_common_divisor", a / c / (b / c), a / b, floating, needs="reassociate"),
    Equation("invert_quotient", 1 / (a / b), b / a, floating, changes=INFINITE),
    Equation("negate_dividend", -a / b, -(a / b), floating, both=True),
    Equation("negate_divisor", a / -b, -(a / b), floating),
    Equation("multiply_by_reciprocal", a * (1 / b), a / b, floating, changes=ALL),
    Equation(
        "reciprocal_of_product",
        1 / a * (1 / b),
        1 / (a * b),
        floating,
        both=True,
        needs="reassociate",
    ),
    Equation("factor_divide", a / c + b / c, (a + b) / c, floating, both=True, needs="reassociate"),
    Equation(
        "factor_divide_difference",
        a / c - b / c,
        (a - b) / c,
        floating,
        both=True,
        needs="reassociate",
    ),
    Equation("associate_divide", a * (b / c), a * b / c, floating, both=True, needs="reassociate"),
    Equation("divide_twice", a / b / c, a / (b * c), floating, both=True, needs="reassociate"),
    Equation("divide_by_quotient", a / (b / c), a * c / b, floating, needs="reassociate"),
    # Fewer divisions where b is broadcast, or where its reciprocal is there already.
    # 1 / b overflows for a denormal b
    Equation("divide_by_reciprocal", a / b, a * (1 / b), floating, needs="reassociate"),
)
