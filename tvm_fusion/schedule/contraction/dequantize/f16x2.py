"""Dequantization of int4/int8 to pairs of half-type numbers by one mask, without conversions.

Integer bits in a half's fraction are a number: float16 counts them in units of its smallest
subnormal, bfloat16 in units of one under the exponent of 2**7. Two fields that are 16 bits apart
become an f16x2 by one lop3. The result is ``bias + q / scale``; whoever adds up products corrects
the bias (the exponent's share and the zero point) and the scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import index, local, sequence
from ...gpu.registers.buffers import RegisterBuffers, Word
from .float32 import FLOATS, BitField, bit_field_of, factors

HALF = 16
FRACTION = {"float16": 10, "bfloat16": 7}  # bits
_BYTE = 8
# Exponent bits around the fraction, their value in units of the fraction's lowest bit, and that
# unit. Products of bfloat16's subnormals, which need no exponent bits, would underflow in float32.
_PATTERN = {"float16": 0, "bfloat16": 127 + 7 << 7}
_EXPONENT = {"float16": 0, "bfloat16": 1 << 7}
_UNIT = {"float16": 2.0**-24, "bfloat16": 1.0}


@dataclass(frozen=True)
class Quantized:
    """A bit field minus its zero point, which a half type holds exactly."""

    field: BitField
    zero_point: int

    @property
    def unsigned_zero_point(self) -> int:
        """The zero point of the bits as an unsigned integer."""
        return self.zero_point - min(self.field.range[0], 0)

    def fits(self, dtype: str) -> bool:
        """Whether a half type's fraction has room for the bits, and for the zero point."""
        bits = self.field.bits
        return bits <= FRACTION[dtype] and 0 <= self.unsigned_zero_point < 1 << bits


def quantized_and_scales(expr: ir.Expr) -> tuple[Quantized, list[ir.Expr]] | None:
    """Read a weight as an integer times scales; ``None`` where it is something else.

    Parameters
    ----------
    expr
        Over variables that stand for elements.
    """
    while isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) in FLOATS:
        expr = expr.value
    parts = [(factor, _quantized_of(factor)) for factor in factors(expr)]
    quantized = [value for _, value in parts if value is not None]
    if len(quantized) != 1:
        return None
    return quantized[0], [factor for factor, value in parts if value is None]


def _quantized_of(expr: ir.Expr) -> Quantized | None:
    """Read an expression as a bit field minus a whole number."""
    if isinstance(expr, tirx.Cast):
        if str(expr.value.ty.dtype) in FLOATS:
            return _quantized_of(expr.value)
        field = bit_field_of(expr.value)
        return None if field is None else Quantized(field, 0)
    if isinstance(expr, tirx.Sub) and isinstance(expr.b, tirx.FloatImm):
        found, zero = _quantized_of(expr.a), float(expr.b.value)
        if found is not None and zero.is_integer():
            return Quantized(found.field, found.zero_point + int(zero))
    return None


@dataclass(frozen=True)
class Encoding:
    """How a half encodes an integer ``q``: as ``bias + q / scale``."""

    bias: float
    scale: float


class DequantizeF16x2:
    """The integers of a thread's tile as pairs of halves.

    Parameters
    ----------
    columns
        The integers of each column, by k.
    registers
        The words that hold them.
    threads
        Of the block, whose number is the buffers' first index.

    Attributes
    ----------
    order : list of int
        An order of k in which those of one encoding are contiguous, and both of a pair, where they
        are of one column.
    array : Var
        The halves.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Quantized]],
        registers: RegisterBuffers,
        dtype: str,
        threads: int,
    ) -> None:
        self._registers, self._dtype = registers, dtype
        self._pairs: dict[tuple[Word, int, Quantized], int] = {}
        self._slots = [[self._slot(value) for value in column] for column in columns]
        self._encodings = [self._encoding(low, value) for _, low, value in self._pairs]
        first = self._slots[0]
        self.order = sorted(
            range(len(first)), key=lambda k: (-self._encoding_of(0, k).scale, first[k])
        )
        self.array = local("dequantized", [threads, 2 * len(self._pairs)], dtype)

    def encodings(self, column: int, size: int) -> list[Encoding]:
        """Return the encoding of every ``size`` k of a column, in order."""
        found = [self._encoding_of(column, k) for k in self.order]
        firsts = found[::size]
        if found != [code for code in firsts for _ in range(size)]:
            raise ValueError("integers that are multiplied at once are encoded differently")
        return firsts

    def fill(self, copy: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        """Dequantize all integers of a copy of the words."""
        stmts = []
        for (word, low, value), pair in self._pairs.items():
            made = self._masked(self._registers.bits(word, copy, thread), low, value)
            both = tirx.Ramp(index(2 * pair), index(1), 2)
            stmts.append(tirx.BufferStore(self.array, made, [thread, both]))
        return sequence(stmts)

    def value(self, column: int, k: int, thread: ir.Expr) -> ir.Expr:
        """Return a dequantized integer."""
        return load(self.array, [thread, index(self._slots[column][k])])

    def _slot(self, value: Quantized) -> int:
        found = self._registers.place_in_word(value.field.element)
        if found is None:
            raise ValueError("an element of a tile is no part of a word")
        word, start = found
        upper, low = divmod(start + value.field.low, HALF)
        # The fields of one word differ in their position only.
        known = BitField(value.field.element, low, value.field.bits, value.field.is_signed)
        key = next(
            (k for k in self._pairs if k[:2] == (word, low) and are_alike(k[2], value)),
            (word, low, Quantized(known, value.zero_point)),
        )
        return 2 * self._pairs.setdefault(key, len(self._pairs)) + upper

    def _encoding_of(self, column: int, k: int) -> Encoding:
        return self._encodings[self._slots[column][k] // 2]

    def _shift(self, low: int, bits: int) -> int:
        """Say how far a word is shifted; one shift serves all fields of the upper bytes."""
        fraction = FRACTION[self._dtype]
        if low + bits <= fraction:
            return 0
        return _BYTE if low >= _BYTE and low - _BYTE + bits <= fraction else low

    def _encoding(self, low: int, value: Quantized) -> Encoding:
        unit, step = _UNIT[self._dtype], 2.0 ** (low - self._shift(low, value.field.bits))
        bias = (_EXPONENT[self._dtype] + value.unsigned_zero_point * step) * unit
        return Encoding(bias, 1 / (step * unit))

    def _masked(self, word: ir.Expr, low: int, value: Quantized) -> ir.Expr:
        bits = value.field.bits
        shift = self._shift(low, bits)
        if shift:
            word = tirx.shift_right(word, tirx.const(shift, "uint32"))
        low -= shift
        pattern = _PATTERN[self._dtype]
        if value.field.is_signed:
            pattern |= 1 << low + bits - 1
        made = tirx.bitwise_and(word, _twice((1 << bits) - 1 << low))
        if pattern:
            made = tirx.bitwise_xor(made, _twice(pattern))
        return tirx.reinterpret(f"{self._dtype}x2", made)


def are_alike(a: Quantized, b: Quantized) -> bool:
    """Whether integers differ in their places only."""
    mine, other = a.field, b.field
    return (mine.bits, mine.is_signed, a.zero_point) == (other.bits, other.is_signed, b.zero_point)


def _twice(half: int) -> ir.Expr:
    return tirx.const(half << HALF | half, "uint32")
