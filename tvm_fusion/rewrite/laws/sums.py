"""Sums, differences and negatives.

Changing the sign is exact, so laws that only do that need no flag; nor do those that cancel a
term, which brings the result nearer to the exact one. A constant that is added to round is kept.
"""

from __future__ import annotations

import numpy as np

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import constants, number, tensors
from .conditions import representable, without_rounding

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


class _Cancel(Law):
    cancelled: str  # the name of what is added and subtracted

    def check(self, match: Match) -> Refusal | None:
        """Refuse to cancel a constant that rounds."""
        return without_rounding(match, self.cancelled)


class CancelAdded(_Cancel):
    """a + b - b = a."""

    name = "cancel_added"
    before = a + b - b
    after = a
    cancelled = "b"


class CancelSubtracted(_Cancel):
    """a - b + b = a."""

    name = "cancel_subtracted"
    before = a - b + b
    after = a
    cancelled = "b"


class CancelDifference(_Cancel):
    """a - (a - b) = b."""

    name = "cancel_difference"
    before = a - (a - b)
    after = b
    cancelled = "a"


class CancelSum(_Cancel):
    """a - (a + b) = -b."""

    name = "cancel_sum"
    before = a - (a + b)
    after = -b
    cancelled = "a"


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
        """Refuse a sum of constants that overflows, or that cancels one that rounds."""
        refusal = representable(match, np.add, "k", "l")
        if refusal is not None:
            return refusal
        one, other = match.value("k"), match.value("l")
        if one is None or other is None:
            return None
        one, other = one.astype(np.float64), other.astype(np.float64)
        cancels = (np.abs(one + other) < np.maximum(np.abs(one), np.abs(other)) / 2).any()
        return without_rounding(match, "k", "l") if cancels else None


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
