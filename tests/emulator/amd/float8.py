"""Floating point of eight bits: e4m3 (``fp8``) and e5m2 (``bf8``), as CDNA3 has them and as OCP."""

import functools

import numpy as np

_MANTISSA = {"fp8": 3, "bf8": 2}


@functools.cache
def _table(kind: str, fnuz: bool) -> np.ndarray:
    mantissa = _MANTISSA[kind]
    exponent_bits = 7 - mantissa
    bias = (1 << exponent_bits - 1) - (0 if fnuz else 1)
    code = np.arange(256)
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent, rest = code >> mantissa & (1 << exponent_bits) - 1, code & (1 << mantissa) - 1
    normal = (1 + rest / (1 << mantissa)) * 2.0 ** (exponent - bias)
    small = rest / (1 << mantissa) * 2.0 ** (1 - bias)
    values = sign * np.where(exponent == 0, small, normal)
    if fnuz:
        values[0x80] = np.nan
    elif kind == "fp8":
        values[[0x7F, 0xFF]] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(rest[top] == 0, sign[top] * np.inf, np.nan)
    return values.astype("f4")


def float8_to_f32(codes: np.ndarray, kind: str, fnuz: bool = True) -> np.ndarray:
    """Widen eight bits."""
    return _table(kind, fnuz)[codes]


def f32_to_float8(values: np.ndarray, kind: str, fnuz: bool = True) -> np.ndarray:
    """Round to eight bits, to nearest, ties to even; too large values become the largest."""
    table = _table(kind, fnuz)
    order = np.array([c for c in range(128) if np.isfinite(table[c])])
    positive = table[order].astype("f8")
    size = np.abs(np.asarray(values, "f8"))
    above = np.clip(np.searchsorted(positive, size), 1, len(order) - 1)
    low, high = positive[above - 1], positive[above]
    middle = (low + high) / 2
    up = (size > middle) | ((size == middle) & (order[above] % 2 == 0))
    codes = np.where(up, order[above], order[above - 1])
    codes = np.where(np.signbit(values) & ~(fnuz & (codes == 0)), codes | 0x80, codes)
    return np.where(np.isnan(values), 0x80 if fnuz else 0x7F, codes).astype("u1")
