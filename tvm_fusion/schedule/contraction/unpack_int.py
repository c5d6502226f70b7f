"""Small integers inside of bytes and words, made floating point numbers without conversions.

A GPU converts 16 integers a cycle and multiprocessor where it multiplies and adds 128 numbers. Bits
that are put into a float32's fraction are a number, too: under the exponent of ``2**(23 - b)`` the
bit ``b`` counts one. Masking the bits of a word and adding the exponent is one instruction, taking
``2**(23 - b)`` away again is another, and exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import DataType, ir, tirx

_FRACTION = 23  # bits of a float32's fraction
_BIAS = 127
_WORD = 32


@dataclass(frozen=True)
class Field:
    """Some bits of an integer element, as a number.

    Attributes
    ----------
    element : Var
        Stands for the element.
    low, bits : int
        The lowest bit, and how many there are.
    is_signed : bool
        Whether the highest of them is a sign.
    """

    element: ir.Var
    low: int
    bits: int
    is_signed: bool

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest number."""
        if self.is_signed:
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1


def field_of(expr: ir.Expr) -> Field | None:
    """Read an integer expression as bits of one element; ``None`` where it is something else."""
    dtype = DataType(str(expr.ty.dtype))
    if isinstance(expr, ir.Var):
        code = str(dtype)
        known = code.startswith(("int", "uint"))
        return Field(expr, 0, dtype.bits, code.startswith("int")) if known else None
    if isinstance(expr, tirx.Cast):
        inner = field_of(expr.value)
        return inner if inner is not None and _holds(str(dtype), inner.range) else None
    if not isinstance(expr, (tirx.RShift, tirx.BitwiseAnd)) or not isinstance(expr.b, tirx.IntImm):
        return None
    inner, number = field_of(expr.a), int(expr.b)
    if inner is None:
        return None
    if isinstance(expr, tirx.RShift) and 0 <= number < inner.bits:
        return Field(inner.element, inner.low + number, inner.bits - number, inner.is_signed)
    if isinstance(expr, tirx.BitwiseAnd) and number > 0 and number & (number + 1) == 0:
        bits = number.bit_length()
        if bits <= inner.bits:
            return Field(inner.element, inner.low, bits, False)
        return None if inner.is_signed else inner
    return None


def as_float(expr: ir.Expr, word: Callable[[ir.Var], tuple[ir.Expr, int] | None]) -> ir.Expr | None:
    """Express an integer expression as float32, without a conversion; ``None`` where it needs one.

    Parameters
    ----------
    expr : Expr
        Of an integer type, over variables that stand for elements.
    word : callable
        Gives the word of 32 bits that holds an element, and at which bit that begins.
    """
    if isinstance(expr, tirx.IntImm):
        return tirx.const(float(int(expr)), "float32") if abs(int(expr)) < 1 << 23 else None
    if isinstance(expr, (tirx.Add, tirx.Sub)) and _is_exact(expr):
        parts = [as_float(part, word) for part in (expr.a, expr.b)]
        return None if None in parts else type(expr)(*parts)
    found = field_of(expr)
    if found is None or found.bits > _FRACTION - 7:
        return None
    place = word(found.element)
    if place is None:
        return None
    bits, at = place[0], place[1] + found.low
    if at + found.bits > _FRACTION:
        # One shift serves all fields of the word's upper half.
        shift = _WORD - 20 if at >= _WORD - 20 and found.bits <= 4 else _WORD // 2
        if at < shift:
            return None
        bits, at = tirx.shift_right(bits, tirx.const(shift, "uint32")), at - shift
    mask = (1 << found.bits) - 1 << at
    pattern = _BIAS + _FRACTION - at << _FRACTION
    zero = 1 << _FRACTION - at
    if found.is_signed:
        pattern |= 1 << at + found.bits - 1
        zero += 1 << found.bits - 1
    made = tirx.bitwise_and(bits, tirx.const(mask, "uint32"))
    made = tirx.bitwise_xor(made, tirx.const(pattern, "uint32"))
    return tirx.reinterpret("float32", made) - tirx.const(float(zero), "float32")


def _range(expr: ir.Expr) -> tuple[int, int] | None:
    if isinstance(expr, tirx.IntImm):
        return int(expr), int(expr)
    found = field_of(expr)
    return None if found is None else found.range


def _is_exact(expr: tirx.Add | tirx.Sub) -> bool:
    """Whether a sum or difference of fields stays within its type."""
    first, second = _range(expr.a), _range(expr.b)
    if first is None or second is None:
        return False
    (low, high), (least, most) = first, second
    if isinstance(expr, tirx.Sub):
        least, most = -most, -least
    return _holds(str(expr.ty.dtype), (low + least, high + most))


def _holds(dtype: str, numbers: tuple[int, int]) -> bool:
    """Whether an integer type has both numbers."""
    bits = DataType(dtype).bits
    if dtype.startswith("uint"):
        low, high = 0, (1 << bits) - 1
    elif dtype.startswith("int"):
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    else:
        return False
    return low <= numbers[0] and numbers[1] <= high
