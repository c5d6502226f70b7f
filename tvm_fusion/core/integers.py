"""Integer arithmetic of user data: it wraps around, and TVM takes no part of it apart.

TIR has one kind of integer arithmetic, that of indices: it never overflows. The simplifier makes
``x`` of ``x * 6 // 6``, true of ``x + 1 > x``, and LLVM is told the same (``nsw``, ``nuw``).
Numbers of a model wrap around instead, as in PyTorch, ONNX Runtime and numpy. :func:`wrapped`
decides what is which, once, where an operator becomes TensorIR: all arithmetic on what is loaded,
except within indices, becomes calls of operators that only this package knows; passes and
simplifiers leave them alone, and :mod:`tvm_fusion.lower.integers` writes them for a target behind
the last of them.

    wrapping_add, wrapping_sub, wrapping_mul                  modulo 2^bits
    wrapping_floordiv, .._floormod, .._truncdiv, .._truncmod  0 where the divisor is 0
    wrapping_shift_left, wrapping_shift_right                 beyond the width: 0, or the sign
    wrapping_cast                                             low bits; of floats see there

What provably stays in its type's range is left as it is: matrix products of bytes, positions.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx

from .._tvm.structural import structural_map
from .expressions import call_name, choice
from .integer_ranges import Bounds, limits, range_of

PREFIX = "wrapping_"
# What symbolic extents are taken to stay below, where positions are numbers of a model.
LARGEST_EXTENT = 1 << 30
_ARITHMETIC: dict[type, str] = {tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul"}
_DIVISIONS: dict[type, str] = {
    tirx.Div: "truncdiv",
    tirx.Mod: "truncmod",
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod",
}
_SHIFTS: dict[type, str] = {tirx.LShift: "shift_left", tirx.RShift: "shift_right"}
_KINDS = {**_ARITHMETIC, **_DIVISIONS, **_SHIFTS}
NAMES = frozenset(PREFIX + name for name in (*_KINDS.values(), "cast"))
_PLAIN = {PREFIX + name: kind for kind, name in _ARITHMETIC.items()}
_PURE = tirx.CallEffectKind.Pure.value


def _register() -> None:
    for name in NAMES:
        for attribute, value in (("TCallEffectKind", _PURE), ("TVectorizable", True)):
            ir.register_op_attr(f"tirx.{name}", attribute, value)
        ir.register_op_attr(f"tirx.{name}", "TScriptPrinterName", name)


_register()


def wrapping(name: str, dtype: str, *operands: ir.Expr) -> ir.Call:
    """Call an operator of those above, ``add`` for instance."""
    return tirx.call_intrin(dtype, f"tirx.{PREFIX}{name}", *operands)


def wraps(expr: Any) -> bool:
    """Whether an expression is such a call."""
    return isinstance(expr, ir.Call) and call_name(expr) in NAMES


def wrapped(expr: ir.Expr, ranges: Bounds | None = None) -> ir.Expr:
    """Make arithmetic on what is loaded wrap around; indices of loads stay as they are.

    Parameters
    ----------
    expr : Expr
        A scalar or vector that is stored, or a condition.
    ranges : mapping of Var to (int, int), optional
        What index variables lie between, both included.

    Returns
    -------
    Expr
        The expression itself where nothing in it can overflow.
    """
    return _Wrapping(ranges or {}).rewritten(expr)[0]


class _Wrapping:
    """Rewrites expressions from the leaves up, each once."""

    def __init__(self, ranges: Bounds) -> None:
        self._ranges = ranges
        self._done: dict[int, tuple[ir.Expr, bool, ir.Expr]] = {}
        self._data: set[int] = set()  # variables that stand for data

    def rewritten(self, expr: ir.Expr) -> tuple[ir.Expr, bool]:
        """Return an expression, and whether it depends on data."""
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr, False
        known = self._done.get(hash(expr))
        if known is None:
            self._done[hash(expr)] = known = (*self._rewritten(expr), expr)
        return known[0], known[1]

    def _rewritten(self, expr: ir.Expr) -> tuple[ir.Expr, bool]:
        if isinstance(expr, ir.TensorLoad):
            return expr, True
        if isinstance(expr, ir.Var):
            return expr, hash(expr) in self._data
        if isinstance(expr, tirx.Let):
            value, is_data = self.rewritten(expr.value)
            if is_data:
                self._data.add(hash(expr.var))
            body, of_body = self.rewritten(expr.body)
            same = value.same_as(expr.value) and body.same_as(expr.body)
            return expr if same else tirx.Let(expr.var, value, body), is_data or of_body
        operands = operands_of(expr)
        found = [self.rewritten(operand) for operand in operands]
        is_data = any(data for _, data in found)
        new = [operand for operand, _ in found]
        if any(not a.same_as(b) for a, b in zip(new, operands, strict=True)):
            expr = with_operands(expr, new)
        return (self._wrap(expr) if is_data else expr), is_data

    def _wrap(self, expr: ir.Expr) -> ir.Expr:
        """Replace the outermost operation of an expression on data, if it may overflow."""
        dtype = str(expr.ty.dtype)
        if not is_integer(dtype):
            return expr
        if isinstance(expr, tirx.Cast):
            return self._cast(expr)
        kind = type(expr)
        if kind in _ARITHMETIC:
            if fits(expr, self._ranges):
                return expr
            return wrapping(_ARITHMETIC[kind], dtype, expr.a, expr.b)
        if kind in _DIVISIONS:
            return self._divide(expr, _DIVISIONS[kind])
        if kind in _SHIFTS:
            return self._shift(expr)
        return expr

    def _cast(self, expr: tirx.Cast) -> ir.Expr:
        source, dtype = str(expr.value.ty.dtype), str(expr.ty.dtype)
        if "float" in source:
            value = expr.value
            if not source.startswith(("float32", "float64")):
                value = tirx.Cast(_with_lanes("float32", source), value)
            return wrapping("cast", dtype, value)
        if not is_integer(source):
            return expr
        return expr if fits(expr, self._ranges) else wrapping("cast", dtype, expr.value)

    def _divide(self, expr: Any, name: str) -> ir.Expr:
        """Guard a quotient or remainder whose divisor may be 0 or, of INT_MIN, -1."""
        dtype, divisor = str(expr.ty.dtype), expr.b
        low, high = range_of(divisor, self._ranges)
        if low > 0 or high < -1:
            return expr
        if low == high == -1:
            zero = tirx.const(0, dtype)
            return zero if name.endswith("mod") else wrapping("sub", dtype, zero, expr.a)
        return wrapping(name, dtype, expr.a, divisor)

    def _shift(self, expr: Any) -> ir.Expr:
        low, high = range_of(expr.b, self._ranges)
        inside = low >= 0 and high < bits_of(str(expr.ty.dtype))
        if inside and (isinstance(expr, tirx.RShift) or fits(expr, self._ranges)):
            return expr
        return wrapping(_SHIFTS[type(expr)], str(expr.ty.dtype), expr.a, expr.b)


def unwrapped(expr: ir.Expr, ranges: Bounds) -> ir.Expr:
    """Turn sums and products that cannot overflow within ranges into index arithmetic again.

    What was loaded may have become positions: an ``arange`` that is computed where it is read.

    Parameters
    ----------
    expr : Expr
        An expression with such calls, or without.
    ranges : mapping of Var to (int, int)
        What index variables lie between.
    """

    def plain(call: ir.Call) -> ir.Expr:
        kind, name = _PLAIN.get(call_name(call)), call_name(call)
        if kind is not None:
            made = kind(*call.args)
        elif name == PREFIX + "cast" and is_integer(str(call.args[0].ty.dtype)):
            made = tirx.Cast(str(call.ty.dtype), call.args[0])
        else:
            return call
        return made if fits(made, ranges) else call

    return structural_map(expr, (ir.Call, plain), order="post")


def fits(expr: ir.Expr, ranges: Bounds) -> bool:
    """Whether an integer expression's exact result provably lies in the range of its type."""
    low, high = range_of(expr, ranges, exact=True)
    least, most = limits(str(expr.ty.dtype))
    return least <= low and high <= most


def is_integer(dtype: str) -> bool:
    """Whether a type, a vector's too, is one of integers other than bool."""
    return dtype.startswith(("int", "uint"))


def bits_of(dtype: str) -> int:
    """Count the bits of an element."""
    return int(tvm.DataType(dtype).bits)


def operands_of(expr: Any) -> list[ir.Expr]:
    """List the operands of a scalar expression's outermost node, indices of loads excepted."""
    if isinstance(expr, ir.Call):
        return [arg for arg in expr.args if _is_number(arg)]
    chosen = choice(expr)
    if chosen is not None:
        return list(chosen)
    if isinstance(expr, tirx.Cast | tirx.Broadcast):
        return [expr.value]
    if isinstance(expr, tirx.Ramp):
        return [expr.base, expr.stride]
    if isinstance(expr, tirx.Not | tirx.BitwiseNot):
        return [expr.a]
    if isinstance(expr, tirx.Shuffle):
        return list(expr.vectors)
    if hasattr(expr, "a") and hasattr(expr, "b"):
        return [expr.a, expr.b]
    return []


def _is_number(arg: Any) -> bool:
    """Whether an argument is a number or a vector: calls have names and types as well."""
    return isinstance(arg, ir.Expr) and isinstance(arg.ty, ir.PrimType)


def with_operands(expr: Any, new: list[ir.Expr]) -> ir.Expr:
    """Exchange what :func:`operands_of` lists."""
    if isinstance(expr, ir.Call):
        given = iter(new)
        args = [next(given) if _is_number(arg) else arg for arg in expr.args]
        return ir.Call(expr.op, args, expr.attrs, expr.ty_args, None, expr.ty)
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(str(expr.ty.dtype), new[0])
    if isinstance(expr, tirx.Broadcast):
        return tirx.Broadcast(new[0], expr.lanes)
    if isinstance(expr, tirx.Ramp):
        return tirx.Ramp(new[0], new[1], expr.lanes)
    if isinstance(expr, tirx.Shuffle):
        return tirx.Shuffle(new, list(expr.indices))
    return type(expr)(*new)


def _with_lanes(element: str, like: str) -> str:
    lanes = like.partition("x")[2]
    return f"{element}x{lanes}" if lanes else element
