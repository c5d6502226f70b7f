"""Sums, differences and negatives.

Changing the sign is exact, so laws that only do that need no flag; nor do those that cancel a
term, which brings the result nearer to the exact one.
"""

from __future__ import annotations

import numpy as np

from ...schedule.template import Refusal
from ..law import Law, Match
from ..pattern import constants, number, tensors
from .conditions import representable

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


class NeutralAdd(Law):
    """a + 0 = a."""

    name = "neutral_add"
    before = a + 0
    after = a


class NeutralSubtract(Law):
    """a - 0 = a."""

    name = "neutral_subtract"
    before = a - 0
    after = a


class SubtractItself(Law):
    """a - a = 0."""

    name = "subtract_itself"
    before = a - a
    after = number(0)


class SubtractAsAdd(Law):
    """a - b = a + -b."""

    name = "subtract_as_add"
    before = a - b
    after = a + -b
    both = True


class DoubleNegative(Law):
    """--a = a."""

    name = "double_negative"
    before = -(-a)  # noqa: B002
    after = a


class NegateDifference(Law):
    """-(a - b) = b - a."""

    name = "negate_difference"
    before = -(a - b)
    after = b - a


class NegateSum(Law):
    """-a + -b = -(a + b)."""

    name = "negate_sum"
    before = -a + -b
    after = -(a + b)
    both = True


class AddTwice(Law):
    """a + a = a * 2."""

    name = "add_twice"
    before = a + a
    after = a * 2


class CancelAdded(Law):
    """a + b - b = a."""

    name = "cancel_added"
    before = a + b - b
    after = a


class CancelSubtracted(Law):
    """a - b + b = a."""

    name = "cancel_subtracted"
    before = a - b + b
    after = a


class CancelDifference(Law):
    """a - (a - b) = b."""

    name = "cancel_difference"
    before = a - (a - b)
    after = b


class CancelSum(Law):
    """a - (a + b) = -b."""

    name = "cancel_sum"
    before = a - (a + b)
    after = -b


class AssociateAdd(Law):
    """a + (b + c) = a + b + c."""

    # From one direction the others follow, since operands match in either order.
    name = "associate_add"
    before = a + (b + c)
    after = (a + b) + c
    needs = "reassociate"  # a + b may overflow where b + c does not
    is_modular = True


class GatherAdded(Law):
    """a + k + l = a + (k + l)."""

    # Without a flag, as k + l is computed now: its rounding error counts against k and l.
    name = "gather_added"
    before = (a + k) + l
    after = a + (k + l)

    def check(self, match: Match) -> Refusal | None:
        """Refuse a sum of constants that overflows."""
        return representable(match, np.add, "k", "l")


LAWS: tuple[Law, ...] = (
    NeutralAdd(),
    NeutralSubtract(),
    SubtractItself(),
    DoubleNegative(),
    NegateDifference(),
    CancelAdded(),
    CancelSubtracted(),
    CancelDifference(),
    CancelSum(),
    GatherAdded(),
    AddTwice(),
    SubtractAsAdd(),
    NegateSum(),
    AssociateAdd(),
)
