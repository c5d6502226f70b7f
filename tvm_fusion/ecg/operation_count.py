"""Arithmetic of expressions on tensor elements, in units of one addition."""

from collections.abc import Collection, Sequence
from typing import Any

from tvm import ir, tirx

from ..core.tir.expressions import call_name
from ..core.tir.integers import NAMES

# In units of one addition. Division, square roots: a reciprocal estimate and Newton's steps.
# Transcendentals: range reduction and a polynomial, or a special function unit at a quarter rate
# with what surrounds it. The figures need to be right within a factor of two only.
_DIVISION = 4
_TRANSCENDENTAL = 16
_WEIGHTS = {
    **dict.fromkeys(("sqrt", "rsqrt", "fmod", "ldexp"), _DIVISION),
    **dict.fromkeys(("fabs", "abs", "floor", "ceil", "round", "trunc", "nearbyint", "fma"), 1),
    **dict.fromkeys(("copysign", "isnan", "isinf", "isfinite", "likely"), 1),
    **dict.fromkeys(("shift_left", "shift_right"), 1),
    **dict.fromkeys((f"bitwise_{name}" for name in ("and", "or", "xor", "not")), 1),
    **{name: _DIVISION if name.endswith(("div", "mod")) else 1 for name in NAMES},
}
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.And, tirx.Or, tirx.Not),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def operations(*exprs: ir.Expr, bindings: Sequence[tuple[ir.Var, ir.Expr]] = ()) -> int:
    """Count the arithmetic of expressions as :func:`tvm_fusion.ecg.work.flops` does.

    Parameters
    ----------
    bindings
        Names that they use, in an order in which each uses only earlier ones; each counts once.
    """
    elements: set[int] = set()
    total = 0
    for var, value in bindings:
        count, _, reads = arithmetic(value, elements)
        total += count
        if reads:
            elements.add(hash(var))
    return total + sum(arithmetic(expr, elements)[0] for expr in exprs)


def arithmetic(expr: Any, elements: Collection[int] = ()) -> tuple[int, bool, bool]:
    """Count the arithmetic of one expression.

    Parameters
    ----------
    elements
        Hashes of variables that stand for expressions that read a tensor.

    Returns
    -------
    tuple of (int, bool, bool)
        Its operations, whether one is an intrinsic above a square root, and whether it reads
        a tensor.
    """
    if isinstance(expr, ir.TensorLoad) or (isinstance(expr, ir.Var) and hash(expr) in elements):
        return 0, False, True
    parts = [arithmetic(part, elements) for part in _operands(expr)]
    reads = any(part[2] for part in parts)
    expensive = any(part[1] for part in parts)
    operations = sum(part[0] for part in parts)
    if isinstance(expr, tirx.Select) or call_name(expr) == "if_then_else":
        condition, then, otherwise = parts
        return condition[0] + condition[2] + max(then[0], otherwise[0]), expensive, reads
    if not reads:  # a constant, or arithmetic on positions
        return 0, False, False
    if isinstance(expr, _ARITHMETIC):
        operations += 1
    elif isinstance(expr, _DIVISIONS):
        operations += _DIVISION
    elif isinstance(expr, ir.Call):
        weight = _WEIGHTS.get(call_name(expr), _TRANSCENDENTAL)
        operations, expensive = operations + weight, expensive or weight == _TRANSCENDENTAL
    return operations, expensive, reads


def _operands(expr: Any) -> list[Any]:
    if isinstance(expr, ir.Call):
        return list(expr.args)
    if isinstance(expr, tirx.Select):
        return [expr.condition, expr.true_value, expr.false_value]
    if isinstance(expr, tirx.Let):
        return [expr.value, expr.body]
    if isinstance(expr, (*_ARITHMETIC, *_DIVISIONS)):
        return [expr.a] if isinstance(expr, tirx.Not) else [expr.a, expr.b]
    if isinstance(expr, (tirx.Cast, tirx.Broadcast)):
        return [expr.value]
    return []
