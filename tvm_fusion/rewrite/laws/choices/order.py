"""Maximum, minimum, and order-preserving arithmetic.

Rounding keeps the order, too: ``maximum(a + c, b + c)`` and ``maximum(a, b) + c`` are the same
floating point number. Integers that wrap around do not.
"""

import numpy as np
from tvm import relax, tirx

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, one_of, tensors
from ...nonfinite import ALL, NAN, ZERO
from ..conditions import all_of, floating, nonnegative, signed, without_nan

a, b, c = tensors("a b c")
low, high = constants("low high")
maximum, minimum = function("relax.maximum"), function("relax.minimum")
absolute = function("relax.abs")
choose = one_of("choose", "maximum", "minimum")
INCREASING = ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "trunc", "sinh")
rises = one_of("f", *INCREASING, "asinh", "atan", "asin", "nn.relu", "clip")


class ClipAsMaximum(Law):
    """clip(a, ends) = minimum(maximum(a, low), high)."""

    name = "clip_as_maximum"
    before = function("relax.clip", "ends")(a)

    def check(self, match: Match) -> Refusal | None:
        """Refuse ends that are no numbers, or in the wrong order."""
        ends = _ends(match)
        if ends is None or ends[0] > ends[1]:
            return Refusal("unordered_bounds", "The bounds are not constants in ascending order.")
        dtype = numpy_dtype(str(match.type("a").dtype))
        if dtype.kind in "iu" and any(not _holds(dtype, end) for end in ends):
            return Refusal("other_type", "The type of the tensor has no such bound.")
        return None

    def rewrite(self, match: Match) -> int | None:
        """Write the maximum, then the minimum."""
        graph, dtype, ends = match.graph, str(match.type("a").dtype), _ends(match)
        if ends is None:
            return None
        lowest, highest = (graph.constant(end, dtype) for end in ends)
        above = graph.call(relax.op.maximum, match.number("a"), lowest, law=self.name)
        return above and graph.call(relax.op.minimum, above, highest, law=self.name)


class ClipOfConstants(Law):
    """minimum(maximum(a, low), high) = clip(a, ends)."""

    name = "clip_of_constants"
    before = minimum(maximum(a, low), high)

    def check(self, match: Match) -> Refusal | None:
        """Refuse ends that are no numbers, or in the wrong order."""
        lowest, highest = match.uniform("low"), match.uniform("high")
        if lowest is None or highest is None or lowest > highest:
            return Refusal("unordered_bounds", "The bounds are not constants in ascending order.")
        return None

    def rewrite(self, match: Match) -> int | None:
        """Write the clip."""
        ends = match.uniform("low"), match.uniform("high")
        return match.graph.call(lambda x: relax.op.clip(x, *ends), match.number("a"), law=self.name)


def _ordered(match: Match, lower: str, upper: str) -> Refusal | None:
    graph = match.graph
    highest = graph[match.number(lower)].bounds.high
    if highest <= graph[match.number(upper)].bounds.low:
        return None
    return Refusal("unknown_order", "Which operand is larger is not known.")


def _holds(dtype: np.dtype, end: float) -> bool:
    """Whether an integer type has a number."""
    info = np.iinfo(dtype)
    return info.min <= end <= info.max and end == round(end)


def _ends(match: Match) -> tuple[float, float] | None:
    call = match.head("ends").call
    ends = [] if call is None else call.args[1:]
    if len(ends) != 2 or not all(isinstance(e, tirx.IntImm | tirx.FloatImm) for e in ends):
        return None
    return float(ends[0].value), float(ends[1].value)


def _order_of_increasing(match: Match) -> Refusal | None:
    """Refuse functions of integers but those that bound them."""
    bounds = match.head("f").name in ("relax.clip", "relax.nn.relu")
    return None if bounds else floating(match)


LAWS: tuple[Law, ...] = (
    # Refuses where ``b`` may be larger, or NaN.
    Equation(
        "largest_is_known",
        maximum(a, b),
        a,
        lambda match: all_of(_ordered(match, "b", "a"), without_nan(match, "b")),
    ),
    # Refuses where ``b`` may be smaller, or NaN.
    Equation(
        "smallest_is_known",
        minimum(a, b),
        a,
        lambda match: all_of(_ordered(match, "a", "b"), without_nan(match, "b")),
    ),
    ClipAsMaximum(),
    ClipOfConstants(),
    Equation(
        "relu_as_maximum", function("relax.nn.relu")(a), maximum(a, 0), both=True, changes=ZERO
    ),
    Equation(
        "order_of_sums", choose(a + c, b + c), choose(a, b) + c, floating, both=True, changes=ALL
    ),
    # Refuses a factor that may turn the order round.
    Equation(
        "order_of_products",
        choose(a * c, b * c),
        choose(a, b) * c,
        lambda match: all_of(floating(match), nonnegative(match, "c")),
        changes=NAN | ZERO,
    ),
    # Refuses a divisor that may turn the order round.
    Equation(
        "order_of_quotients",
        choose(a / c, b / c),
        choose(a, b) / c,
        lambda match: all_of(floating(match), nonnegative(match, "c")),
        changes=NAN | ZERO,
    ),
    Equation(
        "order_of_increasing",
        choose(rises(a), rises(b)),
        rises(choose(a, b)),
        _order_of_increasing,
        changes=NAN | ZERO,
    ),
    Equation("maximum_of_negatives", maximum(-a, -b), -minimum(a, b), floating, both=True),
    Equation("minimum_of_negatives", minimum(-a, -b), -maximum(a, b), floating, both=True),
    Equation("maximum_of_negative", maximum(a, -a), absolute(a), signed, changes=ZERO),
    Equation("sum_of_both", maximum(a, b) + minimum(a, b), a + b),
    Equation("product_of_both", maximum(a, b) * minimum(a, b), a * b),
    Equation("difference_of_both", maximum(a, b) - minimum(a, b), absolute(a - b), floating),
)
