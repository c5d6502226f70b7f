"""Bounds of integer expressions as exact numbers, over data of any value of its type."""

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import ir, tirx

from .expressions import call_name, choice

Interval = tuple[int, int]  # both included
Bounds = Mapping[ir.Var, Interval]
_ANY = (-(1 << 200), 1 << 200)
# Operators of :mod:`tvm_fusion.core.tir.integers`, as what they compute where nothing overflows.
_WRAPPING: dict[str, type] = {
    "wrapping_add": tirx.Add,
    "wrapping_sub": tirx.Sub,
    "wrapping_mul": tirx.Mul,
    "wrapping_truncdiv": tirx.Div,
    "wrapping_truncmod": tirx.Mod,
    "wrapping_floordiv": tirx.FloorDiv,
    "wrapping_floormod": tirx.FloorMod,
    "wrapping_shift_left": tirx.LShift,
    "wrapping_shift_right": tirx.RShift,
}


def limits(dtype: str) -> Interval:
    """Return the least and the largest number of an integer type; bool is 0 or 1."""
    element = dtype.partition("x")[0]
    if element == "bool":
        return 0, 1
    bits = int(tvm.DataType(element).bits)
    return (0, (1 << bits) - 1) if element[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def range_of(expr: Any, bounds: Bounds, exact: bool = False) -> Interval:
    """Bound an integer expression.

    Parameters
    ----------
    expr : Expr
        Of an integer type, or bool.
    bounds : mapping of Var to (int, int)
        What is known of variables; others hold any number of their type.
    exact
        Bound what the outermost operation gives before it is put into its type.

    Returns
    -------
    tuple of (int, int)
        Least and largest number, both included.
    """
    dtype = str(expr.ty.dtype)
    if not dtype.startswith(("int", "uint", "bool")):
        return _ANY
    whole = limits(dtype)
    if isinstance(expr, tirx.IntImm):
        return int(expr.value), int(expr.value)
    found = _found(expr, bounds)
    if found is None:
        return _ANY if exact else whole
    # What leaves the type wraps around: anything then.
    inside = whole[0] <= found[0] and found[1] <= whole[1]
    return found if exact or inside else whole


def _found(expr: Any, bounds: Bounds) -> Interval | None:
    """Bound the exact result of the outermost operation; None if nothing is known of it."""
    if isinstance(expr, ir.Var):
        return bounds.get(expr, limits(str(expr.ty.dtype)))
    if isinstance(expr, ir.TensorLoad):
        return limits(str(expr.ty.dtype))
    if isinstance(expr, tirx.Cast):
        return range_of(expr.value, bounds)
    if isinstance(expr, tirx.Broadcast):
        return range_of(expr.value, bounds)
    chosen = choice(expr)
    if chosen is not None:
        first, second = (range_of(value, bounds) for value in chosen[1:])
        return min(first[0], second[0]), max(first[1], second[1])
    name = call_name(expr)
    if name == "likely" or (name == "wrapping_cast" and _is_integer(expr.args[0])):
        return range_of(expr.args[0], bounds)
    if name in _WRAPPING:
        return _of_operator(_WRAPPING[name], *(range_of(arg, bounds) for arg in expr.args))
    if not hasattr(expr, "a") or not hasattr(expr, "b"):
        return None
    if str(expr.ty.dtype).startswith("bool"):
        return 0, 1
    return _of_operator(type(expr), range_of(expr.a, bounds), range_of(expr.b, bounds))


def _is_integer(expr: Any) -> bool:
    return str(expr.ty.dtype).startswith(("int", "uint"))


def _of_operator(kind: type, a: Interval, b: Interval) -> Interval | None:
    if kind is tirx.Add:
        return a[0] + b[0], a[1] + b[1]
    if kind is tirx.Sub:
        return a[0] - b[1], a[1] - b[0]
    if kind is tirx.Mul:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if kind is tirx.Min:
        return min(a[0], b[0]), min(a[1], b[1])
    if kind is tirx.Max:
        return max(a[0], b[0]), max(a[1], b[1])
    if kind is tirx.FloorMod and b[0] > 0:
        return 0, b[1] - 1
    if kind is tirx.Mod and b[0] > 0:
        return (0 if a[0] >= 0 else 1 - b[1]), b[1] - 1
    if kind is tirx.FloorDiv and b[0] > 0:
        corners = [x // y for x in a for y in b]
        return min(corners), max(corners)
    if kind is tirx.Div and b[0] > 0:
        return min(a[0], 0), max(a[1], 0)
    if kind is tirx.BitwiseAnd:
        most = [bound[1] for bound in (a, b) if bound[0] >= 0]
        return (0, min(most)) if most else None
    if kind in (tirx.LShift, tirx.RShift):
        return _of_shift(kind, a, b)
    return None


def _of_shift(kind: type, a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] >= 64:
        return None
    corners = [x << y if kind is tirx.LShift else x >> y for x in a for y in b]
    return min(corners), max(corners)
