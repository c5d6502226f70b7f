"""Element types of fewer than 8 bits and floats of 8: how they are stored, decoded and encoded.

TVM 0.27 computes with none of them on every target, so their bits travel as ``uint8``, one element
a byte as in ml_dtypes, and kernels turn them into float32 or int32 and back by integer arithmetic,
which vectorises everywhere. Codes and rounding are those of the ONNX standard: to nearest, ties to
even.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx

STORAGE = "uint8"


@dataclass(frozen=True)
class FloatFormat:
    """A float of a sign, exponent bits and mantissa bits, subnormal numbers included."""

    # Bits, and what is subtracted from the exponent.
    exponent: int
    mantissa: int
    bias: int
    largest: int  # magnitude bits of the largest finite number
    nan: int  # code of NaN; it takes the sign of what is converted unless ``is_unsigned_zero``
    overflow: int  # magnitude bits of what lies beyond the largest where nothing saturates
    infinity: int | None = None  # magnitude bits of infinity, if there is one
    is_unsigned_zero: bool = False  # whether there is one zero, and its negative code is NaN
    has_nan: bool = True


FLOATS = {
    "float8_e4m3fn": FloatFormat(4, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": FloatFormat(4, 3, 8, 0x7F, 0x80, 0x80, is_unsigned_zero=True),
    "float8_e5m2": FloatFormat(5, 2, 15, 0x7B, 0x7E, 0x7C, infinity=0x7C),
    "float8_e5m2fnuz": FloatFormat(5, 2, 16, 0x7F, 0x80, 0x80, is_unsigned_zero=True),
    # NaN becomes a zero of the opposite sign, as ml_dtypes has it; the standard leaves it open.
    "float4_e2m1fn": FloatFormat(2, 1, 1, 0x7, 0x8, 0x7, has_nan=False),
}
EXPONENT = "float8_e8m0fnu"  # a power of two, without sign or zero
INTEGERS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
NARROW = frozenset({*FLOATS, EXPONENT, *INTEGERS})


def storage_of(dtype: str) -> str:
    """Return the dtype in which tensors of a dtype are kept."""
    return STORAGE if dtype in NARROW else dtype


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest number of a narrow integer type."""
    bits = INTEGERS[dtype]
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decode(code: Any, dtype: str) -> Any:
    """Turn a stored code into float32, or int32 for integers.

    Parameters
    ----------
    code : tvm.ir.Expr
        A ``uint8``.
    """
    if dtype in INTEGERS:
        bits = INTEGERS[dtype]
        number = code.astype("int32") & ((1 << bits) - 1)
        sign = 1 << (bits - 1)
        return number if dtype.startswith("u") else (number ^ sign) - sign
    word = code.astype("uint32")
    if dtype == EXPONENT:
        least = tirx.Select(word == 0, _word(0x00400000), word << _word(23))
        return _float(tirx.Select(word == 255, _word(0x7FC00000), least))
    form = FLOATS[dtype]
    width, mantissa = form.exponent + form.mantissa, form.mantissa
    magnitude = word & _word((1 << width) - 1)
    sign = ((word >> _word(width)) & _word(1)) << _word(31)
    normal = (magnitude << _word(23 - mantissa)) + _word((127 - form.bias) << 23)
    unit = 2.0 ** (1 - form.bias - mantissa)
    small = _bits(magnitude.astype("int32").astype("float32") * tirx.FloatImm("float32", unit))
    value = tirx.Select(magnitude < _word(1 << mantissa), small, normal)
    if form.infinity is not None:
        value = tirx.Select(magnitude == _word(form.infinity), _word(0x7F800000), value)
        value = tirx.Select(magnitude > _word(form.infinity), _word(0x7FC00000), value)
    elif form.has_nan and not form.is_unsigned_zero:
        value = tirx.Select(magnitude == _word(form.nan), _word(0x7FC00000), value)
    value = value | sign
    if form.is_unsigned_zero:
        value = tirx.Select(word == _word(form.nan), _word(0x7FC00000), value)
    return _float(value)


def encode(value: Any, dtype: str, saturate: bool = True, round_mode: str = "up") -> Any:
    """Turn a number into a stored code.

    Parameters
    ----------
    value : tvm.ir.Expr
        A float32; an int32 for integers, of which the lowest bits are taken.
    saturate
        Whether what lies beyond the largest finite number becomes that, and not NaN or infinity.
    round_mode : {"up", "down", "nearest"}
        Of ``float8_e8m0fnu``.
    """
    if dtype in INTEGERS:
        return (value & ((1 << INTEGERS[dtype]) - 1)).astype(STORAGE)
    word = _bits(value)
    if dtype == EXPONENT:
        return _exponent(word, saturate, round_mode).astype(STORAGE)
    form = FLOATS[dtype]
    mantissa, width = form.mantissa, form.exponent + form.mantissa
    size, shift = word & _word(0x7FFFFFFF), 23 - form.mantissa
    even = (size >> _word(shift)) & _word(1)
    rounded = size + _word((1 << (shift - 1)) - 1) + even
    normal = (rounded >> _word(shift)) - _word((127 - form.bias) << mantissa)
    # Adding a number whose last bit is the unit of the subnormal numbers rounds to that unit.
    unit = tirx.FloatImm("float32", 2.0 ** (24 - form.bias - mantissa))
    small = _bits(_float(size) + unit) - _word((151 - form.bias - mantissa) << 23)
    magnitude = tirx.Select(size < _word((128 - form.bias) << 23), small, normal)
    beyond = form.largest if saturate else form.overflow
    magnitude = tirx.Select(magnitude > _word(form.largest), _word(beyond), magnitude)
    sign = (word >> _word(31)) << _word(width)
    is_nan = size > _word(0x7F800000)
    if form.is_unsigned_zero:
        has_sign = (magnitude == _word(0)) | (magnitude > _word(form.largest))
        code = tirx.Select(has_sign, magnitude, magnitude | sign)
        return tirx.Select(is_nan, _word(form.nan), code).astype(STORAGE)
    nan = (_word(form.nan) ^ sign) if form.nan >> width else (_word(form.nan) | sign)
    return tirx.Select(is_nan, nan, magnitude | sign).astype(STORAGE)


def _exponent(word: Any, saturate: bool, round_mode: str) -> Any:
    exponent = (word >> _word(23)) & _word(255)
    rest = word & _word(0x7FFFFF)
    if round_mode == "up":
        is_up = rest > _word(0)
    elif round_mode == "nearest":
        is_up = (rest > _word(0x400000)) | ((rest == _word(0x400000)) & (exponent > _word(0)))
    else:
        return exponent
    last = _word(0xFE if saturate else 0xFF)
    is_up = is_up & (exponent < last)
    return exponent + tirx.Select(is_up, _word(1), _word(0))


def _word(value: int) -> Any:
    return tirx.IntImm("uint32", value)


def _bits(value: Any) -> Any:
    return tirx.reinterpret("uint32", value)


def _float(word: Any) -> Any:
    return tirx.reinterpret("float32", word)
