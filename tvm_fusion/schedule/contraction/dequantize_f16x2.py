"""Small integers inside of words, written as numbers of a half type two at a time.

Bits that are put into a half's fraction are a number: in units of its smallest one under the
exponent zero, of one under the exponent at which the fraction's lowest bit counts that. Fields that
are 16 bits apart become two such numbers by one mask. What they are too large by, the exponent's
share and what the weights' arithmetic subtracts, is left to those who add up products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ...fusion.expressions import load
from ..gpu.register_buffers import Registers, Word
from ..loops import index, local, sequence
from .dequantize import FLOATS, factors
from .unpack_int import Field, field_of

HALF = 16
FRACTION = {"float16": 10, "bfloat16": 7}  # bits
_BYTE = 8
# Bits around the fraction; what they add to the number, in units of the fraction's lowest bit; that
# unit. Of bfloat16's smallest numbers, which need no bits, products would vanish in float32.
_PATTERN = {"float16": 0, "bfloat16": 127 + 7 << 7}
_ONES = {"float16": 0, "bfloat16": 1 << 7}
_UNIT = {"float16": 2.0**-24, "bfloat16": 1.0}


@dataclass(frozen=True)
class Number:
    """A field minus a whole number, which a half type holds exactly."""

    field: Field
    zero: int

    @property
    def raised(self) -> int:
        """What is subtracted from the bits as an unsigned number."""
        return self.zero - min(self.field.range[0], 0)

    def fits(self, dtype: str) -> bool:
        """Whether a half type's fraction has room for the bits, and for what is subtracted."""
        bits = self.field.bits
        return bits <= FRACTION[dtype] and 0 <= self.raised < 1 << bits


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


@dataclass(frozen=True)
class Part:
    """Numbers that are written alike: as ``nought + number / factor``."""

    nought: float
    factor: float


class HalfNumbers:
    """The numbers of a thread's tile, written as halves in pairs.

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
        An order of the terms in which those of a part follow each other, and both of a pair, where
        they are terms of one column.
    array : Var
        The halves.
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
        self._parts = [self._part(low, number) for _, low, number in self._pairs]
        first = self._slots[0]
        self.order = sorted(
            range(len(first)), key=lambda term: (-self._part_of(0, term).factor, first[term])
        )
        self.array = local("numbers", [threads, 2 * len(self._pairs)], dtype)

    def parts(self, column: int, some: int) -> list[Part]:
        """Tell the part of each so many terms of a column, in order."""
        found = [self._part_of(column, term) for term in self.order]
        firsts = found[::some]
        if found != [part for part in firsts for _ in range(some)]:
            raise ValueError("numbers that are multiplied at once are not written alike")
        return firsts

    def fill(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Write all numbers of a copy of the words."""
        stmts = []
        for (word, low, number), pair in self._pairs.items():
            value = self._made(self._registers.bits(word, copy, thread), low, number)
            both = tirx.Ramp(index(2 * pair), index(1), 2)
            stmts.append(tirx.BufferStore(self.array, value, [thread, both]))
        return sequence(stmts)

    def value(self, column: int, term: int, thread: ir.Expr) -> ir.Expr:
        """Give a number as it has been written."""
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

    def _part_of(self, column: int, term: int) -> Part:
        return self._parts[self._slots[column][term] // 2]

    def _shift(self, low: int, bits: int) -> int:
        """Say how far a word is shifted; one shift serves all fields of the upper bytes."""
        fraction = FRACTION[self._dtype]
        if low + bits <= fraction:
            return 0
        return _BYTE if low >= _BYTE and low - _BYTE + bits <= fraction else low

    def _part(self, low: int, number: Number) -> Part:
        unit, step = _UNIT[self._dtype], 2.0 ** (low - self._shift(low, number.field.bits))
        return Part((_ONES[self._dtype] + number.raised * step) * unit, 1 / (step * unit))

    def _made(self, word: ir.Expr, low: int, number: Number) -> ir.Expr:
        bits = number.field.bits
        shift = self._shift(low, bits)
        if shift:
            word = tirx.shift_right(word, tirx.const(shift, "uint32"))
        low -= shift
        pattern = _PATTERN[self._dtype]
        if number.field.is_signed:
            pattern |= 1 << low + bits - 1
        made = tirx.bitwise_and(word, _both((1 << bits) - 1 << low))
        if pattern:
            made = tirx.bitwise_xor(made, _both(pattern))
        return tirx.reinterpret(f"{self._dtype}x2", made)


def _alike(a: Number, b: Number) -> bool:
    mine, other = a.field, b.field
    return (mine.bits, mine.is_signed, a.zero) == (other.bits, other.is_signed, b.zero)


def _both(half: int) -> ir.Expr:
    return tirx.const(half << HALF | half, "uint32")
