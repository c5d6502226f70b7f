"""Elementwise products, and the sums that they distribute over."""

from __future__ import annotations

import numpy as np

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import constants, number, tensors
from .conditions import all_of, floating, representable

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


class NeutralMultiply(Law):
    """a * 1 = a."""

    name = "neutral_multiply"
    before = a * 1
    after = a


class AbsorbMultiply(Law):
    """a * 0 = 0."""

    name = "absorb_multiply"
    before = a * 0
    after = number(0)


class MultiplyByMinusOne(Law):
    """a * -1 = -a."""

    name = "multiply_by_minus_one"
    before = a * -1
    after = -a


class NegateProduct(Law):
    """-a * b = -(a * b)."""

    name = "negate_product"
    before = -a * b
    after = -(a * b)
    both = True  # -(a * k) = a * -k is one operator less


class AssociateMultiply(Law):
    """a * (b * c) = a * b * c."""

    name = "associate_multiply"
    before = a * (b * c)
    after = (a * b) * c
    needs = "reassociate"
    is_modular = True


class GatherMultiplied(Law):
    """a * k * l = a * (k * l)."""

    name = "gather_multiplied"
    before = (a * k) * l
    after = a * (k * l)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a product of constants that overflows, or loses digits."""
        return representable(match, np.multiply, "k", "l")


class FactorMultiply(Law):
    """a * c + b * c = (a + b) * c."""

    name = "factor_multiply"
    before = a * c + b * c
    after = (a + b) * c
    both = True
    needs = "reassociate"  # a + b may overflow; and so may a * c, in the other direction
    is_modular = True


class FactorMultiplyDifference(Law):
    """a * c - b * c = (a - b) * c."""

    name = "factor_multiply_difference"
    before = a * c - b * c
    after = (a - b) * c
    both = True
    needs = "reassociate"
    is_modular = True


# One of the factors is a number: nothing new can overflow, since |b + 1| <= 2 max(|b|, 1), and
# where b + 1 cancels so does the original.


class FactorOne(Law):
    """a + a * b = a * (b + 1)."""

    name = "factor_one"
    before = a + a * b
    after = a * (b + 1)


class FactorOneMinus(Law):
    """a - a * b = a * (1 - b)."""

    name = "factor_one_minus"
    before = a - a * b
    after = a * (1 - b)


class FactorMinusOne(Law):
    """a * b - a = a * (b - 1)."""

    name = "factor_minus_one"
    before = a * b - a
    after = a * (b - 1)


class GatherFactors(Law):
    """a * k + a * l = a * (k + l)."""

    name = "gather_factors"
    before = a * k + a * l
    after = a * (k + l)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a sum of constants that overflows."""
        return representable(match, np.add, "k", "l")


class DistributeConstants(Law):
    """(a + k) * l = a * l + k * l."""

    # As many operators, but the constant at the end can be gathered with what follows.
    name = "distribute_constants"
    before = (a + k) * l
    after = a * l + k * l

    def check(self, match: Match) -> Refusal | None:
        """Refuse factors with which ``a * l`` may overflow where ``a + k`` does not."""
        refusal = all_of(floating(match), representable(match, np.multiply, "k", "l"))
        if refusal is None and np.any(np.abs(match.graph[match.number("l")].value) > 1):  # type: ignore[arg-type]
            refusal = Refusal("factor_above_one", "A factor above 1 may overflow.")
        return refusal


LAWS: tuple[Law, ...] = (
    NeutralMultiply(),
    AbsorbMultiply(),
    MultiplyByMinusOne(),
    GatherMultiplied(),
    FactorOne(),
    FactorOneMinus(),
    FactorMinusOne(),
    GatherFactors(),
    NegateProduct(),
    DistributeConstants(),
    FactorMultiply(),
    FactorMultiplyDifference(),
    AssociateMultiply(),
)
