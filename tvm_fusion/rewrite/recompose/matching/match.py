"""Shared by patterns: match an expression as a polynomial over one tensor and its functions.

    e = exp(u);  s = sum(e, axis=-1)
    over(view, root, e, {"s": (s, kept)})    # {x^1 s^-1: 1.0} of e / s, e * (1 / s), ...

The result has an atom :data:`X` for the tensor, one for each mark whose axes are where they belong,
and atoms of their own for all else; so :func:`is_same` compares it with an equation.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from tvm import relax

from .coefficient import is_close
from .extents import extent, known_shape, longer, same_extent
from .polynomial import Atom, Expansion, Polynomial, cone, monomial
from .view import Reduction, View, op_name

_CANDIDATES = 8

#: An expression with a name, or what tells expressions of that name.
Marked = Any | Callable[[Any], bool]
#: Axes of the tensor that a mark's axes run along: None for one of extent 1, :data:`ANY` where it
#: does not change. A reduction's are those that it leaves.
Axes = tuple[int | None, ...]
ANY = -1


def atom(name: str) -> Atom:
    """Write the atom of a mark."""
    return Atom(name, ())


X = atom("x")


def over(
    view: View, root: Any, x: Any, marks: Mapping[str, tuple[Marked, Axes | None]] | None = None
) -> Polynomial | None:
    """Expand an expression over a tensor and what was made of it.

    Parameters
    ----------
    root : ir.Expr
        Has the shape of ``x`` but for axes of extent 1.
    x : ir.Expr
        The tensor, which becomes :data:`X`.
    marks
        What else becomes an atom, and the axes of ``x`` that it runs along; None for all.

    Returns
    -------
    Polynomial or None
        None where shapes differ, or a mark is broadcast along other axes than its own.
    """
    marks = marks or {}
    if not spans(x, root):
        return None
    found = Expansion(view, _marking(x, marks)).of(root)
    if found is None:
        return None
    axes = iter(i for i, e in enumerate(known_shape(root) or []) if extent(e) != 1)
    place = [None if extent(e) == 1 else next(axes) for e in known_shape(x) or []]
    result: Polynomial = {}
    for factors, coefficient in found.items():
        exponents: dict[Atom, Fraction] = {}
        for part, exponent in factors:
            if part.name == "x" or part.name in marks:
                own = None if part.name == "x" else marks[part.name][1]
                if not _is_placed(
                    part.where, tuple(range(len(place))) if own is None else own, place
                ):
                    return None
                part = atom(part.name)
            exponents[part] = exponent
        result[monomial(exponents)] = coefficient
    return result


def _is_placed(where: tuple[int | None, ...], axes: Axes, place: list[int | None]) -> bool:
    return len(where) == len(axes) and all(
        axis == ANY or found == (None if axis is None else place[axis])
        for found, axis in zip(where, axes, strict=True)
    )


def _marking(
    x: Any, marks: Mapping[str, tuple[Marked, Axes | None]]
) -> Callable[[Any], str | None]:
    names = {hash(expr): name for name, (expr, _) in marks.items() if not _is_test(expr)}
    names[hash(x)] = "x"
    tests = [(name, test) for name, (test, _) in marks.items() if _is_test(test)]

    def mark(expr: Any) -> str | None:
        known = names.get(hash(expr))
        return known or next((name for name, test in tests if test(expr)), None)

    return mark


def _is_test(marked: Any) -> bool:
    return callable(marked) and not isinstance(marked, relax.Var)


def terms(*items: tuple[float, dict[Atom, Any]]) -> Polynomial:
    """Write a polynomial: coefficients with the exponents of atoms."""
    return {monomial({a: Fraction(e) for a, e in exps.items()}): c for c, exps in items}


def is_same(found: Polynomial | None, expected: Polynomial) -> bool:
    """Whether two polynomials are the same up to the rounding of their coefficients."""
    if found is None:
        return False
    largest = max((abs(c) for c in found.values()), default=0.0)
    found = {m: c for m, c in found.items() if not abs(c) <= 1e-9 * largest}
    return found.keys() == expected.keys() and all(
        is_close(found[m], c) for m, c in expected.items()
    )


def candidates(view: View, expr: Any) -> Iterator[relax.Var]:
    """Yield what an expression may be a function of, nearest first: what arithmetic leads to."""
    for count, var in enumerate(cone(view, expr)):
        if count == _CANDIDATES:
            return
        if isinstance(var, relax.Var) and view.number(var) is None:
            yield var


def anchored(view: View, root: Any, *names: str) -> Iterator[relax.Var]:
    """Yield variables of some operators that arithmetic leads to from a root, nearest first."""
    for var, name in view.once(("names", hash(root)), lambda: _named(view, root)):
        if name in names:
            yield var


def _named(view: View, root: Any) -> list[tuple[relax.Var, str]]:
    found = [(var, op_name(view.value(var))) for var in cone(view, root)]
    return [(var, name) for var, name in found if name and isinstance(var, relax.Var)]


def reductions(view: View, root: Any, *kinds: str) -> Iterator[tuple[relax.Var, Reduction]]:
    """Yield reductions of some kinds that arithmetic leads to from a root, nearest first."""
    for var in anchored(view, root, *kinds):
        reduction = view.reduction(var)
        if reduction is not None:
            yield var, reduction


def is_itself(view: View, expr: Any, x: Any) -> bool:
    """Whether an expression is a tensor of the same rank but for casts."""
    if hash(expr) == hash(x):
        return True
    ranks = [len(known_shape(e) or []) for e in (expr, x)]
    return ranks[0] == ranks[1] and is_same(over(view, expr, x), terms((1, {X: 1})))


def reduced(view: View, kind: str, x: Any, axes: Axes) -> Callable[[Any], bool]:
    """Make a mark of any reduction of a tensor over some axes, however often it is computed."""

    def test(expr: Any) -> bool:
        found = view.reduction(expr)
        return (
            found is not None
            and (found.kind, found.axes) == (kind, axes)
            and is_itself(view, found.source, x)
        )

    return test


def kept(reduction: Reduction) -> tuple[int, ...]:
    """List the axes of the source that a reduction leaves."""
    return tuple(axis for axis in reduction.kept if axis is not None)


def spans(var: Any, root: Any) -> bool:
    """Whether a tensor has the shape of another one but for axes of extent 1."""
    own, other = known_shape(var), known_shape(root)
    if own is None or other is None:
        return False
    own, other = longer(own), longer(other)
    return len(own) == len(other) and all(map(same_extent, own, other))
