"""Means as sums, and products as exponentials of sums."""

import numpy as np
from tvm import relax

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ...egraph.facts.axes import reduced_axes, renamed
from ...egraph.facts.extents import count, is_float, normal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, tensors
from ...nonfinite import INFINITE
from .scaled import INTEGER, differ

a, b = tensors("a b")
(n,) = constants("n")
total = function("relax.sum", "axes")
mean = function("relax.mean", "axes")
product = function("relax.prod", "axes")
exp = function("relax.exp")


class MeanToSum(Law):
    """mean(a, axes) = sum(a, axes) * n."""

    name = "mean_to_sum"
    before = mean(a)
    after = total(a) * n
    needs = "reassociate"  # the sum may overflow where the mean is of a wider sum

    def check(self, match: Match) -> Refusal | None:
        if not is_float(match.type("a")):
            return INTEGER
        if _reciprocal(match) is None:
            return Refusal(
                "symbolic_extent", "The number of elements is symbolic, or too large for the dtype."
            )
        return None

    def rewrite(self, match: Match) -> int | None:
        head, factor = match.head("axes"), _reciprocal(match)
        summed = renamed(match, head, "relax.sum", match.number("a"), self.name)
        if summed is None or factor is None:
            return None
        number = match.graph.constant(factor, str(match.type("a").dtype))
        return match.graph.call(relax.op.multiply, summed, number, law=self.name)


class SumToMean(Law):
    """sum(a, axes) * n = mean(a, axes)."""

    name = "sum_to_mean"
    before = total(a) * n
    after = mean(a)
    changes = INFINITE

    def check(self, match: Match) -> Refusal | None:
        if not is_float(match.type("a")):
            return INTEGER
        if self._is_mean(match):
            return None
        return Refusal(
            "not_mean", "The constant is not the reduced extent, or the extent is symbolic."
        )

    def rewrite(self, match: Match) -> int | None:
        return renamed(match, match.head("axes"), "relax.mean", match.number("a"), self.name)

    def _is_mean(self, match: Match) -> bool:
        factor, dtype = _reciprocal(match), numpy_dtype(str(match.type("a").dtype))
        if factor is None:
            return False
        return match.uniform("n") == float(np.asarray(factor).astype(dtype))


class SumDividedToMean(SumToMean):
    """sum(a, axes) / n = mean(a, axes)."""

    name = "sum_divided_to_mean"
    before = total(a) / n

    def _is_mean(self, match: Match) -> bool:
        terms = _terms(match)
        return terms is not None and match.uniform("n") == terms


class ProductOfExp(Law):
    """prod(exp(a), axes) = exp(sum(a, axes))."""

    name = "product_of_exp"
    before = product(exp(a))
    after = exp(total(a))
    needs = "reassociate"  # the exponential multiplies an error of the sum by the sum's size

    def check(self, match: Match) -> Refusal | None:
        if str(match.type("a").dtype) in ("float32", "float64"):
            return None
        return Refusal("half_precision", "A sum in half precision is too coarse to be an exponent.")

    def rewrite(self, match: Match) -> int | None:
        summed = renamed(match, match.head("axes"), "relax.sum", match.number("a"), self.name)
        return None if summed is None else match.graph.call(relax.op.exp, summed, law=self.name)


def _terms(match: Match) -> int | None:
    ty = match.type("a")
    return count(ty, reduced_axes(match.head("axes"), ty.ndim))


def _reciprocal(match: Match) -> float | None:
    terms = _terms(match)
    return 1 / terms if terms and normal(1 / terms, match.type("a")) else None


LAWS: tuple[Law, ...] = (
    MeanToSum(),
    SumToMean(),
    SumDividedToMean(),
    Equation(
        "multiply_products",
        product(a) * product(b),
        product(a * b),
        differ,
        both=True,
        needs="reassociate",
        is_modular=True,
    ),
    ProductOfExp(),
)
