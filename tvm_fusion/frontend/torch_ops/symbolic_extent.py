"""Extents that torch computes with sympy, as expressions over a module's variables."""

from __future__ import annotations

from typing import Any

import sympy
import tvm
from tvm import tirx

from ..registry import Unsupported
from .symbolic_functions import integer


def expression(expr: Any, symbols: dict[str, tirx.Var]) -> Any:
    """Write an extent over variables.

    Parameters
    ----------
    expr : sympy.Expr
        With symbols of torch's names.
    symbols : dict of str to tirx.Var
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
