"""Conditions, comparisons, bits and shifts, beyond what holds in any lattice.

Comparisons of what may be NaN are not turned round: neither ``a < b`` nor ``b <= a`` is true of it.
"""

from __future__ import annotations

from tvm import relax

from ...core.numpy_types import numpy_dtype
from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import constants, function, number, one_of, tensors
from .conditions import without_nan

a, b, s = tensors("a b s")
k, l = constants("k l")  # noqa: E741
negate = function("relax.logical_not")
both, either = function("relax.logical_and"), function("relax.logical_or")
invert = function("relax.bitwise_not")
all_bits, any_bits = function("relax.bitwise_and"), function("relax.bitwise_or")
equal, not_equal = function("relax.equal"), function("relax.not_equal")
less, less_equal = function("relax.less"), function("relax.less_equal")
greater, greater_equal = function("relax.greater"), function("relax.greater_equal")
left_shift, right_shift = function("relax.left_shift"), function("relax.right_shift")
bits = one_of("f", "bitwise_and", "bitwise_or", "bitwise_xor")
shift = one_of("shift", "left_shift", "right_shift")


class NotTwice(Law):
    """logical_not(logical_not(a)) = a."""

    name = "not_twice"
    before = negate(negate(a))
    after = a


class NeitherOf(Law):
    """logical_and(logical_not(a), logical_not(b)) = logical_not(logical_or(a, b))."""

    name = "neither_of"
    before = both(negate(a), negate(b))
    after = negate(either(a, b))


class NotBothOf(Law):
    """logical_or(logical_not(a), logical_not(b)) = logical_not(logical_and(a, b))."""

    name = "not_both_of"
    before = either(negate(a), negate(b))
    after = negate(both(a, b))


class AndAlways(Law):
    """logical_and(a, 1) = a."""

    name = "and_always"
    before = both(a, 1)
    after = a


class AndNever(Law):
    """logical_and(a, 0) = 0."""

    name = "and_never"
    before = both(a, 0)
    after = number(0)


class OrNever(Law):
    """logical_or(a, 0) = a."""

    name = "or_never"
    before = either(a, 0)
    after = a


class OrAlways(Law):
    """logical_or(a, 1) = 1."""

    name = "or_always"
    before = either(a, 1)
    after = number(1)


class AndOpposite(Law):
    """logical_and(a, logical_not(a)) = 0."""

    name = "and_opposite"
    before = both(a, negate(a))
    after = number(0)


class OrOpposite(Law):
    """logical_or(a, logical_not(a)) = 1."""

    name = "or_opposite"
    before = either(a, negate(a))
    after = number(1)


class GreaterAsLess(Law):
    """greater(a, b) = less(b, a)."""

    name = "greater_as_less"
    before = greater(a, b)
    after = less(b, a)


class GreaterEqualAsLessEqual(Law):
    """greater_equal(a, b) = less_equal(b, a)."""

    name = "greater_equal_as_less_equal"
    before = greater_equal(a, b)
    after = less_equal(b, a)


class NotLess(Law):
    """logical_not(less(a, b)) = less_equal(b, a)."""

    name = "not_less"
    before = negate(less(a, b))
    after = less_equal(b, a)

    def check(self, match: Match) -> Refusal | None:
        """Refuse what may be NaN."""
        return without_nan(match, "a", "b")


class NotLessEqual(Law):
    """logical_not(less_equal(a, b)) = less(b, a)."""

    name = "not_less_equal"
    before = negate(less_equal(a, b))
    after = less(b, a)

    def check(self, match: Match) -> Refusal | None:
        """Refuse what may be NaN."""
        return without_nan(match, "a", "b")


class NotEqual(Law):
    """logical_not(equal(a, b)) = not_equal(a, b)."""

    name = "not_of_equal"
    before = negate(equal(a, b))
    after = not_equal(a, b)


class NotNotEqual(Law):
    """logical_not(not_equal(a, b)) = equal(a, b)."""

    name = "not_of_not_equal"
    before = negate(not_equal(a, b))
    after = equal(a, b)


class InvertTwice(Law):
    """bitwise_not(bitwise_not(a)) = a."""

    name = "invert_twice"
    before = invert(invert(a))
    after = a


class InvertedAnd(Law):
    """bitwise_and(bitwise_not(a), bitwise_not(b)) = bitwise_not(bitwise_or(a, b))."""

    name = "inverted_and"
    before = all_bits(invert(a), invert(b))
    after = invert(any_bits(a, b))


class InvertedOr(Law):
    """bitwise_or(bitwise_not(a), bitwise_not(b)) = bitwise_not(bitwise_and(a, b))."""

    name = "inverted_or"
    before = any_bits(invert(a), invert(b))
    after = invert(all_bits(a, b))


class ShiftTogether(Law):
    """f(shift(a, s), shift(b, s)) = shift(f(a, b), s)."""

    name = "shift_together"
    before = bits(shift(a, s), shift(b, s))
    after = shift(bits(a, b), s)


class ShiftTwice(Law):
    """shift(shift(a, k), l) = shift(a, k + l)."""

    name = "shift_twice"
    before = shift(shift(a, k), l)
    after = shift(a, k + l)

    def check(self, match: Match) -> Refusal | None:
        """Refuse shifts by all bits or more, which C leaves open."""
        first, second = match.value("k"), match.value("l")
        if first is None or second is None:
            return Refusal("unknown_value", "By how many bits it is shifted is not known.")
        total = first.astype("int64") + second.astype("int64")
        if (total >= _bits(match, "a")).any() or (first < 0).any() or (second < 0).any():
            return Refusal("too_far", "It would be shifted by all bits or more.")
        return None


class ShiftAsProduct(Law):
    """left_shift(a, k) = a * the power of two."""

    name = "shift_as_product"
    before = left_shift(a, k)

    def check(self, match: Match) -> Refusal | None:
        """Refuse shifts that are not known, or that change the sign of the factor."""
        bits = match.value("k")
        if bits is None or (bits < 0).any() or (bits >= _bits(match, "a") - 1).any():
            return Refusal("unknown_value", "By how many bits it is shifted is not known.")
        return None

    def rewrite(self, match: Match) -> int | None:
        """Write the product: sums and matrix products know what to do with it."""
        bits = match.value("k")
        if bits is None:
            return None
        graph, dtype = match.graph, str(match.type("a").dtype)
        factor = graph.constant(1 << bits.astype("int64"), dtype)
        return graph.call(relax.op.multiply, match.number("a"), factor, law=self.name)


def _bits(match: Match, name: str) -> int:
    return numpy_dtype(str(match.type(name).dtype)).itemsize * 8


LAWS: tuple[Law, ...] = (
    NotTwice(),
    NeitherOf(),
    NotBothOf(),
    AndAlways(),
    AndNever(),
    OrNever(),
    OrAlways(),
    AndOpposite(),
    OrOpposite(),
    GreaterAsLess(),
    GreaterEqualAsLessEqual(),
    NotLess(),
    NotLessEqual(),
    NotEqual(),
    NotNotEqual(),
    InvertTwice(),
    InvertedAnd(),
    InvertedOr(),
    ShiftTogether(),
    ShiftTwice(),
    ShiftAsProduct(),
)
