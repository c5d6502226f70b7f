"""Small integers inside of words, made numbers of a half type two at a time.

Bits that are put into a half's fraction are a number, under an exponent at which the lowest bit of
the fraction counts one. Fields that are 16 bits apart become two such numbers by one mask, and one
multiply-add of pairs takes the exponent's share away, together with what the weights' arithmetic
subtracts. Both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ...fusion.expressions import load
from ..loops import index, local, sequence
from .bit_fields import Field, field_of
from .registers import Registers, Word
from .weights import FLOATS, factors

HALF = 16
FRACTION = {"float16": 10, "bfloat16": 7}  # bits
_BIAS = {"float16": 15, "bfloat16": 127}
_BYTE = 8


@dataclass(frozen=True)
class Number:
    """A field minus a whole number, which a half type holds exactly."""

    field: Field
    zero: int

    def fits(self, dtype: str) -> bool:
        """Whether every value, and what is subtracted on the way, is one of a half type."""
        low, high = self.field.range
        one = 1 << FRACTION[dtype]
        least, most = low - self.zero, high - self.zero
        raised = self.zero - min(low, 0)
        fits = self.field.bits <= FRACTION[dtype] and -one < raised < one
        return fits and -2 * one <= least and most <= 2 * one


def scaled_number(expr: ir.Expr) -> tuple[Number, list[ir.Expr]] | None:
    """Read a weight as a number times other factors; ``None`` where it is something else.

    Parameters
    ----------
    expr : Expr
        Over variables that stand for elements.
    """
    while isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) in FLOATS:
        expr = expr.value
    parts = [(factor, number_of(factor)) for factor in factors(expr)]
    numbers = [number for _, number in parts if number is not None]
    if len(numbers) != 1:
        return None
    return numbers[0], [factor for factor, number in parts if number is None]


def number_of(expr: ir.Expr) -> Number | None:
    """Read an expression as a field minus a whole number."""
    if isinstance(expr, tirx.Cast):
        if str(expr.value.ty.dtype) in FLOATS:
            return number_of(expr.value)
        field = field_of(expr.value)
        return None if field is None else Number(field, 0)
    if isinstance(expr, tirx.Sub) and isinstance(expr.b, tirx.FloatImm):
        found, zero = number_of(expr.a), float(expr.b.value)
        if found is not None and zero.is_integer():
            return Number(found.field, found.zero + int(zero))
    return None


class HalfNumbers:
    """The numbers of a thread's tile, made in pairs.

    Parameters
    ----------
    numbers : sequence of sequence of Number
        Of each column, the terms'.
    registers : Registers
        What holds the words.
    dtype : str
        The half type.
    threads : int
        Of the block, whose number is the arrays' first index.

    Attributes
    ----------
    order : list of int
        An order of the terms in which both of a pair follow each other, where they are terms of
        one column.
    array : Var
        The numbers.
    """

    def __init__(
        self,
        numbers: Sequence[Sequence[Number]],
        registers: Registers,
        dtype: str,
        threads: int,
    ) -> None:
        self._registers, self._dtype = registers, dtype
        self._pairs: dict[tuple[Word, int, Number], int] = {}
        self._slots = [[self._slot(number) for number in column] for column in numbers]
        self.order = sorted(range(len(numbers[0])), key=lambda term: self._slots[0][term])
        self.array = local("numbers", [threads, 2 * len(self._pairs)], dtype)

    def fill(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Make all numbers of a copy of the words."""
        stmts = []
        for (word, low, number), pair in self._pairs.items():
            value = self._made(self._registers.bits(word, copy, thread), low, number)
            both = tirx.Ramp(index(2 * pair), index(1), 2)
            stmts.append(tirx.BufferStore(self.array, value, [thread, both]))
        return sequence(stmts)

    def value(self, column: int, term: int, thread: ir.Expr) -> ir.Expr:
        """Give a number that has been made."""
        return load(self.array, [thread, index(self._slots[column][term])])

    def _slot(self, number: Number) -> int:
        found = self._registers.place_in_word(number.field.element)
        if found is None:
            raise ValueError("an element of a tile is no part of a word")
        word, start = found
        upper, low = divmod(start + number.field.low, HALF)
        # All fields of an element are alike but for where they are.
        known = Field(number.field.element, low, number.field.bits, number.field.is_signed)
        key = next(
            (k for k in self._pairs if k[:2] == (word, low) and _alike(k[2], number)),
            (word, low, Number(known, number.zero)),
        )
        return 2 * self._pairs.setdefault(key, len(self._pairs)) + upper

    def _made(self, word: ir.Expr, low: int, number: Number) -> ir.Expr:
        bits, fraction = number.field.bits, FRACTION[self._dtype]
        shift = 0
        if low + bits > fraction:  # one shift serves all fields of the halves' upper bytes
            shift = _BYTE if low >= _BYTE and low - _BYTE + bits <= fraction else low
            word = tirx.shift_right(word, tirx.const(shift, "uint32"))
        low -= shift
        pattern = _BIAS[self._dtype] + fraction << fraction
        zero = (1 << fraction - low) + number.zero
        if number.field.is_signed:
            pattern |= 1 << low + bits - 1
            zero += 1 << bits - 1
        masked = tirx.bitwise_and(word, _both((1 << bits) - 1 << low))
        made = tirx.reinterpret(f"{self._dtype}x2", tirx.bitwise_xor(masked, _both(pattern)))
        return made * self._twice(2.0**-low) - self._twice(zero)

    def _twice(self, value: float) -> ir.Expr:
        return tirx.Broadcast(tirx.const(float(value), self._dtype), 2)


def _alike(a: Number, b: Number) -> bool:
    mine, other = a.field, b.field
    return (mine.bits, mine.is_signed, a.zero) == (other.bits, other.is_signed, b.zero)


def _both(half: int) -> ir.Expr:
    return tirx.const(half << HALF | half, "uint32")
