"""Dequantization of weights in float32, in the main loop of a skinny GEMM.

Half-type arithmetic on integers, such as ``(half(q) - 8) * scale``, is done in float32. Factors
that all k of a tile share, such as a group's scale, multiply the tile's sum, not each weight.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import tvm_ffi
from tvm import DataType, ir, tirx

from ....core.tir.expressions import call_name
from ....core.tir.loops import find

FLOATS = ("float16", "bfloat16", "float32")
Word = Callable[[ir.Var], "tuple[ir.Expr, int] | None"]


def has_integers(expr: ir.Expr) -> bool:
    """Whether an expression reads integers: quantized weights."""
    kinds = {str(x.ty.dtype) for x in find(expr, ir.TensorLoad)}
    return any(kind.startswith(("int", "uint")) for kind in kinds)


def widened(expr: ir.Expr, word: Word) -> ir.Expr:
    """Compute sums, differences and products of half types in float32, unpacking integers.

    Parameters
    ----------
    expr
        Over variables that stand for elements.
    word
        See :func:`unpack_to_float`.
    """
    if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul)) and str(expr.ty.dtype) in FLOATS:
        return _joined(type(expr)(widened(expr.a, word), widened(expr.b, word)))
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float32")
    if isinstance(expr, tirx.Cast) and str(expr.ty.dtype) in FLOATS:
        if str(expr.value.ty.dtype) in FLOATS:
            return widened(expr.value, word)
        made = unpack_to_float(expr.value, word)
        return tirx.Cast("float32", expr.value) if made is None else made
    return expr if str(expr.ty.dtype) == "float32" else tirx.Cast("float32", expr)


def _joined(expr: ir.Expr) -> ir.Expr:
    """Subtract a zero point and the offset of unpacked bits at once."""
    if not isinstance(expr, tirx.Sub) or not isinstance(expr.a, tirx.Sub):
        return expr
    made, numbers = expr.a.a, (expr.a.b, expr.b)
    if call_name(made) != "reinterpret" or not all(isinstance(n, tirx.FloatImm) for n in numbers):
        return expr
    total = math.fsum(float(n.value) for n in numbers)
    is_exact = total.is_integer() and 0 <= total < 1 << 24
    return made - tirx.const(total, "float32") if is_exact else expr


def factors(expr: ir.Expr) -> list[ir.Expr]:
    """List the factors of a product."""
    return [*factors(expr.a), *factors(expr.b)] if isinstance(expr, tirx.Mul) else [expr]


def common_factors(terms: Sequence[ir.Expr]) -> tuple[list[ir.Expr], ir.Expr | None]:
    """Factor out what all products of one form have in common.

    Returns
    -------
    list of Expr
        The products without the common factors.
    Expr or None
        The product of the common factors; ``None`` without any.
    """
    split = [factors(term) for term in terms]
    first = split[0]
    is_common = [
        len(terms) > 1 and all(tvm_ffi.structural_equal(first[n], other[n]) for other in split)
        for n in range(len(first))
    ]
    if not any(is_common) or all(is_common):
        return list(terms), None
    left = [
        reduce(mul, [f for f, known in zip(own, is_common, strict=True) if not known])
        for own in split
    ]
    return left, reduce(mul, [f for f, known in zip(first, is_common, strict=True) if known])


# Unpacking of int4/int8 fields to float32 by mask and exponent bits, without conversions.
#
# A GPU converts 16 integers a cycle and multiprocessor, but executes 128 multiply-adds. Bits in a
# float32's fraction are a number: under the exponent of ``2**(23 - b)`` the bit ``b`` counts one.
# Masking a word and adding the exponent is one lop3; subtracting ``2**(23 - b)`` again is exact.
_FRACTION = 23  # bits of a float32's fraction
_BIAS = 127
_WORD = 32


@dataclass(frozen=True)
class BitField:
    """Some bits of an integer element."""

    element: ir.Var  # the variable that stands for the element
    # The lowest bit, and the number of bits.
    low: int
    bits: int
    is_signed: bool  # whether the highest bit is a sign

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest value."""
        if self.is_signed:
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1


def bit_field_of(expr: ir.Expr) -> BitField | None:
    """Read an integer expression as a bit field of one element; ``None`` for anything else."""
    dtype = DataType(str(expr.ty.dtype))
    if isinstance(expr, ir.Var):
        code = str(dtype)
        known = code.startswith(("int", "uint"))
        return BitField(expr, 0, dtype.bits, code.startswith("int")) if known else None
    if isinstance(expr, tirx.Cast):
        inner = bit_field_of(expr.value)
        return inner if inner is not None and _holds(str(dtype), inner.range) else None
    if not isinstance(expr, (tirx.RShift, tirx.BitwiseAnd)) or not isinstance(expr.b, tirx.IntImm):
        return None
    inner, number = bit_field_of(expr.a), int(expr.b)
    if inner is None:
        return None
    if isinstance(expr, tirx.RShift) and 0 <= number < inner.bits:
        return BitField(inner.element, inner.low + number, inner.bits - number, inner.is_signed)
    if isinstance(expr, tirx.BitwiseAnd) and number > 0 and number & (number + 1) == 0:
        bits = number.bit_length()
        if bits <= inner.bits:
            return BitField(inner.element, inner.low, bits, False)
        return None if inner.is_signed else inner
    return None


def unpack_to_float(
    expr: ir.Expr, word: Callable[[ir.Var], tuple[ir.Expr, int] | None]
) -> ir.Expr | None:
    """Express an integer expression as float32 without a conversion; ``None`` if impossible.

    Parameters
    ----------
    expr
        Of an integer type, over variables that stand for elements.
    word
        Gives the 32 bits that hold an element, and its first bit.
    """
    if isinstance(expr, tirx.IntImm):
        return tirx.const(float(int(expr)), "float32") if abs(int(expr)) < 1 << 23 else None
    if isinstance(expr, (tirx.Add, tirx.Sub)) and _is_exact(expr):
        parts = [unpack_to_float(part, word) for part in (expr.a, expr.b)]
        return None if None in parts else type(expr)(*parts)
    found = bit_field_of(expr)
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
    found = bit_field_of(expr)
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
