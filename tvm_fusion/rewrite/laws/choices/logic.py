"""Conditions, comparisons, bits and shifts, beyond what holds in any lattice.

Comparisons of what may be NaN are not turned round: neither ``a < b`` nor ``b <= a`` is true of it.
"""

from tvm import relax

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, number, one_of, tensors
from ..conditions import without_nan

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


def _shift_twice(match: Match) -> Refusal | None:
    """Refuse shifts by all bits or more, which C leaves open."""
    first, second = match.value("k"), match.value("l")
    if first is None or second is None:
        return Refusal("unknown_value", "The number of bits of the shift is not known.")
    total = first.astype("int64") + second.astype("int64")
    if (total >= _bits(match, "a")).any() or (first < 0).any() or (second < 0).any():
        return Refusal("too_far", "The shifts together are of all bits or more.")
    return None


class ShiftAsProduct(Law):
    """left_shift(a, k) = a * the power of two."""

    name = "shift_as_product"
    before = left_shift(a, k)

    def check(self, match: Match) -> Refusal | None:
        """Refuse shifts that are not known, or that change the sign of the factor."""
        bits = match.value("k")
        if bits is None or (bits < 0).any() or (bits >= _bits(match, "a") - 1).any():
            return Refusal("unknown_value", "The number of bits of the shift is not known.")
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
    Equation("not_twice", negate(negate(a)), a),
    Equation("neither_of", both(negate(a), negate(b)), negate(either(a, b))),
    Equation("not_both_of", either(negate(a), negate(b)), negate(both(a, b))),
    Equation("and_always", both(a, 1), a),
    Equation("and_never", both(a, 0), number(0)),
    Equation("or_never", either(a, 0), a),
    Equation("or_always", either(a, 1), number(1)),
    Equation("and_opposite", both(a, negate(a)), number(0)),
    Equation("or_opposite", either(a, negate(a)), number(1)),
    Equation("greater_as_less", greater(a, b), less(b, a)),
    Equation("greater_equal_as_less_equal", greater_equal(a, b), less_equal(b, a)),
    Equation(
        "not_less", negate(less(a, b)), less_equal(b, a), lambda match: without_nan(match, "a", "b")
    ),
    Equation(
        "not_less_equal",
        negate(less_equal(a, b)),
        less(b, a),
        lambda match: without_nan(match, "a", "b"),
    ),
    Equation("not_of_equal", negate(equal(a, b)), not_equal(a, b)),
    Equation("not_of_not_equal", negate(not_equal(a, b)), equal(a, b)),
    Equation("invert_twice", invert(invert(a)), a),
    Equation("inverted_and", all_bits(invert(a), invert(b)), invert(any_bits(a, b))),
    Equation("inverted_or", any_bits(invert(a), invert(b)), invert(all_bits(a, b))),
    Equation("shift_together", bits(shift(a, s), shift(b, s)), shift(bits(a, b), s)),
    Equation("shift_twice", shift(shift(a, k), l), shift(a, k + l), _shift_twice),
    ShiftAsProduct(),
)
