"""Indices whose quotients and remainders are one number, taken apart by several divisors.

``i // 196 * 196 + (c + i // 14) % 14 * 14 + i % 14``, the place of an element in an image of 14 by
14 pixels, is ``i + 14 * c`` less multiples of 196 that cancel where the first dividend is shifted
likewise. Each remainder alone leaves a quotient; together they leave none.
"""

from tvm import ir, tirx

from ..core.tir.loops import constant
from ..core.tir.polynomial import Polynomials


def whole(index: ir.Expr) -> ir.Expr:
    """Write an index without divisions, if it is a polynomial.

    Parameters
    ----------
    index
        int64. Divisors are constants; of others the index stays as it is.

    Returns
    -------
    Expr
        The same number.
    """
    divisions = _Divisions()
    found = divisions.spelled(index)
    return index if found is None or divisions.are_in(found) else found


class _Divisions:
    """Quotients as variables, equal ones as one."""

    def __init__(self) -> None:
        self._polynomials = Polynomials({})
        self._known: list[tuple[ir.Expr, int, ir.Var]] = []  # dividend, divisor, quotient

    def are_in(self, expr: ir.Expr) -> bool:
        """Whether an expression has quotients."""
        return any(self._has(expr, quotient) for *_, quotient in self._known)

    def spelled(self, expr: ir.Expr) -> ir.Expr | None:
        """Multiply out, with ``a - a // b * b`` for ``a % b``; None for what cannot be."""
        if isinstance(expr, (ir.Var, tirx.IntImm)):
            return expr
        if not isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)):
            return None
        a, b = self.spelled(expr.a), self.spelled(expr.b)
        if a is None or b is None:
            return None
        if not isinstance(expr, (tirx.FloorDiv, tirx.FloorMod)):
            return self._polynomials.expanded(type(expr)(a, b))
        divisor = constant(b)
        if divisor is None or divisor <= 0:
            return None
        quotient = self._quotient(a, divisor)
        if isinstance(expr, tirx.FloorDiv):
            return quotient
        return self._polynomials.expanded(a - quotient * b)

    def _quotient(self, dividend: ir.Expr, divisor: int) -> ir.Expr:
        for inner, factor, quotient in self._known:
            rest = self._polynomials.expanded(dividend - quotient)
            if rest is not None and self._has(dividend, quotient) and not self._has(rest, quotient):
                # (inner // factor + rest) // divisor
                whole = self._polynomials.expanded(inner + rest * tirx.IntImm("int64", factor))
                return self._quotient(whole, divisor * factor)
        for known, by, quotient in self._known:
            same = self._polynomials.expanded(dividend - known)
            if by == divisor and constant(same) == 0:
                return quotient
        self._known.append((dividend, divisor, tirx.Var("quotient", "int64")))
        return self._known[-1][2]

    @staticmethod
    def _has(expr: ir.Expr, variable: ir.Var) -> bool:
        return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(expr))
