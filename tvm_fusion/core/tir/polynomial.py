"""Simplify floor division of index polynomials by symbolic extents, which TVM's analyzer does not.

``(i * s + j) // s`` is ``i``, and the remainder ``j``, where ``j < s``: reshapes of tensors with
symbolic sizes are full of such terms.
"""

from collections.abc import Mapping

from tvm import ir, tirx

Monomial = tuple[int, ...]  # positions of variables, in order, repeated for powers
Polynomial = dict[Monomial, int]


class Polynomials:
    """Polynomials over axes from 0 to below their extents, and over sizes of at least 1.

    Parameters
    ----------
    extents
        The axes. Every other variable is a size.
    """

    def __init__(self, extents: Mapping[ir.Var, ir.Expr]) -> None:
        self._extents = extents
        self._position: dict[ir.Var, int] = {}
        self._variables: list[ir.Var] = []

    def divide(self, a: ir.Expr, b: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
        """Return ``a // b`` and ``a % b``, if the remainder can be proved to be one."""
        dividend, divisor = self._of(a), self._of(b)
        if dividend is None or divisor is None or not any(divisor):
            return None
        quotient, rest = _long_division(dividend, divisor)
        if not self._is_remainder(rest, divisor):
            return None
        return self._expr(quotient), self._expr(rest)

    def expanded(self, expr: ir.Expr) -> ir.Expr | None:
        """Multiply an expression out; None if it is no polynomial."""
        polynomial = self._of(expr)
        return None if polynomial is None else self._expr(polynomial)

    def _is_remainder(self, rest: Polynomial, divisor: Polynomial) -> bool:
        """Whether ``0 <= rest < divisor`` at all points."""
        if any(c < 0 for c in rest.values()):
            return False
        room = dict(divisor)
        _add(room, {(): -1})
        for monomial, coefficient in rest.items():
            largest: Polynomial = {(): coefficient}
            for position in monomial:
                bound = self._largest(position)
                if bound is None:
                    return False
                largest = _times(largest, bound)
            _add(room, largest, -1)
        # Sizes are at least 1, so a positive monomial is at least its coefficient.
        return all(c > 0 for m, c in room.items() if m) and sum(room.values()) >= 0

    def _largest(self, position: int) -> Polynomial | None:
        extent = self._extents.get(self._variables[position])
        if extent is None:
            return {(position,): 1}
        bound = self._of(extent)
        if bound is None or any(self._variables[p] in self._extents for m in bound for p in m):
            return None
        bound = dict(bound)
        _add(bound, {(): -1})
        return bound

    def _of(self, expr: ir.Expr) -> Polynomial | None:
        if isinstance(expr, tirx.IntImm):
            return {(): int(expr.value)} if int(expr.value) else {}
        if isinstance(expr, ir.Var):
            position = self._position.setdefault(expr, len(self._variables))
            if position == len(self._variables):
                self._variables.append(expr)
            return {(position,): 1}
        if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
            return None
        left, right = self._of(expr.a), self._of(expr.b)
        if left is None or right is None:
            return None
        if isinstance(expr, tirx.Mul):
            return _times(left, right)
        total = dict(left)
        _add(total, right, -1 if isinstance(expr, tirx.Sub) else 1)
        return total

    def _expr(self, polynomial: Polynomial) -> ir.Expr:
        total: ir.Expr | None = None
        for monomial, coefficient in polynomial.items():
            term: ir.Expr | None = None
            for position in monomial:
                variable = self._variables[position]
                term = variable if term is None else term * variable
            factor = tirx.IntImm("int64", coefficient)
            if term is None:
                term = factor
            elif coefficient != 1:
                term = term * factor
            total = term if total is None else total + term
        return tirx.IntImm("int64", 0) if total is None else total


def _long_division(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Subtract multiples of the divisor as long as its leading monomial divides one of the rest."""
    lead = max(divisor, key=lambda m: (len(m), m))
    quotient: Polynomial = {}
    rest = dict(dividend)
    done: set[Monomial] = set()
    while True:
        monomial = next((m for m in sorted(rest, key=len, reverse=True) if m not in done), None)
        if monomial is None:
            return quotient, rest
        done.add(monomial)
        factor = _without(monomial, lead)
        if factor is None or rest[monomial] % divisor[lead]:
            continue
        part = {factor: rest[monomial] // divisor[lead]}
        _add(quotient, part)
        _add(rest, _times(part, divisor), -1)


def _without(monomial: Monomial, lead: Monomial) -> Monomial | None:
    left = list(monomial)
    for position in lead:
        if position not in left:
            return None
        left.remove(position)
    return tuple(left)


def _add(total: Polynomial, other: Polynomial, sign: int = 1) -> None:
    for monomial, coefficient in other.items():
        value = total.get(monomial, 0) + sign * coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            _add(total, {tuple(sorted(left + right)): x * y})
    return total
