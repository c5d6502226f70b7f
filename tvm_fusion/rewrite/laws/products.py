"""Elementwise products, and the sums that they distribute over."""

from __future__ import annotations

import numpy as np

from ...core.template import Refusal
from ..law import Equation, Law, Match
from ..pattern import constants, number, tensors
from .conditions import all_of, floating, representable

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def _distribute_constants(match: Match) -> Refusal | None:
    """Refuse factors with which ``a * l`` may overflow where ``a + k`` does not."""
    refusal = all_of(floating(match), representable(match, np.multiply, "k", "l"))
    if refusal is None and np.any(np.abs(match.graph[match.number("l")].value) > 1):  # type: ignore[arg-type]
        refusal = Refusal("factor_above_one", "A factor above 1 may overflow.")
    return refusal


LAWS: tuple[Law, ...] = (
    Equation("neutral_multiply", a * 1, a),
    Equation("absorb_multiply", a * 0, number(0)),
    Equation("multiply_by_minus_one", a * -1, -a),
    # Refuses a product of constants that overflows, or loses digits.
    Equation(
        "gather_multiplied",
        (a * k) * l,
        a * (k * l),
        lambda match: representable(match, np.multiply, "k", "l"),
    ),
    # One of the factors is a number: nothing new can overflow, since |b + 1| <= 2 max(|b|, 1), and
    # where b + 1 cancels so does the original.
    Equation("factor_one", a + a * b, a * (b + 1)),
    Equation("factor_one_minus", a - a * b, a * (1 - b)),
    Equation("factor_minus_one", a * b - a, a * (b - 1)),
    # Refuses a sum of constants that overflows.
    Equation(
        "gather_factors",
        a * k + a * l,
        a * (k + l),
        lambda match: representable(match, np.add, "k", "l"),
    ),
    # -(a * k) = a * -k is one operator less
    Equation("negate_product", -a * b, -(a * b), both=True),
    # As many operators, but the constant at the end can be gathered with what follows.
    Equation("distribute_constants", (a + k) * l, a * l + k * l, _distribute_constants),
    # a + b may overflow; and so may a * c, in the other direction
    Equation(
        "factor_multiply",
        a * c + b * c,
        (a + b) * c,
        both=True,
        needs="reassociate",
        is_modular=True,
    ),
    Equation(
        "factor_multiply_difference",
        a * c - b * c,
        (a - b) * c,
        both=True,
        needs="reassociate",
        is_modular=True,
    ),
    Equation("associate_multiply", a * (b * c), (a * b) * c, needs="reassociate", is_modular=True),
)
