"""What instructions compute, as functions of numpy arrays, rounded as the hardware rounds."""

from __future__ import annotations

import functools

import numpy as np

_F32_TIE, _F32_REST = np.uint64(0x10000000), np.uint64(0x1FFFFFFF)
_PI_BITS = 1201
_SPLITTER = float(2**27 + 1)


def fma_f32(a, b, c):
    """Return ``a * b + c``, rounded once.

    The product is exact in 64 bits. A sum that lies exactly between two floats there may have been
    rounded to it: then the rounding error says which side it came from.
    """
    product = np.multiply(a, b, dtype="f8")
    total = product + c
    bits = np.asarray(total).view("u8")
    risky = (bits & _F32_REST) == _F32_TIE
    risky |= (np.abs(total) < 1.5e-38) & (total != 0)
    if risky.any():
        total = np.where(risky, _to_odd(product, np.float64(c), total), total)
    return total.astype("f4")


def _to_odd(a, b, total):
    """Round ``a + b`` to odd where it is not exact."""
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = np.asarray(total).view("i8")
    away = (error > 0) == (total > 0)
    even = (bits & 1) == 0
    moved = np.where(even & (error != 0), np.where(away, bits + 1, bits - 1), bits)
    return moved.view("f8")


def fma_f16(a, b, c):
    """Return ``a * b + c`` of halves, whose exact result 64 bits hold."""
    return (np.multiply(a, b, dtype="f8") + np.asarray(c, "f8")).astype("f2")


def fma_f64(a, b, c):
    """Return ``a * b + c`` of 64 bits; the product's rounding error is added."""
    product = a * b
    high = _SPLITTER * a
    a_high = high - (high - a)
    high = _SPLITTER * b
    b_high = high - (high - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)
    fixed = total + (rest + error)
    return np.where(np.isfinite(fixed), fixed, total)


def flush(x):
    """Replace numbers below the normal ones by zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def exp2(x):
    """Return 2 to the power of x, as v_exp_f32 does."""
    return flush(np.exp2(np.asarray(flush(x), "f8")).astype("f4"))


def log2(x):
    """Return the logarithm to base 2, as v_log_f32 does."""
    return np.log2(np.asarray(flush(x), "f8")).astype("f4")


def reciprocal(x):
    """Return 1/x, as v_rcp_f32 does."""
    return (1.0 / np.asarray(x, "f8")).astype("f4")


def bit_reverse(x):
    """Reverse 32 bits."""
    bits = np.unpackbits(np.ascontiguousarray(x, ">u4").view("u1")).reshape(-1, 32)
    return np.packbits(bits[:, ::-1], axis=1).view(">u4")[:, 0].astype("u4").reshape(np.shape(x))


def leading_bit(x):
    """Return how many zeros stand before the first one of 32 bits; all ones if there is none."""
    x = np.asarray(x, "u4")
    exponent = np.frexp(x.astype("f8"))[1]
    return np.where(x == 0, np.uint32(0xFFFFFFFF), (32 - exponent).astype("u4"))


def sign_bits(x):
    """Return how many bits of 32 are as the highest one; all ones if all are."""
    x = np.asarray(x).view("i4")
    return leading_bit((x ^ (x >> np.int32(31))).view("u4"))


def trailing_bit(x):
    """Return the number of the lowest bit that is set; all ones if there is none."""
    x = np.asarray(x, "u4")
    return np.where(x == 0, np.uint32(0xFFFFFFFF), np.uint32(31) - leading_bit(x & (~x + 1)))


def of_halves(first, find):
    """Find a bit of 64 as ``find`` does in 32: in the first half, or behind it in the other."""

    def of_both(x):
        halves = [np.asarray(x >> np.uint64(shift), "u8").astype("u4") for shift in (32, 0)]
        near, far = halves if first == "high" else halves[::-1]
        found = find(far)
        behind = np.where(far == 0, found, found + np.uint32(32))
        return np.where(near == 0, behind, find(near))

    return of_both


def count_bits(x):
    """Count the bits that are set."""
    x = np.asarray(x)
    width = x.dtype.itemsize
    raw = np.ascontiguousarray(x).view("u1").reshape(*x.shape, width)
    return np.unpackbits(raw, axis=-1).sum(-1, dtype="u4")


def permute_bytes(a, b, selector):
    """Choose bytes of a (4 to 7) and b (0 to 3), signs and constants, as v_perm_b32 does."""
    a, b, selector = np.broadcast_arrays(a, b, selector)
    whole = np.asarray(b, "u8") | np.asarray(a, "u8") << np.uint64(32)
    result = np.zeros(whole.shape, "u4")
    for i in range(4):
        choice = selector >> np.uint32(8 * i) & np.uint32(0xFF)
        byte = whole >> (np.uint64(8) * np.minimum(choice, 7).astype("u8")) & np.uint64(0xFF)
        sign = whole >> (np.uint64(16) * (choice & np.uint32(3)).astype("u8") + np.uint64(15))
        byte = np.where(choice < 8, byte, (sign & np.uint64(1)) * np.uint64(255))
        byte = np.where(choice == 12, np.uint64(0), np.where(choice > 12, np.uint64(255), byte))
        result |= byte.astype("u4") << np.uint32(8 * i)
    return result


def classify(x, mask):
    """Tell whether x belongs to one of the classes whose bits are set in the mask."""
    quiet = {2: 1 << 9, 4: 1 << 22, 8: 1 << 51}[x.dtype.itemsize]
    bits = np.asarray(x).view(f"u{x.dtype.itemsize}")
    negative, nan, zero = np.signbit(x), np.isnan(x), x == 0
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    classes = [
        nan & (bits & bits.dtype.type(quiet) == 0),
        nan & (bits & bits.dtype.type(quiet) != 0),
        np.isneginf(x),
        negative & np.isfinite(x) & ~tiny,
        negative & tiny & ~zero,
        negative & zero,
        ~negative & zero,
        ~negative & tiny & ~zero,
        ~negative & np.isfinite(x) & ~tiny,
        np.isposinf(x),
    ]
    found = np.zeros(np.broadcast(x, mask).shape, bool)
    for i, belongs in enumerate(classes):
        found |= belongs & (mask >> mask.dtype.type(i) & mask.dtype.type(1)).astype(bool)
    return found


def to_integer(x, kind):
    """Round towards zero to an integer type, with its limits; NaN is 0."""
    info = np.iinfo(kind)
    whole = np.trunc(np.nan_to_num(np.asarray(x, "f8"), nan=0.0, posinf=2e20, neginf=-2e20))
    return np.clip(whole, info.min, info.max).astype("i8" if info.bits == 32 else kind).astype(kind)


def round_to_zero_f16(x):
    """Round 32 bits to a half, towards zero."""
    half = np.asarray(x, "f4").astype("f2")
    above = np.abs(half.astype("f4")) > np.abs(x)
    return np.where(above, (half.view("u2") - np.uint16(1)).view("f2"), half)


def bf16_to_f32(x):
    """Widen bfloat16, held as 16 bits."""
    return (np.asarray(x, "u4") << np.uint32(16)).view("f4")


def div_scale(s0, s1, s2):
    """Scale a division's operand so that it neither overflows nor underflows (v_div_scale_f32)."""
    kind = np.result_type(s0, s1, s2)
    big, top = (np.float32(2.0**64), 96) if kind == np.float32 else (np.float64(2.0**128), 768)
    s0, s1, s2 = (np.asarray(x, kind) for x in (s0, s1, s2))
    with_exponents = [np.frexp(x)[1] for x in (s1, s2)]
    quotient = s2 / s1
    tiny = np.finfo(kind).tiny
    small_divisor = np.abs(s1) < tiny
    apart = with_exponents[1] - with_exponents[0] >= top
    reciprocal_tiny = np.abs(1 / s1) < tiny
    quotient_tiny = np.abs(quotient) < tiny
    low_numerator = with_exponents[1] <= -103 if kind == np.float32 else with_exponents[1] <= -969
    is_divisor, is_numerator = s0 == s1, s0 == s2
    up, down = s0 * big, s0 / big
    zero = (s1 == 0) | (s2 == 0)
    conditions = [zero, apart, small_divisor, reciprocal_tiny & quotient_tiny, reciprocal_tiny,
                  quotient_tiny, low_numerator]  # fmt: skip
    values = [
        np.full(s0.shape, np.nan, kind) + s0 * 0,
        np.where(is_divisor, up, s0),
        up,
        np.where(is_divisor, up, s0),
        down,
        np.where(is_numerator, up, s0),
        up,
    ]
    flags = [False, True, False, True, False, True, False]
    conditions = [np.broadcast_to(c, quotient.shape) for c in conditions]
    values = [np.broadcast_to(v, quotient.shape) for v in values]
    scaled = np.select(conditions, values, np.broadcast_to(s0, quotient.shape))
    return scaled.astype(kind), np.select(conditions, flags, False)


def div_fixup(quotient, divisor, numerator):
    """Put a division's special cases right (v_div_fixup_f32)."""
    kind = np.result_type(quotient)
    plain = np.asarray(numerator, kind) / np.asarray(divisor, kind)
    special = ~np.isfinite(plain) | (plain == 0) | ~np.isfinite(divisor) | ~np.isfinite(numerator)
    negative = np.signbit(numerator) ^ np.signbit(divisor)
    signed = np.copysign(np.abs(quotient), np.where(negative, -1, 1)).astype(kind)
    overflowed = np.isfinite(divisor) & np.isfinite(numerator) & (divisor != 0) & (numerator != 0)
    return np.where(special & ~overflowed, plain, np.where(np.isnan(quotient), plain, signed))


@functools.cache
def two_over_pi() -> int:
    """Return the first :data:`_PI_BITS` bits of 2/pi behind the point; pi by Machin's formula."""
    one = 1 << _PI_BITS + 64

    def arctan_of_inverse(x: int) -> int:
        term, total, n = one // x, 0, 1
        while term:
            total += term // n * (1 if n % 4 == 1 else -1)
            term, n = term // (x * x), n + 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    return (2 * one << _PI_BITS) // pi


def trigonometric_segment(x, segment):
    """Return 53 bits of 2/pi, those that matter for reducing x (v_trig_preop_f64)."""
    exponent = (np.asarray(x).view("u8") >> np.uint64(52) & np.uint64(0x7FF)).astype("i8")
    shift = (np.asarray(segment) & 31).astype("i8") * 53 + np.maximum(exponent - 1077, 0)
    scale = -53 - shift + np.where(exponent >= 1968, 128, 0)
    values = np.zeros(shift.shape)
    for one in np.unique(shift):
        bits = (two_over_pi() << int(one) >> _PI_BITS - 53) & ((1 << 53) - 1)
        values[shift == one] = float(bits)
    return np.ldexp(values, scale)
