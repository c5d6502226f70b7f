"""Choices by a condition. Nothing is rounded: an element is one of the two, before and after."""

from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, one_of, tensors
from ...nonfinite import ZERO
from ..conditions import without_nan
from .order import INCREASING

a, b, c, d, p, q = tensors("a b c d p q")
k, l = constants("k l")  # noqa: E741
where, negate = function("relax.where"), function("relax.logical_not")
both, either = function("relax.logical_and"), function("relax.logical_or")
less, less_equal = function("relax.less"), function("relax.less_equal")
minimum, maximum = function("relax.minimum"), function("relax.maximum")
unary = one_of("f", *INCREASING, "negative", "abs", "square", "rsqrt", "sin", "cos", "astype")
binary = one_of("f", "add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


def _choose_constants(match: Match) -> Refusal | None:
    """Refuse constants that would have to be computed at run time."""
    if match.value("k") is None or match.value("l") is None:
        return Refusal("unknown_value", "The constants are too large to be computed now.")
    return None


LAWS: tuple[Law, ...] = (
    Equation("choose_either", where(p, a, a), a),
    Equation("choose_always", where(1, a, b), a),
    Equation("choose_never", where(0, a, b), b),
    Equation("choose_by_opposite", where(negate(p), a, b), where(p, b, a)),
    Equation("choose_again_first", where(p, where(p, a, b), c), where(p, a, c)),
    Equation("choose_again_second", where(p, a, where(p, b, c)), where(p, a, c)),
    # Four refuse NaN in what is not chosen then; the other one passes it on, on both sides.
    Equation(
        "choose_smaller",
        where(less(a, b), a, b),
        minimum(a, b),
        lambda match: without_nan(match, "a"),
        changes=ZERO,
    ),
    Equation(
        "choose_larger",
        where(less(a, b), b, a),
        maximum(a, b),
        lambda match: without_nan(match, "b"),
        changes=ZERO,
    ),
    Equation(
        "choose_smaller_or_equal",
        where(less_equal(a, b), a, b),
        minimum(a, b),
        lambda match: without_nan(match, "a"),
        changes=ZERO,
    ),
    Equation(
        "choose_larger_or_equal",
        where(less_equal(a, b), b, a),
        maximum(a, b),
        lambda match: without_nan(match, "b"),
        changes=ZERO,
    ),
    Equation("choose_by_both", where(p, where(q, a, b), b), where(both(p, q), a, b)),
    Equation("choose_by_either", where(p, a, where(q, a, b)), where(either(p, q), a, b)),
    Equation("choose_operand", where(p, unary(a), unary(b)), unary(where(p, a, b))),
    Equation(
        "choose_first_operand",
        where(p, binary(a, c), binary(b, c)),
        binary(where(p, a, b), c),
        changes=ZERO,
    ),
    Equation(
        "choose_second_operand",
        where(p, binary(c, a), binary(c, b)),
        binary(c, where(p, a, b)),
        changes=ZERO,
    ),
    Equation(
        "choose_constants", unary(where(p, k, l)), where(p, unary(k), unary(l)), _choose_constants
    ),
    # What is not chosen may overflow, unseen.
    Equation(
        "choose_together",
        binary(where(p, a, b), where(p, c, d)),
        where(p, binary(a, c), binary(b, d)),
        changes=ZERO,  # of maxima
    ),
)
