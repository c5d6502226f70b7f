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

Sums and products that provably stay in their type's range are left as they are: matrix products of
bytes, positions. Quotients and remainders are not: the simplifier multiplies divisors of a chain,
and a divisor by what the quotient is compared with, beyond the type's range. Constants near the
limits of a type are kept from it for the same reason.
"""

from typing import Any

import tvm
from tvm import ir, tirx

from ..._tvm.ir.structural import structural_map, structural_walk
from .expressions import call_name, choice, variables
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
_PLAIN = {PREFIX + name: kind for kind, name in (_ARITHMETIC | _DIVISIONS).items()}
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
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
    expr
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
        kind = type(expr)
        if kind in _COMPARISONS:
            return self._compare(expr)
        if not is_integer(dtype):
            return expr
        if isinstance(expr, tirx.Cast):
            return self._cast(expr)
        if kind in _ARITHMETIC:
            if fits(expr, self._ranges) and not self._may_gather(expr):
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

    def _may_gather(self, expr: Any) -> bool:
        """Whether the simplifier's sum or product of constants of a chain may leave the type.

        Of a number that is always the same, 0 for instance, any product is in range.
        """
        low, high = range_of(expr, self._ranges)
        return low == high or _is_large(expr.a) or _is_large(expr.b)

    def _compare(self, expr: Any) -> ir.Expr:
        """Hide a constant near a type's limits: ``x - 1 == c`` becomes ``x == c + 1``."""
        if not is_integer(str(expr.a.ty.dtype)):
            return expr
        operands = [_hidden(e) if _is_large(e) else e for e in (expr.a, expr.b)]
        return type(expr)(*operands) if any(_is_large(e) for e in (expr.a, expr.b)) else expr

    def _divide(self, expr: Any, name: str) -> ir.Expr:
        """Guard a quotient or remainder from the simplifier, and from divisors that end it."""
        dtype, divisor = str(expr.ty.dtype), expr.b
        low, high = range_of(divisor, self._ranges)
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
    expr
        An expression with such calls, or without.
    ranges : mapping of Var to (int, int)
        What index variables lie between.
    """

    def plain(call: ir.Call) -> ir.Expr:
        kind, name = _PLAIN.get(call_name(call)), call_name(call)
        if kind is not None:
            if all(isinstance(arg, tirx.IntImm) for arg in call.args):
                return call  # a constant that is hidden
            if kind in _DIVISIONS and not _divides_positions(call, ranges):
                return call
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


def _divides_positions(call: ir.Call, ranges: Bounds) -> bool:
    """Whether a quotient or remainder is one of index variables, by a number above 0."""
    dividend, divisor = call.args
    return (
        range_of(divisor, ranges)[0] > 0
        and not any(wraps(node) or isinstance(node, ir.TensorLoad) for node in _nodes(dividend))
        and all(var in ranges for var in variables(dividend))
    )


def _nodes(expr: ir.Expr) -> list[ir.Expr]:
    found: list[ir.Expr] = []
    structural_walk(expr, ((ir.Call, ir.TensorLoad), found.append))
    return found


def _is_large(expr: ir.Expr) -> bool:
    """Whether a constant is so large that the sum of a few may leave its type.

    The simplifier does so in types that indices have.
    """
    if not isinstance(expr, tirx.IntImm):
        return False
    bits = bits_of(str(expr.ty.dtype))
    return bits >= 32 and abs(int(expr)) > 1 << bits - 2


def _hidden(constant: tirx.IntImm) -> ir.Expr:
    """Write a constant as a sum that only this package adds."""
    dtype, value = str(constant.ty.dtype), int(constant)
    half = value // 2
    return wrapping("add", dtype, tirx.const(half, dtype), tirx.const(value - half, dtype))


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
