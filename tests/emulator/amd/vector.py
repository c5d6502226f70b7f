"""Vector arithmetic, logic and comparisons, one row an instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as math
from . import undefined as bad
from .operation import PAIRED, VECTOR, Operation, row

U32, U64 = np.uint32, np.uint64


def _reverse(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(b, a)


def _shift(kind: type, function: Any) -> Callable[..., Any]:
    mask = kind(np.dtype(kind).itemsize * 8 - 1)
    return lambda amount, x: function(x, amount.astype(kind) & mask)


def _wide(kind: str, shift: int = 0) -> Callable[..., Any]:
    """Multiply in 64 bits and take 32 of them."""
    return lambda a, b: (np.multiply(a, b, dtype=kind) >> np.dtype(kind).type(shift)).astype(U32)


def _low24(x: Any) -> Any:
    return x & U32(0xFFFFFF)


def _signed24(x: Any) -> Any:
    return (x << np.int32(8)) >> np.int32(8)


def _bfe_u32(x: Any, at: Any, width: Any) -> Any:
    width = width & U32(31)
    return x >> (at & U32(31)) & ((U32(1) << width) - U32(1))


def _bfe_i32(x: Any, at: Any, width: Any) -> Any:
    """Take bits out and extend the sign; behind the top of x stand copies of its sign."""
    at, width = at & U32(31), width & U32(31)
    part = (x >> at.astype("i4")).astype(U32) & ((U32(1) << width) - U32(1))
    sign = U32(1) << ((width - U32(1)) & U32(31))
    return np.where(width == 0, U32(0), (part ^ sign) - sign).astype(U32).view("i4")


def _frexp_mantissa(x: Any) -> Any:
    return np.where(np.isfinite(x), np.frexp(x)[0], x)


def _frexp_exponent(kind: str) -> Callable[..., Any]:
    return lambda x: np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(kind)


def _median(low: Any, high: Any) -> Callable[..., Any]:
    def median(a: Any, b: Any, c: Any) -> Any:
        unordered = (a != a) | (b != b) | (c != c)
        return np.where(unordered, low(low(a, b), c), high(low(a, b), low(high(a, b), c)))

    return median


def _fract(x: Any) -> Any:
    below = np.nextafter(x.dtype.type(1), x.dtype.type(0))
    return np.minimum(x - np.floor(x), below)


def _sine(function: Any, kind: str) -> Callable[..., Any]:
    return lambda x: function(2 * np.pi * np.asarray(x, "f8")).astype(kind)


def _through(kind: str, function: Any) -> Callable[..., Any]:
    """Compute in 64 bits, round once."""
    return lambda *xs: np.asarray(function(*(np.asarray(x, "f8") for x in xs))).astype(kind)


def _same(x: Any) -> Any:
    return x


# Floating point

for _kind, _fma in (("f32", math.fma_f32), ("f64", math.fma_f64), ("f16", math.fma_f16)):
    _np = {"f32": "f4", "f64": "f8", "f16": "f2"}[_kind]
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    row(f"add_{_kind}", _kind, _two, np.add)
    row(f"sub_{_kind}", _kind, _two, np.subtract)
    row(f"subrev_{_kind}", _kind, _two, _reverse(np.subtract))
    row(f"mul_{_kind}", _kind, _two, np.multiply)
    row(f"max_{_kind}", _kind, _two, np.fmax)
    row(f"min_{_kind}", _kind, _two, np.fmin)
    row(f"max3_{_kind}", _kind, _three, lambda a, b, c: np.fmax(np.fmax(a, b), c))
    row(f"min3_{_kind}", _kind, _three, lambda a, b, c: np.fmin(np.fmin(a, b), c))
    if _kind in ("u32", "i32"):
        row(f"minmax_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.minimum(a, b), c))
        row(f"maxmin_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.maximum(a, b), c))
    row(f"med3_{_kind}", _kind, _three, _median(np.fmin, np.fmax))
    row(f"minmax_{_kind}", _kind, _three, lambda a, b, c: np.fmax(np.fmin(a, b), c))
    row(f"maxmin_{_kind}", _kind, _three, lambda a, b, c: np.fmin(np.fmax(a, b), c))
    row(f"fma_{_kind} fmaak_{_kind} fmamk_{_kind}", _kind, _three, _fma)
    row(f"fmac_{_kind}", _kind, f"{_two} dst{_kind}", _fma)
    row(f"floor_{_kind}", _kind, _kind, np.floor)
    row(f"ceil_{_kind}", _kind, _kind, np.ceil)
    row(f"trunc_{_kind}", _kind, _kind, np.trunc)
    row(f"rndne_{_kind}", _kind, _kind, np.rint)
    row(f"fract_{_kind}", _kind, _kind, _fract)
    row(f"sqrt_{_kind}", _kind, _kind, np.sqrt if _kind != "f16" else _through("f2", np.sqrt))
    row(f"frexp_mant_{_kind}", _kind, _kind, _frexp_mantissa)
row(
    "mul_legacy_f32 mul_dx9_zero_f32", "f32", "f32 f32",
    lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b),
)  # fmt: skip
row("mac_f32", "f32", "f32 f32 dstf32", lambda a, b, c: a * b + c)
row("mad_f32 madak_f32 madmk_f32", "f32", "f32 f32 f32", lambda a, b, c: a * b + c)
row("rcp_f32 rcp_iflag_f32", "f32", "f32", math.reciprocal)
row("rcp_f64", "f64", "f64", lambda x: 1.0 / x)
row("rsq_f32", "f32", "f32", _through("f4", lambda x: 1 / np.sqrt(x)))
row("rsq_f64", "f64", "f64", lambda x: 1.0 / np.sqrt(x))
row("rcp_f16", "f16", "f16", _through("f2", lambda x: 1 / x))
row("rsq_f16", "f16", "f16", _through("f2", lambda x: 1 / np.sqrt(x)))
row("exp_f32", "f32", "f32", math.exp2)
row("log_f32", "f32", "f32", math.log2)
row("exp_f16", "f16", "f16", _through("f2", np.exp2))
row("log_f16", "f16", "f16", _through("f2", np.log2))
for _kind, _np in (("f32", "f4"), ("f16", "f2")):
    row(f"sin_{_kind}", _kind, _kind, _sine(np.sin, _np))
    row(f"cos_{_kind}", _kind, _kind, _sine(np.cos, _np))
row("trig_preop_f64", "f64", "f64 u32", math.trigonometric_segment)
row("frexp_exp_i32_f32", "i32", "f32", _frexp_exponent("i4"))
row("frexp_exp_i32_f64", "i32", "f64", _frexp_exponent("i4"))
row("frexp_exp_i16_f16", "i16", "f16", _frexp_exponent("i2"))
row("ldexp_f32", "f32", "f32 i32", lambda x, n: np.ldexp(np.asarray(x, "f8"), n).astype("f4"))
row("ldexp_f64", "f64", "f64 i32", np.ldexp)
row("ldexp_f16", "f16", "f16 i16", lambda x, n: np.ldexp(np.asarray(x, "f8"), n).astype("f2"))
row("div_fixup_f32", "f32", "f32 f32 f32", math.div_fixup)
row("div_fixup_f64", "f64", "f64 f64 f64", math.div_fixup)
row(
    "div_fixup_f16", "f16", "f16 f16 f16",
    lambda *xs: math.div_fixup(*(np.asarray(x, "f4") for x in xs)).astype("f2"),
)  # fmt: skip

# Integers

row("mov_b32 accvgpr_read_b32 accvgpr_write_b32 accvgpr_write accvgpr_read accvgpr_mov_b32",
     "b32", "b32", _same, bad.moved)  # fmt: skip
row("mov_b64", "u64", "u64", _same, bad.moved)
row("mov_b16", "b16", "b16", _same, bad.moved)
row("not_b32", "u32", "u32", np.invert, bad.moved)
row("not_b16", "u16", "u16", np.invert, bad.moved)
for _bits in (32, 16):
    _u = f"u{_bits}"
    row(f"and_b{_bits}", _u, f"{_u} {_u}", np.bitwise_and, bad.and_)
    row(f"or_b{_bits}", _u, f"{_u} {_u}", np.bitwise_or, bad.or_)
    row(f"xor_b{_bits}", _u, f"{_u} {_u}", np.bitwise_xor, bad.any_bit)
    row(f"xnor_b{_bits}", _u, f"{_u} {_u}", lambda a, b: ~(a ^ b), bad.any_bit)
for _bits, _np in ((16, np.uint16), (32, np.uint32), (64, np.uint64)):
    _u, _i = f"u{_bits}", f"i{_bits}"
    _signed = np.dtype(f"i{_bits // 8}").type
    _amount = "u16" if _bits == 16 else "u32"
    _left, _right = _shift(_np, np.left_shift), _shift(_np, np.right_shift)
    _arithmetic = _shift(_signed, np.right_shift)
    row(f"lshlrev_b{_bits}", _u, f"{_amount} {_u}", _left, bad.shifted(_left))
    row(f"lshrrev_b{_bits}", _u, f"{_amount} {_u}", _right, bad.shifted(_right))
    row(f"ashrrev_i{_bits}", _i, f"{_amount} {_i}", _arithmetic, bad.shifted(_right))
for _kind in ("u32", "i32", "u16", "i16"):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    row(f"add_{_kind} add_nc_{_kind}", _kind, _two, np.add, bad.upwards)
    row(f"sub_{_kind} sub_nc_{_kind}", _kind, _two, np.subtract, bad.upwards)
    row(f"subrev_{_kind} subrev_nc_{_kind}", _kind, _two, _reverse(np.subtract), bad.upwards)
    row(f"max_{_kind}", _kind, _two, np.maximum)
    row(f"min_{_kind}", _kind, _two, np.minimum)
    row(f"max3_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    row(f"min3_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    if _kind in ("u32", "i32"):
        row(f"minmax_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.minimum(a, b), c))
        row(f"maxmin_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.maximum(a, b), c))
    row(f"med3_{_kind}", _kind, _three, _median(np.minimum, np.maximum))
    _legacy = f" mad_legacy_{_kind}" if "16" in _kind else ""
    row(f"mad_{_kind}{_legacy}", _kind, _three, lambda a, b, c: a * b + c, bad.upwards)
    row(f"mul_lo_{_kind}", _kind, _two, np.multiply, bad.upwards)
row("mul_hi_u32", "u32", "u32 u32", _wide("u8", 32))
row("mul_hi_i32", "u32", "i32 i32", _wide("i8", 32))
row("mul_u32_u24", "u32", "u32 u32", lambda a, b: _low24(a) * _low24(b))
row("mul_i32_i24", "i32", "i32 i32", lambda a, b: _signed24(a) * _signed24(b))
row("mul_hi_u32_u24", "u32", "u32 u32", lambda a, b: _wide("u8", 32)(_low24(a), _low24(b)))
row("mul_hi_i32_i24", "u32", "i32 i32", lambda a, b: _wide("i8", 32)(_signed24(a), _signed24(b)))
row("mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: _low24(a) * _low24(b) + c)
row("mad_i32_i24", "i32", "i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c)
row("mad_u32_u16", "u32", "u16 u16 u32", lambda a, b, c: a.astype(U32) * b.astype(U32) + c)
row("mad_i32_i16", "i32", "i16 i16 i32", lambda a, b, c: a.astype("i4") * b.astype("i4") + c)
row("add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c, bad.upwards)
row("add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, c: (a + b) << (c & U32(31)))
row("lshl_add_u32", "u32", "u32 u32 u32", lambda a, b, c: (a << (b & U32(31))) + c)
row("lshl_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a << (b & U32(31))) | c, bad.shift_or)
row("and_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | c, bad.and_or)
row("or3_b32", "u32", "u32 u32 u32", lambda a, b, c: a | b | c, bad.any_bit)
row("xor3_b32", "u32", "u32 u32 u32", lambda a, b, c: a ^ b ^ c, bad.any_bit)
row("xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
row("lshl_add_u64", "u64", "u64 u32 u64", lambda a, b, c: (a << (b & U32(7)).astype("u8")) + c)
row("bfe_u32", "u32", "u32 u32 u32", _bfe_u32, bad.shifted_last(_bfe_u32))
row("bfe_i32", "i32", "i32 u32 u32", _bfe_i32, bad.shifted_last(_bfe_u32))
row("bfi_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | (~a & c), bad.inserted)
row("bfm_b32", "u32", "u32 u32", lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31)))
row("bfrev_b32", "u32", "u32", math.bit_reverse)
row("ffbh_u32 clz_i32_u32", "u32", "u32", math.leading_bit)
row("ffbl_b32 ctz_i32_b32", "u32", "u32", math.trailing_bit)
row("ffbh_i32 cls_i32", "u32", "i32", math.sign_bits)
row("bcnt_u32_b32", "u32", "u32 u32", lambda a, b: math.count_bits(a) + b)


def _align(unit: int) -> Callable[..., Any]:
    def aligned(high: Any, low: Any, amount: Any) -> Any:
        shift = (amount & U32(32 // unit - 1)).astype("u8") * U64(unit)
        return ((high.astype("u8") << U64(32) | low.astype("u8")) >> shift).astype(U32)

    return aligned


row("alignbit_b32", "u32", "u32 u32 u32", _align(1), bad.aligned(_align(1)))
row("alignbyte_b32", "u32", "u32 u32 u32", _align(8), bad.aligned(_align(8)))
row("perm_b32", "u32", "u32 u32 u32", math.permute_bytes, bad.permuted)


def _sad(a: Any, b: Any, c: Any) -> Any:
    return np.where(a > b, a - b, b - a) + c


row("sad_u32", "u32", "u32 u32 u32", _sad)

# Carries and choices

row("cndmask_b32", "b32", "b32 b32 mask", lambda a, b, m: np.where(m, b, a), bad.chosen)
row("cndmask_b16", "b16", "b16 b16 mask", lambda a, b, m: np.where(m, b, a), bad.chosen)
for _kind, _fma, _power in (("f32", math.fma_f32, 64), ("f64", math.fma_f64, 128)):

    def _scaled(a: Any, b: Any, c: Any, m: Any, fma: Any = _fma, power: int = _power) -> Any:
        scale = np.where(np.abs(c) >= 2, 2.0**power, 2.0**-power)
        return fma(a, b, c) * np.where(m, scale, 1).astype(np.asarray(c).dtype)

    row(f"div_fmas_{_kind}", _kind, f"{_kind} {_kind} {_kind} vcc", _scaled)


def _with_carry(a: Any, b: Any, carry: Any = 0) -> tuple[Any, Any]:
    total = a.astype("u8") + b.astype("u8") + np.asarray(carry, "u8")
    return total.astype(U32), total > U64(0xFFFFFFFF)


def _with_borrow(a: Any, b: Any, borrow: Any = 0) -> tuple[Any, Any]:
    total = a.astype("i8") - b.astype("i8") - np.asarray(borrow, "i8")
    return total.astype(U32), total < 0


def _swapped(function: Any) -> Callable[..., Any]:
    return lambda a, b, *rest: function(b, a, *rest)


def _mad_wide(kind: str) -> Callable[..., Any]:
    def multiply(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        product = np.multiply(a, b, dtype=kind)
        total = product + c
        return total, np.asarray(total).view("u8") < np.asarray(product).view("u8")

    return multiply


for _names, _function in (
    ("add_co_u32", _with_carry),
    ("sub_co_u32", _with_borrow),
    ("subrev_co_u32", _swapped(_with_borrow)),
):
    PAIRED[f"v_{_names}"] = Operation("u32", ("u32", "u32"), _function)
for _names, _function in (
    ("addc_co_u32 add_co_ci_u32", _with_carry),
    ("subb_co_u32 sub_co_ci_u32", _with_borrow),
    ("subbrev_co_u32 subrev_co_ci_u32", _swapped(_with_borrow)),
):
    for _name in _names.split():
        PAIRED[f"v_{_name}"] = Operation("u32", ("u32", "u32", "mask"), _function)
PAIRED["v_mad_u64_u32"] = Operation("u64", ("u32", "u32", "u64"), _mad_wide("u8"), bad.upwards)
PAIRED["v_mad_i64_i32"] = Operation("i64", ("i32", "i32", "i64"), _mad_wide("i8"), bad.upwards)
PAIRED["v_div_scale_f32"] = Operation("f32", ("f32", "f32", "f32"), math.div_scale)
PAIRED["v_div_scale_f64"] = Operation("f64", ("f64", "f64", "f64"), math.div_scale)

# Comparisons

_COMPARISONS = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b), "ge": np.greater_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
}  # fmt: skip
for _name, _function in _COMPARISONS.items():
    for _kind in ("f16", "f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64"):
        for _prefix in ("v_cmp", "v_cmpx"):
            VECTOR[f"{_prefix}_{_name}_{_kind}"] = Operation("mask", (_kind, _kind), _function)
for _kind, _class in (("f16", "u16"), ("f32", "u32"), ("f64", "u32")):
    for _prefix in ("v_cmp", "v_cmpx"):
        VECTOR[f"{_prefix}_class_{_kind}"] = Operation("mask", (_kind, _class), math.classify)
