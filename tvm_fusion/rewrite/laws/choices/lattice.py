"""Lattice laws: maximum and minimum, logical and bitwise or and and.

Both are associative, each distributes over the other and absorbs it, NaN aside. Nothing is rounded.
Which of two zeros a maximum returns is left open.
"""

from ...egraph.law import Equation, Law
from ...egraph.pattern import constants, function, tensors
from ...nonfinite import ZERO
from ..conditions import without_nan

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def lattice(join: str, meet: str) -> tuple[Law, ...]:
    """Write the laws of a distributive lattice.

    Parameters
    ----------
    join, meet
        Names in ``relax.op``.
    """
    found: list[Law] = []
    for over, under in ((join, meet), (meet, join)):
        f, g = function(f"relax.{over}"), function(f"relax.{under}")
        found += [
            Equation(f"idempotent_{over}", f(a, a), a),
            # Refuses to drop an operand whose NaN the result would be.
            Equation(
                f"absorb_{over}",
                f(a, g(a, b)),
                a,
                lambda match: without_nan(match, "b"),
                changes=ZERO,
            ),
            # From right to left only where constants meet: elsewhere it never ends.
            Equation(f"distribute_{over}", g(f(a, b), f(a, c)), f(a, g(b, c)), changes=ZERO),
            Equation(
                f"distribute_constants_{over}", f(g(a, k), l), g(f(a, l), f(k, l)), changes=ZERO
            ),
            Equation(f"associate_{over}", f(a, f(b, c)), f(f(a, b), c), changes=ZERO),
        ]
    return tuple(found)


LAWS: tuple[Law, ...] = (
    *lattice("maximum", "minimum"),
    *lattice("logical_or", "logical_and"),
    *lattice("bitwise_or", "bitwise_and"),
)
