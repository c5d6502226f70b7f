"""Powers with exponents that are known."""

from typing import Any

import numpy as np
from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import constants, function, tensors
from ...nonfinite import ALL, PLUS, ZERO
from ..conditions import all_of, floating, nonnegative, representable

a, b = tensors("a b")
k, l = constants("k l")  # noqa: E741
power = function("relax.power")


class PowerAsProducts(Law):
    """power(a, k) = what products, roots and a reciprocal make of a."""

    name = "power_as_products"
    before = power(a, k)
    changes = PLUS | ZERO  # of minus infinity, whose root is NaN, and of -0

    def check(self, match: Match) -> Refusal | None:
        """Refuse exponents that need more than two products."""
        exponent = match.uniform("k")
        if exponent not in _POWERS:
            return Refusal("exponent", "The exponent is not a small number.")
        if exponent == -0.5:  # of minus infinity it is 0
            return all_of(floating(match), nonnegative(match, "a"))
        return floating(match)

    def rewrite(self, match: Match) -> int | None:
        """Write the power of one number."""
        graph = match.graph
        exponent = match.uniform("k")
        if exponent not in _POWERS:
            return None
        if exponent == 0:
            return graph.full(1, graph[match.root].type)
        found: int | None = match.number("a")
        for make in _POWERS[exponent]:
            if found is None:
                return None
            if make is _INVERT:
                one = graph.constant(1, str(match.type("a").dtype))
                found = graph.call(make, one, found, law=self.name)
            elif make is _TIMES:
                found = graph.call(make, found, match.number("a"), law=self.name)
            elif make is _TIMES_ROOT:
                root = graph.call(_ROOT, found, law=self.name)
                found = None if root is None else graph.call(_TIMES, found, root, law=self.name)
            else:
                found = graph.call(make, found, law=self.name)
        return found


_SQUARE, _ROOT, _TIMES = relax.op.square, relax.op.sqrt, relax.op.multiply
_INVERT = relax.op.divide
_TIMES_ROOT = "times root"  # of what is there already
_POWERS: dict[float, tuple[Any, ...]] = {
    0.0: (),
    1.0: (),
    2.0: (_SQUARE,),
    3.0: (_SQUARE, _TIMES),
    4.0: (_SQUARE, _SQUARE),
    0.25: (_ROOT, _ROOT),
    0.5: (_ROOT,),
    0.75: (_ROOT, _TIMES_ROOT),  # the denominator of AlexNet's and GoogLeNet's LRN
    1.5: (_ROOT, _TIMES),
    -0.5: (relax.op.rsqrt,),
    -1.0: (_INVERT,),
    -2.0: (_SQUARE, _INVERT),
}


def _power_of_power(match: Match) -> Refusal | None:
    """Refuse ``(a ** 2) ** 0.5`` of a negative number, and powers far out of range."""
    first, second = match.value("k"), match.value("l")
    if first is None or second is None or np.any(np.abs(first.astype(np.float64)) > 8):
        return Refusal("exponent", "The exponents are not known, or above 8.")
    exponents = second.astype(np.float64)
    if ((exponents > -1) & (exponents < 0)).any():  # of a power that overflows it is 0
        return Refusal("exponent", "The second exponent is between -1 and 0.")
    whole = all((v == np.round(v)).all() for v in (first, second))
    return all_of(
        floating(match),
        representable(match, np.multiply, "k", "l"),
        None if whole else nonnegative(match, "a"),
    )


def _exact(match: Match, *names: str) -> Refusal | None:
    """Refuse exponents whose sum is rounded, which may turn an even one into an odd one."""
    found = [match.value(name) for name in names]
    values = [None if v is None else v.astype(np.float64) for v in found]
    if any(v is None or np.any(np.abs(v * 256 % 1) > 0) or np.any(np.abs(v) > 64) for v in values):
        return Refusal("exponent", "The exponents are not known, or their sum is not exact.")
    return None


LAWS: tuple[Law, ...] = (
    PowerAsProducts(),
    Equation(
        "multiply_powers",
        power(a, k) * power(a, l),
        power(a, k + l),
        lambda match: all_of(floating(match), _exact(match, "k", "l")),
        changes=ALL,
    ),
    Equation(
        "multiply_by_power",
        a * power(a, k),
        power(a, k + 1),
        lambda match: all_of(floating(match), _exact(match, "k")),
        changes=ALL | ZERO,
    ),
    Equation(
        "power_of_power", power(power(a, k), l), power(a, k * l), _power_of_power, changes=ALL
    ),
    Equation("power_of_product", power(a, k) * power(b, k), power(a * b, k), needs="reassociate"),
)
