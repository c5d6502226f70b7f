"""Quotients and reciprocals, of floating point: integers divide towards zero.

A quotient that is finite and has not overflowed bounds its divisor away from zero; laws without a
flag compute no intermediate result that is farther from 1 than the original's.
"""

from __future__ import annotations

import numpy as np

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import constants, number, tensors
from .conditions import OnFloats, all_of, floating, representable

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


class NeutralDivide(Law):
    """a / 1 = a."""

    name = "neutral_divide"
    before = a / 1
    after = a


class DivideItself(OnFloats):
    """a / a = 1."""

    name = "divide_itself"
    before = a / a
    after = number(1)


class DivideByConstant(Law):
    """a / k = a * (1 / k)."""

    name = "divide_by_constant"
    before = a / k
    after = a * (1 / k)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a reciprocal that overflows, or loses digits."""
        return all_of(floating(match), representable(match, np.reciprocal, "k"))


class GatherDividend(Law):
    """k / a * l = k * l / a."""

    name = "gather_dividend"
    before = k / a * l
    after = k * l / a

    def check(self, match: Match) -> Refusal | None:
        """Refuse a product of constants that overflows, or loses digits."""
        return all_of(floating(match), representable(match, np.multiply, "k", "l"))


class GatherDivisor(Law):
    """k / (a * l) = k / l / a."""

    name = "gather_divisor"
    before = k / (a * l)
    after = k / l / a

    def check(self, match: Match) -> Refusal | None:
        """Refuse a quotient of constants that overflows, or loses digits."""
        return all_of(floating(match), representable(match, np.divide, "k", "l"))


class NegateDividend(OnFloats):
    """-a / b = -(a / b)."""

    name = "negate_dividend"
    before = -a / b
    after = -(a / b)
    both = True


class NegateDivisor(OnFloats):
    """a / -b = -(a / b)."""

    name = "negate_divisor"
    before = a / -b
    after = -(a / b)


class MultiplyByReciprocal(OnFloats):
    """a * (1 / b) = a / b."""

    name = "multiply_by_reciprocal"
    before = a * (1 / b)
    after = a / b


class DivideByReciprocal(OnFloats):
    """a / b = a * (1 / b)."""

    # Fewer divisions where b is broadcast, or where its reciprocal is there already.
    name = "divide_by_reciprocal"
    before = a / b
    after = a * (1 / b)
    needs = "reassociate"  # 1 / b overflows for a denormal b


class InvertQuotient(OnFloats):
    """1 / (a / b) = b / a."""

    name = "invert_quotient"
    before = 1 / (a / b)
    after = b / a


class ReciprocalOfProduct(OnFloats):
    """1 / a * (1 / b) = 1 / (a * b)."""

    name = "reciprocal_of_product"
    before = 1 / a * (1 / b)
    after = 1 / (a * b)
    both = True
    needs = "reassociate"


class AssociateDivide(OnFloats):
    """a * (b / c) = a * b / c."""

    name = "associate_divide"
    before = a * (b / c)
    after = a * b / c
    both = True
    needs = "reassociate"


class DivideTwice(OnFloats):
    """a / b / c = a / (b * c)."""

    name = "divide_twice"
    before = a / b / c
    after = a / (b * c)
    both = True
    needs = "reassociate"


class DivideByQuotient(OnFloats):
    """a / (b / c) = a * c / b."""

    name = "divide_by_quotient"
    before = a / (b / c)
    after = a * c / b
    needs = "reassociate"


class CancelFactor(OnFloats):
    """a * b / b = a."""

    name = "cancel_factor"
    before = a * b / b
    after = a


class CancelDivisor(OnFloats):
    """a / b * b = a."""

    name = "cancel_divisor"
    before = a / b * b
    after = a


class CancelDividend(OnFloats):
    """a / (a / b) = b."""

    name = "cancel_dividend"
    before = a / (a / b)
    after = b


class CancelDividendTwice(OnFloats):
    """a / b / a = 1 / b."""

    name = "cancel_dividend_twice"
    before = a / b / a
    after = 1 / b


class CancelIntoReciprocal(OnFloats):
    """a / (a * b) = 1 / b."""

    name = "cancel_into_reciprocal"
    before = a / (a * b)
    after = 1 / b


class CancelCommonFactor(OnFloats):
    """a * c / (b * c) = a / b."""

    name = "cancel_common_factor"
    before = a * c / (b * c)
    after = a / b


class CancelCommonDivisor(OnFloats):
    """a / c / (b / c) = a / b."""

    name = "cancel_common_divisor"
    before = a / c / (b / c)
    after = a / b


class FactorDivide(OnFloats):
    """a / c + b / c = (a + b) / c."""

    name = "factor_divide"
    before = a / c + b / c
    after = (a + b) / c
    both = True
    needs = "reassociate"


class FactorDivideDifference(OnFloats):
    """a / c - b / c = (a - b) / c."""

    name = "factor_divide_difference"
    before = a / c - b / c
    after = (a - b) / c
    both = True
    needs = "reassociate"


LAWS: tuple[Law, ...] = (
    NeutralDivide(),
    DivideItself(),
    DivideByConstant(),
    GatherDividend(),
    GatherDivisor(),
    CancelFactor(),
    CancelDivisor(),
    CancelDividend(),
    CancelDividendTwice(),
    CancelIntoReciprocal(),
    CancelCommonFactor(),
    CancelCommonDivisor(),
    InvertQuotient(),
    NegateDividend(),
    NegateDivisor(),
    MultiplyByReciprocal(),
    ReciprocalOfProduct(),
    FactorDivide(),
    FactorDivideDifference(),
    AssociateDivide(),
    DivideTwice(),
    DivideByQuotient(),
    DivideByReciprocal(),
)
