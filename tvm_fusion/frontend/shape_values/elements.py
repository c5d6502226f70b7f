"""Arithmetic of one element: integers, conditions and exact ratios of integers.

Floating point that exporters compute shapes in is kept as a ratio of two integers, exact, and
with it what the operators of the model compute in their own precision: a ratio becomes an extent
only where both agree at all extents (``Floor(h * 0.7)`` in float32 is not ``7 * h // 10`` for all).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.ir.prim import expr_deep_equal

from .facts import Facts, as_expr, at, variables_of

# Denominators up to here are what a model's author meant: 0.7 is 7 / 10.
_SIMPLE = 4096


class Unknown(Exception):
    """An element that no expression is known for."""


@dataclass(frozen=True, eq=False)
class Real:
    """A floating point number over the symbolic dimensions.

    Attributes
    ----------
    over, under : int or tvm.ir.Expr
        Numerator and denominator, which is positive.
    run
        From extents by name to the numbers that the model's operators compute.
    variables : tuple of tvm.tirx.Var
        Those that ``run`` needs, of which ``over`` and ``under`` may have lost some.
    """

    over: Any
    under: Any
    run: Callable[[Mapping[str, np.ndarray]], Any]
    variables: tuple[Any, ...] = ()

    @staticmethod
    def of_constant(value: Any) -> Real:
        """Make a number of one of numpy's scalars."""
        if not np.isfinite(value):
            raise Unknown
        exact = Fraction(float(value))
        simple = exact.limit_denominator(_SIMPLE)
        near = simple if type(value)(float(simple)) == value else exact
        return Real(near.numerator, near.denominator, lambda _: value)

    @staticmethod
    def of_integer(value: Any, dtype: str) -> Real:
        """Convert an integer to a floating point type."""

        def run(extents: Mapping[str, np.ndarray]) -> Any:
            return np.asarray(at(value, extents)).astype(dtype)

        return Real(value, 1, run, tuple(variables_of(value)))


def is_symbolic(*values: Any) -> bool:
    """Tell whether an element depends on a dimension."""
    return any(isinstance(value, (ir.Expr, Real)) for value in values)


def integer(name: str, facts: Facts, a: Any, b: Any) -> Any:
    """Compute ``Add``, ``Sub``, ``Mul``, ``Div``, ``Mod``, ``Max`` or ``Min`` of two integers."""
    if name in ("Div", "Mod"):
        if not facts.proves(as_expr(b) > 0):
            raise Unknown
        if name == "Mod":  # of the divisor's sign
            return facts.simplify(tirx.floormod(as_expr(a), as_expr(b)))
        if facts.proves(as_expr(a) >= 0):
            return facts.simplify(tirx.floordiv(as_expr(a), as_expr(b)))
        if facts.proves(as_expr(a) <= 0):  # towards zero
            return facts.simplify(0 - tirx.floordiv(0 - as_expr(a), as_expr(b)))
        raise Unknown
    if name in ("Max", "Min"):
        for one, other in ((a, b), (b, a)):
            is_larger = facts.proves(as_expr(one) >= as_expr(other))
            if is_larger:
                return one if name == "Max" else other
        return facts.simplify((tirx.max if name == "Max" else tirx.min)(as_expr(a), as_expr(b)))
    signs = {"Add": lambda: a + b, "Sub": lambda: a - b, "Mul": lambda: a * b}
    return facts.simplify(signs[name]())


def real(name: str, facts: Facts, a: Any, b: Any) -> Any:
    """Compute ``Add``, ``Sub``, ``Mul``, ``Div``, ``Max`` or ``Min`` of two numbers."""
    a, b = (x if isinstance(x, Real) else Real.of_constant(x) for x in (a, b))
    if name in ("Max", "Min"):
        order = facts.decide(as_expr(a.over * b.under) >= as_expr(b.over * a.under))
        if order is None:
            raise Unknown
        return a if order is (name == "Max") else b
    variables = (*a.variables, *b.variables)
    if name == "Div":
        if not facts.proves(as_expr(b.over) > 0):
            raise Unknown
        parts = [a.over, b.under], [a.under, b.over]
        return _ratio(facts, *parts, lambda e: a.run(e) / b.run(e), variables)
    if name == "Mul":
        parts = [a.over, b.over], [a.under, b.under]
        return _ratio(facts, *parts, lambda e: a.run(e) * b.run(e), variables)
    if name == "Add":
        over = a.over * b.under + b.over * a.under
        return _ratio(facts, [over], [a.under, b.under], lambda e: a.run(e) + b.run(e), variables)
    if name == "Sub":
        over = a.over * b.under - b.over * a.under
        return _ratio(facts, [over], [a.under, b.under], lambda e: a.run(e) - b.run(e), variables)
    raise Unknown


def _ratio(
    facts: Facts, over: list[Any], under: list[Any], run: Any, variables: tuple[Any, ...]
) -> Real:
    """Divide products of which equal factors are left out."""
    over, under = list(over), list(under)
    for factor in list(under):
        twin = next((i for i, x in enumerate(over) if _same(x, factor)), None)
        if twin is not None:
            del over[twin]
            under.remove(factor)
    top, bottom = facts.simplify(math.prod(over)), facts.simplify(math.prod(under))
    if isinstance(bottom, int) and isinstance(top, int):
        common = math.gcd(top, bottom) or 1
        return Real(top // common, bottom // common, run, variables)
    rest = facts.simplify(tirx.floormod(as_expr(top), as_expr(bottom)))
    if isinstance(rest, int) and rest == 0:
        return Real(facts.simplify(tirx.floordiv(as_expr(top), as_expr(bottom))), 1, run, variables)
    return Real(top, bottom, run, variables)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, ir.Expr) and isinstance(other, ir.Expr):
        return bool(expr_deep_equal(one, other))
    return not isinstance(one, ir.Expr) and not isinstance(other, ir.Expr) and one == other


def rounded(name: str, facts: Facts, x: Real) -> Real:
    """Compute ``Floor``, ``Ceil`` or ``Round``, which must be the one of the exact ratio."""
    over, under = as_expr(x.over), as_expr(x.under)
    run: Any
    if name == "Floor":
        value, run = tirx.floordiv(over, under), np.floor
    elif name == "Ceil":
        value, run = tirx.floordiv(over + under - 1, under), np.ceil
    elif facts.proves(tirx.floormod(over, under) == 0):
        value, run = tirx.floordiv(over, under), np.rint
    else:
        raise Unknown
    result = Real(facts.simplify(value), 1, lambda extents: run(x.run(extents)), x.variables)
    to_integer(facts, result)
    return result


def to_integer(facts: Facts, x: Real) -> Any:
    """Drop what is behind the point, if that is the same for the ratio and for what is computed."""
    value = facts.simplify(tirx.floordiv(as_expr(x.over), as_expr(x.under)))
    extents = facts.samples(x.variables)
    if extents is None:
        raise Unknown
    with np.errstate(all="ignore"):
        computed = np.trunc(np.asarray(x.run(extents), "float64"))
    if not bool(np.all(computed == at(value, extents))):
        raise Unknown
    return value


def compare(name: str, facts: Facts, a: Any, b: Any) -> Any:
    """Compute a comparison, of which the ranges may decide."""
    if isinstance(a, Real) or isinstance(b, Real):
        a, b = (x if isinstance(x, Real) else Real.of_constant(x) for x in (a, b))
        a, b = a.over * b.under, b.over * a.under
    a, b = as_expr(a), as_expr(b)
    conditions = {
        "Equal": lambda: a == b,
        "Greater": lambda: a > b,
        "GreaterOrEqual": lambda: a >= b,
        "Less": lambda: a < b,
        "LessOrEqual": lambda: a <= b,
    }
    condition = conditions[name]()
    if not isinstance(condition, ir.Expr):
        condition = tirx.EQ(a, b)
    decided = facts.decide(condition)
    return condition if decided is None else decided


def logical(name: str, facts: Facts, a: Any, b: Any) -> Any:
    """Compute ``And``, ``Or`` or ``Xor`` of conditions."""
    if name == "Xor":
        if is_symbolic(a, b):
            raise Unknown
        return bool(a) != bool(b)
    ends = name == "Or"  # what decides alone
    for one, other in ((a, b), (b, a)):
        if not is_symbolic(one):
            return ends if bool(one) is ends else other
    return facts.simplify((tirx.Or if ends else tirx.And)(a, b))


def choose(facts: Facts, condition: Any, a: Any, b: Any) -> Any:
    """Compute ``Where``: an extreme where the condition compares the two."""
    if not is_symbolic(condition):
        return a if condition else b
    if not isinstance(a, Real) and not isinstance(b, Real):
        if facts.equal(a, b):
            return a
        for kind, function in (
            ((tirx.GT, tirx.GE), tirx.max),
            ((tirx.LT, tirx.LE), tirx.min),
        ):
            is_order = isinstance(condition, kind)
            if is_order and _equal(condition.a, a) and _equal(condition.b, b):
                return facts.simplify(function(as_expr(a), as_expr(b)))
    raise Unknown


def _equal(one: Any, other: Any) -> bool:
    return bool(expr_deep_equal(as_expr(one), as_expr(other)))
