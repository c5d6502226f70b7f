"""Which bits of a result are undefined where bits of the sources are.

Rules for instructions that move bits. For all others any undefined bit of a lane's sources makes
its whole result undefined.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .arithmetic import permute_bytes

Bits = Any
Rule = Callable[[list[Any], list[Bits]], Bits]


def spoiled(bits: int, undefined: list[Bits]) -> Bits:
    """Return all bits of the lanes of which any source has an undefined bit."""
    found: Any = False
    for source in undefined:
        found = found | (np.asarray(source) != 0)
    top = np.array((1 << bits) - 1, f"u{bits // 8}")
    return np.where(found, top, top * 0)


def upwards(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return all bits from the lowest undefined one on: of sums and products."""
    widest = max((np.asarray(v).dtype for v in values), key=lambda kind: kind.itemsize)
    found: Any = np.zeros((), widest)
    for bits in undefined:
        found = found | np.asarray(bits, widest)
    return found | (~found + widest.type(1))


def moved(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return the source's."""
    return undefined[0]


def any_bit(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return the bits that are undefined in any source."""
    found = undefined[0]
    for bits in undefined[1:]:
        found = found | bits
    return found


def and_(values: list[Any], undefined: list[Bits]) -> Bits:
    """Leave out bits that are 0 in one source."""
    (a, b), (x, y) = values, undefined
    return (x & (b | y)) | (y & (a | x))


def or_(values: list[Any], undefined: list[Bits]) -> Bits:
    """Leave out bits that are 1 in one source."""
    (a, b), (x, y) = values, undefined
    return (x & (~b | y)) | (y & (~a | x))


def and_or(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of ``a & b | c``."""
    a, b, c = values
    return or_([a & b, c], [and_([a, b], undefined[:2]), undefined[2]])


def shift_or(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of ``a << b | c``."""
    a, b, c = values
    shift = b & np.uint32(31)
    left = (np.asarray(undefined[0], "u4") << shift) | spoiled(32, [undefined[1]])
    return or_([a << shift, c], [left, undefined[2]])


def shifted(function: Callable[..., Any]) -> Rule:
    """Shift the undefined bits with the others."""

    def rule(values: list[Any], undefined: list[Bits]) -> Bits:
        amount, x = values
        kind = f"u{np.dtype(x.dtype).itemsize}"
        bits = np.broadcast_to(np.asarray(undefined[1], kind), np.broadcast(amount, x).shape)
        width = 8 * np.dtype(kind).itemsize
        return function(amount, bits).view(kind) | spoiled(width, [undefined[0]])

    return rule


def shifted_last(function: Callable[..., Any]) -> Rule:
    """Take the undefined bits from where the others are taken."""

    def rule(values: list[Any], undefined: list[Bits]) -> Bits:
        bits = function(np.asarray(undefined[0], "u4"), *values[1:])
        return bits | spoiled(32, undefined[1:])

    return rule


def field(extract: Callable[..., Any]) -> Rule:
    """Return all bits of a field that has an undefined one; others of the source do not count."""

    def rule(values: list[Any], undefined: list[Bits]) -> Bits:
        inside, _ = extract(undefined[0], values[1])
        return spoiled(8 * values[0].dtype.itemsize, [inside, undefined[1]])

    return rule


def aligned(function: Callable[..., Any]) -> Rule:
    """Return those of 32 bits taken out of 64."""

    def rule(values: list[Any], undefined: list[Bits]) -> Bits:
        high, low = (np.asarray(bits, "u4") for bits in undefined[:2])
        return function(high, low, values[2]) | spoiled(32, [undefined[2]])

    return rule


def permuted(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of chosen bytes; a sign's byte and a constant are taken to be defined."""
    a, b = (np.asarray(bits, "u4") for bits in undefined[:2])
    selector = values[2]
    constant = np.uint32(0)
    for i in range(4):
        byte = selector >> np.uint32(8 * i) & np.uint32(0xFF)
        constant = constant | np.where(byte > 7, np.uint32(0xFF << 8 * i), np.uint32(0))
    return (permute_bytes(a, b, selector) & ~constant) | spoiled(32, [undefined[2]])


def inserted(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of ``a & b | ~a & c``."""
    a, b, c = values
    x, y, z = undefined
    return (x & ((b ^ c) | y | z)) | (a & y) | (~a & z)


def chosen(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of the source that a lane takes."""
    a, b, mask = values
    bits = np.where(mask, undefined[1], undefined[0])
    width = 8 * np.dtype(np.result_type(a, b)).itemsize
    return bits.astype(f"u{width // 8}") | spoiled(width, [undefined[2]])


def packed(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of two halves."""
    low, high = (np.asarray(bits, "u4") for bits in undefined)
    return low | high << np.uint32(16)


def packed_wide(values: list[Any], undefined: list[Bits]) -> Bits:
    """Return those of two halves, each converted from 32 bits."""
    low, high = (spoiled(16, [bits]).astype("u4") for bits in undefined)
    return low | high << np.uint32(16)


def of_bits(mask: int) -> Rule:
    """Return all bits where some of a part are undefined."""

    def rule(values: list[Any], undefined: list[Bits]) -> Bits:
        return spoiled(32, [np.asarray(undefined[0], "u4") & np.uint32(mask)])

    return rule
