"""Values of index expressions at many points at once."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from .loads import Unreadable, function_name


def evaluate(expr: ir.Expr, env: Mapping[ir.Var, Any]) -> Any:
    """Evaluate an index or a condition at many points at once.

    Parameters
    ----------
    env
        Integers or integer arrays by variable.

    Raises
    ------
    Unreadable
        If `expr` contains a node that has no known value.
    """
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return np.asarray(expr.value, _dtype(expr))
    if isinstance(expr, ir.Var):
        if expr not in env:
            raise Unreadable(f"has an index that depends on {expr.name}")
        return env[expr]
    if isinstance(expr, tirx.Cast):
        return np.asarray(evaluate(expr.value, env)).astype(_dtype(expr))
    if isinstance(expr, tirx.Not):
        return np.logical_not(evaluate(expr.a, env))
    if isinstance(expr, tirx.Select):
        branches = (expr.condition, expr.true_value, expr.false_value)
        return np.where(*(evaluate(branch, env) for branch in branches))
    function: Callable[..., Any] | None
    if isinstance(expr, ir.Call):
        function, operands = _FUNCTIONS.get(function_name(expr) or ""), expr.args
    else:
        function = _OPERATORS.get(type(expr))
        operands = (expr.a, expr.b) if function else ()
    if function is None:
        raise Unreadable("has an index with a function that cannot be evaluated")
    with np.errstate(all="ignore"):  # both branches of a choice are evaluated everywhere
        return function(*(evaluate(operand, env) for operand in operands))


def _dtype(expr: ir.Expr) -> str:
    # Index arithmetic does not overflow in a correct program; wide integers keep numpy from it.
    dtype = str(expr.ty.dtype)
    return "int64" if dtype.startswith(("int", "uint")) else dtype


def _truncated_quotient(first: Any, second: Any) -> Any:
    if np.result_type(first, second).kind == "f":
        return np.true_divide(first, second)
    return np.sign(first) * np.sign(second) * (np.abs(first) // np.abs(second))


def _round_half_away(value: Any) -> Any:
    return np.copysign(np.floor(np.abs(value) + np.asarray(0.5, value.dtype)), value)


_OPERATORS: dict[type, Callable[..., Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Div: _truncated_quotient,
    tirx.Mod: np.fmod,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "if_then_else": np.where,
    "likely": lambda value: value,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _round_half_away,
    "nearbyint": np.rint,
    "trunc": np.trunc,
    "fabs": np.abs,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
