"""Sums, differences and negatives.

Changing the sign is exact, so laws that only do that need no flag; nor do those that cancel a
term, which brings the result nearer to the exact one. A constant that is added to round is kept.
A sum of two opposite numbers is 0, and so is its opposite the other way round: of zeros the sign
may change.
"""

import numpy as np

from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, number, tensors
from ...nonfinite import ALL, NAN, ZERO
from ..conditions import representable, sum_overflows, without_rounding

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def _gather_added(match: Match) -> Refusal | None:
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


def _rounds_a(match: Match) -> Refusal | None:
    return without_rounding(match, "a")


def _rounds_b(match: Match) -> Refusal | None:
    return without_rounding(match, "b")


LAWS: tuple[Law, ...] = (
    Equation("neutral_add", a + 0, a, changes=ZERO),
    Equation("neutral_subtract", a - 0, a),
    Equation("subtract_itself", a - a, number(0), changes=NAN),
    Equation("double_negative", -(-a), a),  # noqa: B002
    Equation("negate_difference", -(a - b), b - a, changes=ZERO),
    Equation("cancel_added", a + b - b, a, _rounds_b, changes=ALL | ZERO),
    Equation("cancel_subtracted", a - b + b, a, _rounds_b, changes=ALL | ZERO),
    Equation("cancel_difference", a - (a - b), b, _rounds_a, changes=ALL | ZERO),
    Equation("cancel_sum", a - (a + b), -b, _rounds_a, changes=ALL | ZERO),
    # Without a flag, as k + l is computed now: its rounding error counts against k and l.
    Equation("gather_added", (a + k) + l, a + (k + l), _gather_added, changes=sum_overflows),
    Equation("add_twice", a + a, a * 2),
    Equation("subtract_as_add", a - b, a + -b, both=True),
    Equation("negate_sum", -a + -b, -(a + b), both=True, changes=ZERO),
    # From one direction the others follow, since operands match in either order.
    # a + b may overflow where b + c does not
    Equation("associate_add", a + (b + c), (a + b) + c, needs="reassociate", is_modular=True),
)
