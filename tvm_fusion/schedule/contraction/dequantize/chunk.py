"""Dequantization of a chunk of eight weights on its way to shared memory, by pairs of half types.

bytes[4]  = four integers, one behind the other:  masks; of int4, bytes of both nibbles exchanged
pair[2]   = a byte under the exponent of 2**10 (bfloat16: 2**7), which is 1024 + q     one PRMT
pair     -= 1024 + zero point                     exact
pair     *= scale                                 rounded once, as the graph does

A GPU converts 16 integers a clock and multiprocessor; of these instructions it executes 64 to 128.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import tvm_ffi
from tvm import ir, tirx

from ....core.tir.loops import substitute
from ...gpu.registers import half_pairs
from ...gpu.registers.buffers import RegisterBuffers, Word
from .f16x2 import FRACTION, HALF, Quantized, are_alike, quantized_and_scales

BYTE, WORD_BYTES, NIBBLE, SIXTEEN = 8, 4, 4, 16
# The upper byte of the number whose fraction counts ones in the lower byte.
EXPONENT = {"float16": 0x64, "bfloat16": 0x43}
PAIRS = (0x4140, 0x4342)  # bytes of a word, each below an exponent's
NIBBLES = (0x5140, 0x7362)  # bytes of two words in turns

Words = Callable[[ir.Expr, Mapping[ir.Var, ir.Expr]], list[ir.Expr]]


@dataclass(frozen=True)
class _Four:
    """Where four integers are: bytes of a word, or nibbles of its lower or upper half in turns."""

    word: Word
    low: int
    upper: bool | None = None
    order: tuple[int, int] = (0, NIBBLE)


def dequantized_words(
    values: Sequence[ir.Expr], registers: RegisterBuffers, dtype: str
) -> Words | None:
    """Return what computes a chunk as words of two halves; ``None`` for other values.

    Parameters
    ----------
    values
        Of a chunk, along K, over variables that stand for elements.
    registers
        What holds the elements.
    """
    read = [quantized_and_scales(value) for value in values]
    known = [one for one in read if one is not None]
    if dtype not in EXPONENT or len(known) < len(values) or len(values) % WORD_BYTES:
        return None
    (first, scales), *others = known
    if not all(are_alike(first, one) and _same(scales, own) for one, own in others):
        return None
    if any(str(s.ty.dtype) != dtype for s in scales) or not _fits(first, dtype):
        return None
    fours = [
        _four([one for one, _ in known[i : i + WORD_BYTES]], registers)
        for i in range(0, len(known), WORD_BYTES)
    ]
    found = [four for four in fours if four is not None]
    if len(found) < len(fours):
        return None

    def words(copy: ir.Expr, where: Mapping[ir.Var, ir.Expr]) -> list[ir.Expr]:
        made: list[ir.Expr] = []
        for four in found:
            made += _pairs(_bytes(four, first, registers, copy), first, dtype)
        if not scales:
            return made
        factor = half_pairs.pair_of(substitute(registers.values(reduce(mul, scales), copy), where))
        nothing = half_pairs.constant_pair(dtype, -0.0)  # which leaves the sign of a zero
        return [half_pairs.fma(dtype, pair, factor, nothing) for pair in made]

    return words


def _same(a: Sequence[ir.Expr], b: Sequence[ir.Expr]) -> bool:
    return len(a) == len(b) and all(map(tvm_ffi.structural_equal, a, b))


def _fits(value: Quantized, dtype: str) -> bool:
    """Whether a byte's integers, and the zero point next to the exponent's share, are exact."""
    if value.field.bits > BYTE or not 0 <= value.unsigned_zero_point < 1 << value.field.bits:
        return False
    return value.field.bits <= FRACTION[dtype] or value.unsigned_zero_point % SIXTEEN == 0


def _four(values: Sequence[Quantized], registers: RegisterBuffers) -> _Four | None:
    """Find four integers: in the bytes of one word, or in the nibbles of two of its bytes."""
    places = [registers.place_in_word(value.field.element) for value in values]
    known = [place for place in places if place is not None]
    if len(known) < len(values) or any(place[0] != known[0][0] for place in known):
        return None
    at = [place[1] + v.field.low for place, v in zip(known, values, strict=True)]
    low = at[0]
    if at == [low + BYTE * i for i in range(WORD_BYTES)] and low < BYTE:
        return _Four(known[0][0], low)
    upper = low >= HALF
    if values[0].field.bits != NIBBLE:
        return None
    for order in ((0, NIBBLE), (NIBBLE, 0)):
        if at == [upper * HALF + byte * BYTE + start for byte in range(2) for start in order]:
            return _Four(known[0][0], 0, upper, order)
    return None


def _bytes(four: _Four, value: Quantized, registers: RegisterBuffers, copy: ir.Expr) -> ir.Expr:
    """Return a word of four integers, one a byte, as unsigned ones."""
    word, bits = registers.bits(four.word, copy), value.field.bits
    mask = _everywhere((1 << bits) - 1)
    if four.upper is None:
        made = _shifted(word, four.low)
        made = tirx.bitwise_and(made, mask) if bits < BYTE else made
    else:
        even, odd = (tirx.bitwise_and(_shifted(word, low), mask) for low in four.order)
        made = half_pairs.byte_perm(even, odd, NIBBLES[int(four.upper)])
    if value.field.is_signed:
        made = tirx.bitwise_xor(made, _everywhere(1 << bits - 1))
    return made


def _shifted(word: ir.Expr, low: int) -> ir.Expr:
    return tirx.shift_right(word, tirx.const(low, "uint32")) if low else word


def _pairs(four: ir.Expr, value: Quantized, dtype: str) -> list[ir.Expr]:
    """Convert four bytes to two pairs, and subtract the zero point.

    Of bytes that bfloat16's fraction has no room for, nibbles are converted: ``16 h - zero + l``.
    """
    share, zero = 1 << FRACTION[dtype], value.unsigned_zero_point
    if value.field.bits <= FRACTION[dtype]:
        return _times_and_less(_converted(four, dtype), 1.0, share + zero, dtype)
    mask = _everywhere(SIXTEEN - 1)
    low = _converted(tirx.bitwise_and(four, mask), dtype)
    high = _converted(tirx.bitwise_and(_shifted(four, NIBBLE), mask), dtype)
    high = _times_and_less(high, float(SIXTEEN), SIXTEEN * share + share + zero, dtype)
    one = half_pairs.constant_pair(dtype, 1.0)
    return [half_pairs.fma(dtype, a, one, b) for a, b in zip(low, high, strict=True)]


def _converted(four: ir.Expr, dtype: str) -> list[ir.Expr]:
    """Put four bytes into fractions: each number is too large by what the exponent says."""
    above = _everywhere(EXPONENT[dtype])
    return [half_pairs.byte_perm(four, above, selector) for selector in PAIRS]


def _times_and_less(pairs: list[ir.Expr], factor: float, less: int, dtype: str) -> list[ir.Expr]:
    times, minus = (half_pairs.constant_pair(dtype, x) for x in (factor, -float(less)))
    return [half_pairs.fma(dtype, pair, times, minus) for pair in pairs]


def _everywhere(byte: int) -> ir.Expr:
    return tirx.const(byte * 0x01010101, "uint32")
