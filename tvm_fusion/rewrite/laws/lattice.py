"""Lattice laws: maximum and minimum, logical and bitwise or and and.

Both are associative, each distributes over the other and absorbs it, NaN aside. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.template import Refusal
from ..law import Law, Match
from ..pattern import Pattern, constants, function, tensors
from .conditions import without_nan

a, b, c = tensors("a b c")
k, l = constants("k l")  # noqa: E741


def lattice(join: str, meet: str) -> tuple[Law, ...]:
    """Write the laws of a distributive lattice.

    Parameters
    ----------
    join, meet : str
        Names in ``relax.op``.
    """
    found: list[Law] = []
    for over, under in ((join, meet), (meet, join)):
        f, g = function(f"relax.{over}"), function(f"relax.{under}")
        found += [
            _law(f"idempotent_{over}", f(a, a), a),
            _law(f"absorb_{over}", f(a, g(a, b)), a, _absorbs),
            # From right to left only where constants meet: elsewhere it never ends.
            _law(f"distribute_{over}", g(f(a, b), f(a, c)), f(a, g(b, c))),
            _law(f"distribute_constants_{over}", f(g(a, k), l), g(f(a, l), f(k, l))),
            _law(f"associate_{over}", f(a, f(b, c)), f(f(a, b), c)),
        ]
    return tuple(found)


def _absorbs(_law: Law, match: Match) -> Refusal | None:
    """Refuse to drop an operand whose NaN the result would be."""
    return without_nan(match, "b")


def _law(
    name: str, before: Pattern, after: Pattern, check: Callable[..., Refusal | None] = Law.check
) -> Law:
    title = "".join(word.capitalize() for word in name.split("_"))
    body = {"__doc__": f"{before} = {after}.", "__module__": __name__, "check": check}
    return type(title, (Law,), body | dict(name=name, before=before, after=after))()


LAWS: tuple[Law, ...] = (
    *lattice("maximum", "minimum"),
    *lattice("logical_or", "logical_and"),
    *lattice("bitwise_or", "bitwise_and"),
)
