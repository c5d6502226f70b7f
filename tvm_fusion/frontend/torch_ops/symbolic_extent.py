"""Extents that torch computes with sympy, as expressions over a module's variables."""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import sympy
import tvm
from tvm import tirx

from ..registry import Unsupported


def expression(expr: Any, symbols: dict[str, tirx.Var]) -> Any:
    """Write an extent over variables.

    Parameters
    ----------
    expr : sympy.Expr
        With symbols of torch's names.
    symbols
        The variables of those names, int64.

    Returns
    -------
    tirx.PrimExpr
        int64.

    Raises
    ------
    Unsupported
        For a symbol without a variable, and for functions that extents do not have.
    """
    if not isinstance(expr, sympy.Expr):
        raise Unsupported(f"with the extent {expr}", "give the dimension a fixed extent")
    found = integer(expr, lambda part: expression(part, symbols))
    if found is not None:
        return found
    whole, divisor = sympy.fraction(sympy.together(expr))
    if divisor != 1:
        return tirx.floordiv(expression(whole, symbols), int(divisor))
    if isinstance(expr, sympy.Integer):
        return tirx.IntImm("int64", int(expr))
    if isinstance(expr, sympy.Symbol):
        if str(expr) not in symbols:
            raise Unsupported("with an extent that depends on values")
        return symbols[str(expr)]
    parts = [expression(arg, symbols) for arg in expr.args]
    kind = type(expr).__name__
    if kind in ("Add", "Mul"):
        result = parts[0]
        for part in parts[1:]:
            result = result + part if kind == "Add" else result * part
        return tvm.sym.Analyzer().simplify(result)
    if kind in ("FloorDiv", "CleanDiv"):
        return tirx.floordiv(*parts)
    if kind in ("Mod", "PythonMod"):
        return tirx.floormod(*parts)
    if kind in ("Max", "Min"):
        result = parts[0]
        for part in parts[1:]:
            result = tirx.max(result, part) if kind == "Max" else tirx.min(result, part)
        return result
    raise Unsupported(f"with the extent {expr}", "give the dimension a fixed extent")


# Functions of extents beyond sums, products and quotients, as torch's sympy has them.
#
# What Python computes in floating point between two integers (``int(n * 0.5)``, ``ceil(n / 2)``) is
# written over integers, so that extents can be compared, where that is the same for all of them.
# Extents up to this one are tried where a factor such as 0.3 is taken for 3 / 10.
_TRIED = 1 << 20
_LARGEST_DENOMINATOR = 1000
_ROUND: dict[str, Callable[[Any], Any]] = {
    "FloorToInt": np.floor,
    "CeilToInt": np.ceil,
    "TruncToInt": np.trunc,
    "RoundToInt": np.rint,
}
_INTEGERS: dict[str, Callable[..., Any]] = {
    "LShift": lambda a, b: a << b,
    "RShift": lambda a, b: a >> b,
    "BitwiseFn_bitwise_and": lambda a, b: a & b,
    "BitwiseFn_bitwise_or": lambda a, b: a | b,
    "BitwiseFn_bitwise_xor": lambda a, b: a ^ b,
    "Abs": tirx.abs,
}
_CONDITIONS: dict[str, Callable[..., Any]] = {
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "Equality": tirx.EQ,
    "Unequality": tirx.NE,
    "And": lambda *each: reduce(tirx.And, each),
    "Or": lambda *each: reduce(tirx.Or, each),
    "Not": tirx.Not,
}


def integer(expr: Any, written: Callable[[Any], Any]) -> Any:
    """Write an integer function.

    Parameters
    ----------
    expr : sympy.Expr
        Of torch, whose value is an integer.

    Returns
    -------
    tirx.PrimExpr or None
        int64; None for a function that is not known.
    """
    kind = type(expr).__name__
    if kind in _ROUND:
        return _rounded(kind, expr.args[0], written)
    if kind in ("Pow", "PowByNatural") and expr.args[1].is_Integer and expr.args[1] >= 0:
        base = written(expr.args[0])
        return reduce(lambda a, b: a * b, [base] * int(expr.args[1]), tirx.IntImm("int64", 1))
    if kind in _INTEGERS:
        return _INTEGERS[kind](*map(written, expr.args))
    return _chosen(expr, written) if kind == "Piecewise" else None


def _chosen(expr: Any, written: Callable[[Any], Any]) -> Any:
    """Write the first of several values whose condition holds, the last without one."""
    *before, (last, always) = expr.args
    conditions = [_condition(condition, written) for _, condition in before]
    if not always.is_Boolean or always != True or None in conditions:  # noqa: E712  (sympy's)
        return None
    result = written(last)
    for (value, _), condition in zip(reversed(before), reversed(conditions), strict=True):
        result = tirx.Select(condition, written(value), result)
    return result


def _rounded(kind: str, real: Any, written: Callable[[Any], Any]) -> Any:
    """Round an integer times a factor; None where integers do not give the same."""
    whole, up, down = _ratio(kind, real)
    if whole is None or (kind == "RoundToInt" and down % 2 == 0 and up % 2):  # halves
        return None
    numerator = written(whole) * up if up != 1 else written(whole)
    if kind == "CeilToInt":
        return tirx.floordiv(numerator + (down - 1), down)
    if kind == "RoundToInt":
        return tirx.floordiv(numerator * 2 + down, 2 * down)
    if kind == "FloorToInt" or (whole.is_Symbol and up > 0):
        return tirx.floordiv(numerator, down)
    return tirx.truncdiv(numerator, down)


def _ratio(kind: str, real: Any) -> tuple[Any, int, int]:
    """Read a real number as an integer expression times a ratio of integers; None for any other."""
    name = type(real).__name__
    if name == "IntTrueDiv" and real.args[1].is_Integer and real.args[1] > 0:
        return real.args[0], 1, int(real.args[1])
    if name != "Mul" or len(real.args) != 2:
        return None, 1, 1
    factor, other = real.args
    if not factor.is_Float or type(other).__name__ != "ToFloat":
        return None, 1, 1
    ratio = Fraction(float(factor)).limit_denominator(_LARGEST_DENOMINATOR)
    up, down = ratio.numerator, ratio.denominator
    counts = np.arange(_TRIED)
    same = _ROUND[kind](counts * float(factor)) == _ROUND[kind](counts * up / down)
    return (other.args[0], up, down) if same.all() else (None, 1, 1)


def _condition(expr: Any, written: Callable[[Any], Any]) -> Any:
    """Write a condition; None for one that is not known."""
    kind = type(expr).__name__
    if kind not in _CONDITIONS:
        return None
    if kind in ("And", "Or", "Not"):
        parts = [_condition(arg, written) for arg in expr.args]
        return None if any(part is None for part in parts) else _CONDITIONS[kind](*parts)
    return _CONDITIONS[kind](*map(written, expr.args))
