"""Elementwise products, and the sums that they distribute over."""

import numpy as np

from ....core.contract.template import Refusal
from ...egraph.facts.extents import magnitudes
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, number, tensors
from ...nonfinite import ALL, INFINITE, NAN, NONE, ZERO, NonFinite
from ..conditions import Careful, floating, representable, sum_overflows

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def _distribute_constants(match: Match) -> Refusal | None:
    """Refuse factors with which ``a * l`` may overflow where ``a + k`` does not."""
    refusal, factor = representable(match, np.multiply, "k", "l"), match.value("l")
    if refusal is not None or factor is None or floating(match) is not None:
        return refusal  # integers wrap around, however they are added up
    if (np.abs(factor) > 1).any():
        return Refusal("factor_above_one", "A factor above 1 may overflow.")
    return None


def _scaled_back(match: Match) -> NonFinite:
    """Tell of factors of which the second may bring back what overflows by the first."""
    first, second = magnitudes(match.value("k")), magnitudes(match.value("l"))
    if first is None or second is None or (second == 0).any():
        return ALL
    return INFINITE if ((first > 1) & (second < 1)).any() else NONE


def _opposite_factors(match: Match) -> NonFinite:
    """Tell of factors with which products of one infinity cancel."""
    first, second = match.value("k"), match.value("l")
    if first is None or second is None:
        return ALL | ZERO
    return NONE if (np.sign(first) * np.sign(second) > 0).all() else ALL | ZERO


class Factor(Careful, Equation):
    """A factor of both terms of a sum."""


LAWS: tuple[Law, ...] = (
    Equation("neutral_multiply", a * 1, a),
    Equation("absorb_multiply", a * 0, number(0), changes=NAN | ZERO),
    Equation("multiply_by_minus_one", a * -1, -a),
    # Refuses a product of constants that overflows, or loses digits.
    Equation(
        "gather_multiplied",
        (a * k) * l,
        a * (k * l),
        lambda match: representable(match, np.multiply, "k", "l"),
        changes=_scaled_back,
    ),
    # One of the factors is a number: nothing new can overflow, since |b + 1| <= 2 max(|b|, 1), and
    # where b + 1 cancels so does the original.
    Equation("factor_one", a + a * b, a * (b + 1), changes=ALL | ZERO),
    Equation("factor_one_minus", a - a * b, a * (1 - b), changes=ALL | ZERO),
    Equation("factor_minus_one", a * b - a, a * (b - 1), changes=ALL | ZERO),
    # Refuses a sum of constants that overflows.
    Equation(
        "gather_factors",
        a * k + a * l,
        a * (k + l),
        lambda match: representable(match, np.add, "k", "l"),
        changes=_opposite_factors,
    ),
    # -(a * k) = a * -k is one operator less
    Equation("negate_product", -a * b, -(a * b), both=True),
    # As many operators, but the constant at the end can be gathered with what follows.
    Equation(
        "distribute_constants",
        (a + k) * l,
        a * l + k * l,
        _distribute_constants,
        changes=sum_overflows,
    ),
    # a + b may overflow; and so may a * c, in the other direction
    Factor(
        "factor_multiply",
        a * c + b * c,
        (a + b) * c,
        both=True,
        needs="reassociate",
        is_modular=True,
    ),
    Factor(
        "factor_multiply_difference",
        a * c - b * c,
        (a - b) * c,
        both=True,
        needs="reassociate",
        is_modular=True,
    ),
    Equation("associate_multiply", a * (b * c), (a * b) * c, needs="reassociate", is_modular=True),
)
