"""Convert symbolic extents between TIR expressions and strings such as ``batch*4``."""

import ast
import operator
import re
from collections.abc import Mapping
from typing import Any

from tvm import tirx

_TO_TIR = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
# Operator, and how tightly it binds.
_FROM_TIR = {
    tirx.Add: ("+", 1),
    tirx.Sub: ("-", 1),
    tirx.Mul: ("*", 2),
    tirx.FloorDiv: ("//", 2),
    tirx.FloorMod: ("%", 2),
    # Extents are never negative, so truncating division is the one that rounds down.
    tirx.Div: ("//", 2),
    tirx.Mod: ("%", 2),
}


def to_tir(extent: int | str, values: Mapping[str, Any]) -> Any:
    """Build the extent over the given values.

    Parameters
    ----------
    extent
        A number, a dimension's name or an expression such as ``batch*4``.
    values : mapping of str to (int or tvm.tirx.Var)
        What each name stands for.

    Returns
    -------
    int or tvm.ir.Expr
        An int where all values are.
    """

    def build(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp):
            return _TO_TIR[type(node.op)](build(node.left), build(node.right))
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.Constant):
            return node.value
        raise ValueError(f"{extent!r} is not an extent")

    return extent if isinstance(extent, int) else build(ast.parse(extent, mode="eval").body)


def names_in(extent: int | str) -> set[str]:
    """Return the names of dimensions in an extent."""
    found = re.findall(r"\b[A-Za-z_]\w*", str(extent))
    return {name for name in found if name not in ("max", "min")}


def from_tir(extent: Any) -> int | str:
    """Write an extent over the names of its variables, in Python's syntax: ``batch*4``."""
    text, _ = _spell(extent)
    return text if not text.isdigit() else int(text)


def _spell(expr: Any) -> tuple[str, int]:
    if isinstance(expr, int):
        return str(expr), 3
    if isinstance(expr, tirx.IntImm):
        return str(expr.value), 3 if expr.value >= 0 else 0
    if isinstance(expr, tirx.Cast):
        return _spell(expr.value)
    if type(expr) in _FROM_TIR:
        sign, level = _FROM_TIR[type(expr)]
        (left, left_level), (right, right_level) = _spell(expr.a), _spell(expr.b)
        left = left if left_level >= level else f"({left})"
        # Equal levels associate to the left; (a*b)//c differs from a*(b//c).
        right = right if right_level > level else f"({right})"
        return f"{left}{sign}{right}", level
    if isinstance(expr, (tirx.Max, tirx.Min)):
        name = "max" if isinstance(expr, tirx.Max) else "min"
        return f"{name}({_spell(expr.a)[0]},{_spell(expr.b)[0]})", 3
    if hasattr(expr, "name"):
        return str(expr.name), 3
    return str(expr), 0
