"""Sums and means over axes are linear maps."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import LINEAR, inside, invariant, outside, reduced_axes
from ...egraph.facts.extents import (
    all_same,
    count,
    extents,
    is_float,
    is_integer,
    magnitudes,
    normal,
)
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, one_of, tensors
from ...nonfinite import ALL

a, b, s = tensors("a b s")
(n,) = constants("n")
reduce = one_of("reduce", *LINEAR)
total = function("relax.sum", "axes")
mean = function("relax.mean", "axes")
left_shift = function("relax.left_shift")

INTEGER = Refusal("integers", "Integer division drops a remainder.")


def differ(match: Match) -> Refusal | None:
    """Refuse tensors that are of one shape only after a reduction, or by broadcasting."""
    if all_same(extents(match.type("a")), extents(match.type("b"))):
        return None
    return Refusal("different_shapes", "The operands have different shapes.")


class PullOut(Law):
    """A reduction of an operator, one operand of which does not vary along the reduced axes."""

    outer: str
    reduction = "reduce"  # what the pattern names it

    def check(self, match: Match) -> Refusal | None:
        return invariant(match, match.head(self.reduction), "a", "s")

    def rewrite(self, match: Match) -> int | None:
        head = match.head(self.reduction)
        rank = max(match.type("a").ndim, match.type("s").ndim)
        left = inside(match, head, "a", rank, self.name)
        right = outside(match, head, "s", rank, self.name)
        if left is None or right is None:
            return None
        return match.graph.call(getattr(relax.op, self.outer), left, right, law=self.name)


class ReduceOfScaled(PullOut):
    """reduce(a * s) = reduce(a) * s."""

    name = "reduce_of_scaled"
    before = reduce(a * s)
    after = reduce(a) * s
    outer = "multiply"
    changes = ALL
    needs = "reassociate"  # the sum of what a small factor would have made smaller may overflow

    def check(self, match: Match) -> Refusal | None:
        is_mean = match.head("reduce").name == "relax.mean"
        return INTEGER if is_mean and is_integer(match.type("a")) else super().check(match)

    def exempt(self, match: Match) -> bool:
        """Let factors of 1 and more pass: no partial sum is larger than it was."""
        sizes = magnitudes(match.value("s"))
        return is_integer(match.type("a")) or (sizes is not None and bool((sizes >= 1).all()))


class ReduceOfDivided(PullOut):
    """reduce(a / s) = reduce(a) / s."""

    name = "reduce_of_divided"
    before = reduce(a / s)
    after = reduce(a) / s
    outer = "divide"
    changes = ALL
    needs = "reassociate"

    def check(self, match: Match) -> Refusal | None:
        return super().check(match) if is_float(match.type("a")) else INTEGER

    def exempt(self, match: Match) -> bool:
        """Let divisors of 1 and less pass."""
        sizes = magnitudes(match.value("s"))
        return sizes is not None and bool(((sizes <= 1) & (sizes > 0)).all())


def _reduce_of_negative(match: Match) -> Refusal | None:
    is_mean = match.head("reduce").name == "relax.mean"
    return INTEGER if is_mean and is_integer(match.type("a")) else None


class SumOfShifted(PullOut):
    """sum(left_shift(a, s), axes) = left_shift(sum(a, axes), s)."""

    name = "sum_of_shifted"
    before = total(left_shift(a, s))
    after = left_shift(total(a), s)
    outer = "left_shift"  # exact modulo 2**n
    reduction = "axes"


class SumOfOffset(Law):
    """sum(a + s, axes) = sum(a, axes) + s * n."""

    name = "sum_of_offset"
    before = total(a + s)
    after = total(a) + s * n
    needs = "reassociate"  # a and s may cancel
    is_modular = True

    def check(self, match: Match) -> Refusal | None:
        refusal = invariant(match, match.head("axes"), "a", "s")
        if refusal is None and self._terms(match) is None:
            return Refusal("symbolic_extent", "The reduced extent is symbolic.")
        return refusal

    def rewrite(self, match: Match) -> int | None:
        head, graph, name = match.head("axes"), match.graph, self.name
        rank = max(match.type("a").ndim, match.type("s").ndim)
        left = inside(match, head, "a", rank, name)
        right = outside(match, head, "s", rank, name)
        if left is None or right is None:
            return None
        terms = graph.constant(self._terms(match), str(match.type("a").dtype))
        offset = graph.call(relax.op.multiply, right, terms, law=name)
        return None if offset is None else graph.call(relax.op.add, left, offset, law=name)

    @staticmethod
    def _terms(match: Match) -> int | None:
        """Count the elements of each sum."""
        ty = match.type("a")
        rank = max(ty.ndim, match.type("s").ndim)
        axes = reduced_axes(match.head("axes"), rank)
        found = count(ty, [axis - (rank - ty.ndim) for axis in axes])
        return found if found is not None and (is_integer(ty) or normal(found, ty)) else None


class MeanOfOffset(PullOut):
    """mean(a + s, axes) = mean(a, axes) + s."""

    name = "mean_of_offset"
    before = mean(a + s)
    after = mean(a) + s
    outer = "add"
    reduction = "axes"
    needs = "reassociate"

    def check(self, match: Match) -> Refusal | None:
        return super().check(match) if is_float(match.type("a")) else INTEGER


class _Termwise(Law):
    """A linear reduction changes places with a sum."""

    both = True
    needs = "reassociate"  # elements may cancel, those of one sum or those at one place
    is_modular = True

    def check(self, match: Match) -> Refusal | None:
        is_mean = match.head("reduce").name == "relax.mean"
        return INTEGER if is_mean and is_integer(match.type("a")) else differ(match)


class AddReduced(_Termwise):
    """reduce(a) + reduce(b) = reduce(a + b)."""

    name = "add_reduced"
    before = reduce(a) + reduce(b)
    after = reduce(a + b)


class SubtractReduced(_Termwise):
    """reduce(a) - reduce(b) = reduce(a - b)."""

    name = "subtract_reduced"
    before = reduce(a) - reduce(b)
    after = reduce(a - b)


LAWS: tuple[Law, ...] = (
    ReduceOfScaled(),
    ReduceOfDivided(),
    Equation("reduce_of_negative", reduce(-a), -reduce(a), _reduce_of_negative, both=True),
    SumOfShifted(),
    SumOfOffset(),
    MeanOfOffset(),
    AddReduced(),
    SubtractReduced(),
)
