"""Arithmetic in a normal form: polynomials over tensors, equal for all equal ways to write them.

``x / sqrt(v)``, ``x * rsqrt(v)`` and ``x * power(v, -0.5)`` are one monomial, ``x^1 v^-1/2``;
``0.5 * x * (1 + t)``, ``x * (t * 0.5 + 0.5)`` and ``(x + x * t) / 2`` are one sum of two. Casts
that round and axes of extent 1 leave no trace. What does not depend on any of the marked
expressions stays whole.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from tvm import relax

from ....frontend.tensor_types import dtype_of
from .coefficient import power
from .extents import extent, known_shape
from .view import View, op_name

#: Axes of the whole that the axes of a part run along; None for an axis of extent 1.
Where = tuple[int | None, ...]
#: Name of what an expression is, if a kind looks for it.
Mark = Callable[[Any], str | None]

_TERMS = 12  # of a polynomial: larger ones stay whole
_NODES = 64  # operators that are looked at from one variable
_HALF = Fraction(1, 2)


class Atom(NamedTuple):
    """What a polynomial is made of."""

    name: str  # a mark, or the number of an expression that is none
    where: Where  # of an expression, each of its axes; of a reduction, each that is not reduced


#: Factors and their exponents, in order.
Monomial = tuple[tuple[Atom, Fraction], ...]
#: Terms and their coefficients, which know how far constants of half types are rounded.
Polynomial = dict[Monomial, float]

ONE: Monomial = ()


def arithmetic(view: View, expr: Any) -> list[Any] | None:
    """List the operands of arithmetic that polynomials see through; None for any other thing."""
    if not isinstance(expr, relax.Var):  # few, and not kept
        return _arithmetic(view, expr)
    return view.once(("arithmetic", hash(expr)), lambda: _arithmetic(view, expr))


def _arithmetic(view: View, expr: Any) -> list[Any] | None:
    call = view.call(expr)
    if call is None:
        return None
    name = op_name(call)
    if name in ("add", "subtract", "multiply", "divide"):
        return list(call.args)
    if name in ("negative", "square", "sqrt", "rsqrt"):
        return [call.args[0]]
    if name == "power":
        exponent = view.number(call.args[1])
        return [call.args[0]] if exponent is not None and math.isfinite(exponent) else None
    return [call.args[0]] if view.is_cast(expr) or view.is_moved(expr) else None


def cone(view: View, root: Any) -> list[Any]:
    """List variables that arithmetic leads to from one, itself included, the nearest first."""
    return view.once(("cone", hash(root)), lambda: _cone(view, root))


def _cone(view: View, root: Any) -> list[Any]:
    queue, seen, found = [root], {hash(root)}, list[Any]()
    while queue and len(found) < _NODES:
        following = []
        for expr in queue:
            found.append(expr)
            for operand in arithmetic(view, expr) or ():
                if hash(operand) not in seen and isinstance(operand, relax.Var):
                    seen.add(hash(operand))
                    following.append(operand)
        queue = following
    return found


class Expansion:
    """Polynomials over marked expressions.

    Parameters
    ----------
    mark
        Says which expressions are atoms with a name.
    """

    def __init__(self, view: View, mark: Mark) -> None:
        self._view = view
        self._mark = mark
        self._marks: dict[int, str | None] = {}
        self._reach: dict[int, bool] = {}
        self._budget = _NODES

    def of(self, expr: Any) -> Polynomial | None:
        """Expand an expression; None if it is not floating point or its shape is not known."""
        shape = known_shape(expr)
        if shape is None or not dtype_of(expr).startswith(("float", "bfloat")):
            return None
        where = tuple(None if extent(e) == 1 else i for i, e in enumerate(shape))
        return self._expand(expr, where)

    def _named(self, expr: Any) -> str | None:
        key = hash(expr)
        if key not in self._marks:
            self._marks[key] = self._mark(expr)
        return self._marks[key]

    def _reaches(self, expr: Any) -> bool:
        """Whether arithmetic leads from an expression to a marked one."""
        key = hash(expr)
        if key not in self._reach:
            self._reach[key] = False
            self._budget -= 1
            if self._named(expr) is not None:
                self._reach[key] = True
            elif self._budget > 0:
                parts = arithmetic(self._view, expr) or ()
                self._reach[key] = any([self._reaches(part) for part in parts])
        return self._reach[key]

    def _expand(self, expr: Any, where: Where) -> Polynomial:
        name = self._named(expr)
        if name is None:
            number = self._view.number(expr)
            if number is not None:
                return {ONE: number} if number else {}
            if self._reaches(expr):
                found = self._operator(expr, where)
                if len(found) <= _TERMS:
                    return found
        return self._atom(expr, where, name)

    def _atom(self, expr: Any, where: Where, name: str | None = None) -> Polynomial:
        reduction = self._view.reduction(expr)
        if reduction is not None:
            where = tuple(
                w for w, axis in zip(where, reduction.kept, strict=True) if axis is not None
            )
        name = str(hash(expr)) if name is None else name
        self._view.atoms.setdefault(name, expr)
        return {((Atom(name, where), Fraction(1)),): 1.0}

    def _operator(self, expr: Any, where: Where) -> Polynomial:
        call = self._view.value(expr)
        name = op_name(call)
        operands = arithmetic(self._view, expr) or []
        parts = [self._expand(o, self._part(call, o, where)) for o in operands]
        if name in ("add", "subtract"):
            return _sum(parts[0], parts[1], 1.0 if name == "add" else -1.0)
        if name == "multiply":
            return product(*parts)
        if name == "negative":
            return scaled(parts[0], -1.0)
        if name == "divide":
            below = self._power(
                operands[1], parts[1], Fraction(-1), self._part(call, operands[1], where)
            )
            return product(parts[0], below)
        exponents = {"square": Fraction(2), "sqrt": _HALF, "rsqrt": -_HALF}
        if name == "power":
            exponents[name] = Fraction(self._view.number(call.args[1]) or 0).limit_denominator(64)
        if name in exponents:
            return self._power(
                operands[0], parts[0], exponents[name], self._part(call, operands[0], where)
            )
        return parts[0]

    def _part(self, call: relax.Call, operand: Any, where: Where) -> Where:
        """Say which axes of the whole an operand's run along."""
        extents = [extent(e) for e in operand.ty.shape.values]
        if op_name(call) in ("reshape", "expand_dims", "squeeze", "flatten"):
            rest = iter([w for w in where if w is not None])
            return tuple(None if e == 1 else next(rest) for e in extents)
        aligned = where[len(where) - len(extents) :] if extents else ()
        return tuple(None if e == 1 else w for e, w in zip(extents, aligned, strict=True))

    def _power(self, base: Any, terms: Polynomial, exponent: Fraction, where: Where) -> Polynomial:
        if len(terms) == 1:
            ((factors, coefficient),) = terms.items()
            # The root of a product may be real where those of its factors are not.
            is_whole = exponent.denominator == 1
            if is_whole or (
                coefficient > 0 and all(abs(e) == 1 for _, e in factors[:1]) and len(factors) < 2
            ):
                raised = tuple((atom, e * exponent) for atom, e in factors)
                return {raised: power(coefficient, float(exponent))}
        if exponent.denominator == 1 and 1 <= exponent <= 4 and terms:
            return product(*[terms] * int(exponent))
        ((factors, _),) = self._atom(base, where).items()
        return {((factors[0][0], exponent),): 1.0}


def _sum(a: Polynomial, b: Polynomial, sign: float) -> Polynomial:
    result = dict(a)
    for monomial, coefficient in b.items():
        total = result.get(monomial, 0.0) + sign * coefficient
        if total == 0:
            result.pop(monomial, None)
        else:
            result[monomial] = total
    return result


def scaled(polynomial: Polynomial, factor: float) -> Polynomial:
    """Multiply by a number."""
    return {monomial: factor * c for monomial, c in polynomial.items()}


def product(*polynomials: Polynomial) -> Polynomial:
    """Multiply out."""
    result: Polynomial = {ONE: 1.0}
    for polynomial in polynomials:
        terms: Polynomial = {}
        for left, a in result.items():
            for right, b in polynomial.items():
                terms = _sum(terms, {times(left, right): a * b}, 1.0)
        result = terms
    return result


def times(left: Monomial, right: Monomial) -> Monomial:
    """Multiply monomials."""
    exponents = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, Fraction(0)) + exponent
    return monomial(exponents)


def monomial(exponents: dict[Atom, Fraction]) -> Monomial:
    """Write factors in order, without those of exponent 0."""
    kept = [(atom, e) for atom, e in exponents.items() if e]
    return tuple(sorted(kept, key=lambda item: (item[0].name, str(item[0].where))))
