"""Choices by a condition. Nothing is rounded: an element is one of the two, before and after."""

from __future__ import annotations

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import constants, function, one_of, tensors
from .conditions import without_nan
from .order import INCREASING

a, b, c, d, p, q = tensors("a b c d p q")
k, l = constants("k l")  # noqa: E741
where, negate = function("relax.where"), function("relax.logical_not")
both, either = function("relax.logical_and"), function("relax.logical_or")
less, less_equal = function("relax.less"), function("relax.less_equal")
minimum, maximum = function("relax.minimum"), function("relax.maximum")
unary = one_of("f", *INCREASING, "negative", "abs", "square", "rsqrt", "sin", "cos", "astype")
binary = one_of("f", "add", "subtract", "multiply", "divide", "maximum", "minimum", "power")


class ChooseEither(Law):
    """where(p, a, a) = a."""

    name = "choose_either"
    before = where(p, a, a)
    after = a


class ChooseAlways(Law):
    """where(1, a, b) = a."""

    name = "choose_always"
    before = where(1, a, b)
    after = a


class ChooseNever(Law):
    """where(0, a, b) = b."""

    name = "choose_never"
    before = where(0, a, b)
    after = b


class ChooseByOpposite(Law):
    """where(logical_not(p), a, b) = where(p, b, a)."""

    name = "choose_by_opposite"
    before = where(negate(p), a, b)
    after = where(p, b, a)


class ChooseAgainFirst(Law):
    """where(p, where(p, a, b), c) = where(p, a, c)."""

    name = "choose_again_first"
    before = where(p, where(p, a, b), c)
    after = where(p, a, c)


class ChooseAgainSecond(Law):
    """where(p, a, where(p, b, c)) = where(p, a, c)."""

    name = "choose_again_second"
    before = where(p, a, where(p, b, c))
    after = where(p, a, c)


class ChooseByBoth(Law):
    """where(p, where(q, a, b), b) = where(logical_and(p, q), a, b)."""

    name = "choose_by_both"
    before = where(p, where(q, a, b), b)
    after = where(both(p, q), a, b)


class ChooseByEither(Law):
    """where(p, a, where(q, a, b)) = where(logical_or(p, q), a, b)."""

    name = "choose_by_either"
    before = where(p, a, where(q, a, b))
    after = where(either(p, q), a, b)


class ChooseSmaller(Law):
    """where(less(a, b), a, b) = minimum(a, b)."""

    name = "choose_smaller"
    before = where(less(a, b), a, b)
    after = minimum(a, b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse NaN in what is not chosen then; the other one passes it on, on both sides."""
        return without_nan(match, "a")


class ChooseLarger(Law):
    """where(less(a, b), b, a) = maximum(a, b)."""

    name = "choose_larger"
    before = where(less(a, b), b, a)
    after = maximum(a, b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse NaN in what is not chosen then; the other one passes it on, on both sides."""
        return without_nan(match, "b")


class ChooseSmallerOrEqual(Law):
    """where(less_equal(a, b), a, b) = minimum(a, b)."""

    name = "choose_smaller_or_equal"
    before = where(less_equal(a, b), a, b)
    after = minimum(a, b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse NaN in what is not chosen then; the other one passes it on, on both sides."""
        return without_nan(match, "a")


class ChooseLargerOrEqual(Law):
    """where(less_equal(a, b), b, a) = maximum(a, b)."""

    name = "choose_larger_or_equal"
    before = where(less_equal(a, b), b, a)
    after = maximum(a, b)

    def check(self, match: Match) -> Refusal | None:
        """Refuse NaN in what is not chosen then; the other one passes it on, on both sides."""
        return without_nan(match, "b")


class ChooseOperand(Law):
    """where(p, f(a), f(b)) = f(where(p, a, b))."""

    name = "choose_operand"
    before = where(p, unary(a), unary(b))
    after = unary(where(p, a, b))


class ChooseFirstOperand(Law):
    """where(p, f(a, c), f(b, c)) = f(where(p, a, b), c)."""

    name = "choose_first_operand"
    before = where(p, binary(a, c), binary(b, c))
    after = binary(where(p, a, b), c)


class ChooseSecondOperand(Law):
    """where(p, f(c, a), f(c, b)) = f(c, where(p, a, b))."""

    name = "choose_second_operand"
    before = where(p, binary(c, a), binary(c, b))
    after = binary(c, where(p, a, b))


class ChooseConstants(Law):
    """f(where(p, k, l)) = where(p, f(k), f(l))."""

    name = "choose_constants"
    before = unary(where(p, k, l))
    after = where(p, unary(k), unary(l))

    def check(self, match: Match) -> Refusal | None:
        """Refuse constants that would have to be computed at run time."""
        if match.value("k") is None or match.value("l") is None:
            return Refusal("unknown_value", "The constants are too large to be computed now.")
        return None


class ChooseTogether(Law):
    """f(where(p, a, b), where(p, c, d)) = where(p, f(a, c), f(b, d))."""

    # What is not chosen may overflow, unseen.
    name = "choose_together"
    before = binary(where(p, a, b), where(p, c, d))
    after = where(p, binary(a, c), binary(b, d))


LAWS: tuple[Law, ...] = (
    ChooseEither(),
    ChooseAlways(),
    ChooseNever(),
    ChooseByOpposite(),
    ChooseAgainFirst(),
    ChooseAgainSecond(),
    ChooseSmaller(),
    ChooseLarger(),
    ChooseSmallerOrEqual(),
    ChooseLargerOrEqual(),
    ChooseByBoth(),
    ChooseByEither(),
    ChooseOperand(),
    ChooseFirstOperand(),
    ChooseSecondOperand(),
    ChooseConstants(),
    ChooseTogether(),
)
