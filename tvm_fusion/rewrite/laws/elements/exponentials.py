"""Exponentials and logarithms.

A logarithm that is finite has told the sign of its operand, so ``exp(log(a)) = a`` needs no check.
"""

import math

import ml_dtypes
import numpy as np

from ....core.constants.numpy_types import numpy_dtype
from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, tensors
from ...nonfinite import ALL, INFINITE, NAN, PLUS, ZERO
from ..conditions import OnFloats, all_of, floating, nonnegative

a, b = tensors("a b")
(k,) = constants("k")
exp, log, sqrt, power = (function(f"relax.{f}") for f in ("exp", "log", "sqrt", "power"))


class SplitExponential(OnFloats):
    """exp(a + b) = exp(a) * exp(b)."""

    name = "split_exponential"
    before = exp(a + b)
    after = exp(a) * exp(b)
    # A factor overflows as soon as a is 89; what is subtracted before an exponential is there to
    # prevent just that, so more than a change of the order of operations has to be allowed.
    needs = "approximate"

    def exempt(self, match: Match) -> bool:
        """Let terms pass that are known to be small."""
        largest = _largest(match)
        bounds = [match.graph[match.number(name)].bounds for name in "ab"]
        return all(-largest <= b.low and b.high <= largest for b in bounds)


class DivideExponentials(OnFloats):
    """exp(a) / exp(b) = exp(a - b)."""

    name = "divide_exponentials"
    before = exp(a) / exp(b)
    after = exp(a - b)
    needs = "reassociate"  # a divisor that overflows gives 0 in the original
    changes = NAN | PLUS

    def exempt(self, match: Match) -> bool:
        """Let divisors pass that are known not to overflow."""
        return match.graph[match.number("b")].bounds.high <= _largest(match)


def _largest(match: Match) -> float:
    """Return a number up to which exponentials of ``a`` are finite, and sums of two nearly so."""
    dtype = str(match.type("a").dtype)
    return math.log(float(ml_dtypes.finfo(numpy_dtype(dtype)).max)) - 1


def _power_of_exponential(match: Match) -> Refusal | None:
    """Refuse exponents that bring back what has underflowed."""
    exponent = match.value("k")
    if exponent is None or np.any(np.abs(exponent.astype(np.float64)) < 0.5):
        return Refusal("small_exponent", "An exponent may be less than a half.")
    return floating(match)


def _no_power(match: Match) -> Refusal | None:
    """Refuse exponents of 0, whose power of NaN is 1."""
    exponent = match.value("k")
    if exponent is None or (exponent == 0).any():
        return Refusal("zero_exponent", "An exponent may be 0.")
    return None


def _logarithm_of_product(match: Match) -> Refusal | None:
    """Refuse factors of unknown sign: two negative ones have a product with a logarithm."""
    return all_of(floating(match), nonnegative(match, "a"))


def _logarithm_of_quotient(match: Match) -> Refusal | None:
    """Refuse operands of unknown sign: two negative ones have a quotient with a logarithm."""
    unknown = nonnegative(match, "a") and nonnegative(match, "b")
    return all_of(floating(match), unknown)


LAWS: tuple[Law, ...] = (
    Equation("logarithm_of_exponential", log(exp(a)), a, floating, changes=INFINITE | ZERO),
    Equation("exponential_of_logarithm", exp(log(a)), a, floating, changes=NAN | PLUS | ZERO),
    # Where both exponentials are finite a + b does not overflow, but to -inf, whose exp is 0.
    Equation("multiply_exponentials", exp(a) * exp(b), exp(a + b), floating, changes=NAN | PLUS),
    DivideExponentials(),
    Equation("invert_exponential", 1 / exp(a), exp(-a), floating),
    Equation("root_of_exponential", sqrt(exp(a)), exp(a * 0.5), floating, changes=PLUS),
    Equation(
        "power_of_exponential",
        power(exp(a), k),
        exp(a * k),
        _power_of_exponential,
        changes=PLUS,
    ),
    Equation("logarithm_of_root", log(sqrt(a)), log(a) * 0.5, floating),
    Equation("logarithm_of_reciprocal", log(1 / a), -log(a), floating, changes=ALL | ZERO),
    # Refuses negative bases: an even power has a logarithm, its base has none.
    Equation(
        "logarithm_of_power",
        log(power(a, k)),
        k * log(a),
        lambda match: all_of(floating(match), nonnegative(match, "a"), _no_power(match)),
        changes=INFINITE,
    ),
    # a * b may overflow
    Equation("add_logarithms", log(a) + log(b), log(a * b), floating, needs="reassociate"),
    Equation("subtract_logarithms", log(a) - log(b), log(a / b), floating, needs="reassociate"),
    # two large logarithms may cancel
    Equation(
        "logarithm_of_product",
        log(a * b),
        log(a) + log(b),
        _logarithm_of_product,
        needs="reassociate",
    ),
    Equation(
        "logarithm_of_quotient",
        log(a / b),
        log(a) - log(b),
        _logarithm_of_quotient,
        needs="reassociate",
    ),
    SplitExponential(),
)
