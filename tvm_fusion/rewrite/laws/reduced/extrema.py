"""Maximum and minimum commute with monotone maps, exactly: rounding is monotone."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import ORDERS, renamed
from ...egraph.facts.extents import is_float, is_integer
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import function, one_of, tensors
from ...nonfinite import NAN, ZERO
from .scaled import PullOut, differ

a, b, s = tensors("a b s")
reduce = one_of("reduce", *ORDERS)
largest = function("relax.max", "axes")
smallest = function("relax.min", "axes")
maximum = function("relax.maximum")
minimum = function("relax.minimum")

_INCREASING = (
    *("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "sigmoid", "erf"),
    *("atan", "sinh", "asinh", "floor", "ceil", "round", "trunc", "clip", "nn.relu", "astype"),
)
increasing = one_of("f", *_INCREASING)

_NONNEGATIVE = frozenset(
    f"relax.{name}" for name in ("exp", "sqrt", "sigmoid", "abs", "square", "nn.relu")
)


class _Ordered(PullOut):
    """Of floating point numbers: integers may wrap around, which is not monotone."""

    changes = NAN  # inf - inf of one element

    def check(self, match: Match) -> Refusal | None:
        if not is_float(match.type("a")):
            return Refusal("integers", "Integers may wrap around.")
        return super().check(match)


class ExtremumOfOffset(_Ordered):
    """reduce(a + s) = reduce(a) + s."""

    name = "extremum_of_offset"
    before = reduce(a + s)
    after = reduce(a) + s
    outer = "add"


class ExtremumOfDifference(_Ordered):
    """reduce(a - s) = reduce(a) - s."""

    name = "extremum_of_difference"
    before = reduce(a - s)
    after = reduce(a) - s
    outer = "subtract"


class ExtremumOfScaled(_Ordered):
    """reduce(a * s) = reduce(a) * s."""

    name = "extremum_of_scaled"
    before = reduce(a * s)
    after = reduce(a) * s
    changes = NAN | ZERO
    outer = "multiply"

    def check(self, match: Match) -> Refusal | None:
        if not _is_nonnegative(match, "s"):
            return Refusal("unknown_sign", "The factor may be negative.")
        return super().check(match)


class ExtremumOfDivided(_Ordered):
    """reduce(a / s) = reduce(a) / s."""

    name = "extremum_of_divided"
    before = reduce(a / s)
    after = reduce(a) / s
    outer = "divide"

    def check(self, match: Match) -> Refusal | None:
        if not _is_nonnegative(match, "s"):
            return Refusal("unknown_sign", "The divisor may be negative.")
        # Quotients by one number are in order, of integers too; by 0 they are all 0.
        is_known = match.value("s") is not None
        return PullOut.check(self, match) if is_known else super().check(match)


def _extremum_of_increasing(match: Match) -> Refusal | None:
    if match.head("f").name == "relax.astype":
        wide = match.graph[match.root].type
        if not is_float(wide) or not (is_float(match.type("a")) or is_integer(match.type("a"))):
            return Refusal("not_monotone", "The cast is not monotone.")
    return None


class MaxOfNegative(Law):
    """max(-a, axes) = -min(a, axes)."""

    name = "max_of_negative"
    before = largest(-a)
    after = -smallest(a)
    other = "relax.min"

    def check(self, match: Match) -> Refusal | None:
        if is_float(match.type("a")):
            return None
        return Refusal("integers", "The smallest integer is its own negative.")

    def rewrite(self, match: Match) -> int | None:
        head, number = match.head("axes"), match.number("a")
        found = renamed(match, head, self.other, number, self.name)
        return None if found is None else match.graph.call(relax.op.negative, found, law=self.name)


class MinOfNegative(MaxOfNegative):
    """min(-a, axes) = -max(a, axes)."""

    name = "min_of_negative"
    before = smallest(-a)
    after = -largest(a)
    other = "relax.max"


def _is_nonnegative(match: Match, name: str) -> bool:
    """Whether no element is negative: by its value, or by the operator that computes it."""
    value = match.value(name)
    if value is not None:
        return bool((value >= 0).all())
    nodes = match.graph[match.number(name)].nodes
    return any(node.head.name in _NONNEGATIVE for node in nodes)


LAWS: tuple[Law, ...] = (
    ExtremumOfOffset(),
    ExtremumOfDifference(),
    ExtremumOfScaled(),
    ExtremumOfDivided(),
    Equation(
        "extremum_of_increasing",
        reduce(increasing(a)),
        increasing(reduce(a)),
        _extremum_of_increasing,
        changes=NAN | ZERO,
    ),
    MaxOfNegative(),
    MinOfNegative(),
    Equation(
        "maximum_of_max",
        maximum(largest(a), largest(b)),
        largest(maximum(a, b)),
        differ,
        both=True,
    ),
    Equation(
        "minimum_of_min",
        minimum(smallest(a), smallest(b)),
        smallest(minimum(a, b)),
        differ,
        both=True,
    ),
)
