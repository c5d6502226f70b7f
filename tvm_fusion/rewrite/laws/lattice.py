"""Laws of two operators that choose: maximum and minimum, logical and bitwise or and and.

Both are associative, each distributes over the other and absorbs it. Nothing is rounded.
"""

from __future__ import annotations

from ..law import Law
from ..pattern import Pattern, function, tensors

a, b, c = tensors("a b c")


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
            _law(f"absorb_{over}", f(a, g(a, b)), a),
            _law(f"distribute_{over}", g(f(a, b), f(a, c)), f(a, g(b, c)), both=True),
            _law(f"associate_{over}", f(a, f(b, c)), f(f(a, b), c)),
        ]
    return tuple(found)


def _law(name: str, before: Pattern, after: Pattern, both: bool = False) -> Law:
    title = "".join(word.capitalize() for word in name.split("_"))
    body = {"__doc__": f"{before} = {after}.", "__module__": __name__}
    return type(title, (Law,), body | dict(name=name, before=before, after=after, both=both))()


LAWS: tuple[Law, ...] = (
    *lattice("maximum", "minimum"),
    *lattice("logical_or", "logical_and"),
    *lattice("bitwise_or", "bitwise_and"),
)
