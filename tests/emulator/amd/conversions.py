"""Conversions between types, and packing of two results, one row an instruction."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as math
from . import undefined as bad
from .float8 import f32_to_float8, float8_to_f32
from .operation import row

U32, U64 = np.uint32, np.uint64


for _from in ("f16", "f32", "f64", "i32", "u32", "i16", "u16"):
    for _to, _np in (("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        if _from != _to:
            row(f"cvt_{_to}_{_from}", _to, _from, lambda x, np_=_np: np.asarray(x).astype(np_))
    if _from[0] == "f":
        for _to, _np in (("i32", "i4"), ("u32", "u4"), ("i16", "i2"), ("u16", "u2")):
            row(f"cvt_{_to}_{_from}", _to, _from, lambda x, np_=_np: math.to_integer(x, np_))
for _at in range(4):
    row(
        f"cvt_f32_ubyte{_at}", "f32", "u32",
        lambda x, at=_at: (x >> U32(8 * at) & U32(255)).astype("f4"),
        bad.of_bits(0xFF << 8 * _at),
    )  # fmt: skip
row("cvt_flr_i32_f32 cvt_floor_i32_f32", "i32", "f32", lambda x: math.to_integer(np.floor(x), "i4"))
row(
    "cvt_rpi_i32_f32 cvt_nearest_i32_f32", "i32", "f32",
    lambda x: math.to_integer(np.floor(x + np.float32(0.5)), "i4"),
)  # fmt: skip


def _pack(low: Any, high: Any) -> Any:
    low, high = np.asarray(low), np.asarray(high)
    unsigned = f"u{low.dtype.itemsize}"
    return low.view(unsigned).astype(U32) | high.view(unsigned).astype(U32) << U32(16)


row("pack_b32_f16", "u32", "f16 f16", _pack, bad.packed)
row(
    "cvt_pkrtz_f16_f32 cvt_pk_rtz_f16_f32", "u32", "f32 f32",
    lambda a, b: _pack(math.round_to_zero_f16(a), math.round_to_zero_f16(b)), bad.packed_wide,
)  # fmt: skip
for _kind, _np in (("i16", "i2"), ("u16", "u2")):
    _wide_kind = f"{_kind[0]}32"

    def _clipped(a: Any, b: Any, np_: str = _np) -> Any:
        info = np.iinfo(np_)
        return _pack(*(np.clip(x, info.min, info.max).astype(np_) for x in (a, b)))

    row(f"cvt_pk_{_kind}_{_wide_kind}", "u32", f"{_wide_kind} {_wide_kind}", _clipped)
    row(
        f"cvt_pk_{_kind}_f32", "u32", "f32 f32",
        lambda a, b, np_=_np: _pack(math.to_integer(a, np_), math.to_integer(b, np_)),
    )  # fmt: skip


def _normalised(kind: str, low: float, scale: float) -> Callable[..., Any]:
    def convert(a: Any, b: Any) -> Any:
        return _pack(
            *(np.rint(np.clip(x, low, 1) * np.float32(scale)).astype(kind) for x in (a, b))
        )

    return convert


row("cvt_pknorm_i16_f32 cvt_pk_norm_i16_f32", "u32", "f32 f32", _normalised("i2", -1, 32767))
row("cvt_pknorm_u16_f32 cvt_pk_norm_u16_f32", "u32", "f32 f32", _normalised("u2", 0, 65535))

for _kind in ("fp8", "bf8"):

    def _widened(x: Any, kind: str = _kind) -> Any:
        return float8_to_f32(x, kind)

    def _widened_pair(x: Any, kind: str = _kind) -> Any:
        low, high = (float8_to_f32(x >> np.uint16(s) & np.uint16(255), kind) for s in (0, 8))
        return low.view(U32).astype("u8") | high.view(U32).astype("u8") << U64(32)

    def _narrowed(a: Any, b: Any, kind: str = _kind) -> Any:
        low, high = (f32_to_float8(x, kind).astype("u2") for x in (a, b))
        return low | high << np.uint16(8)

    row(f"cvt_f32_{_kind}", "f32", "u8", _widened)
    row(f"cvt_pk_f32_{_kind}", "u64", "u16", _widened_pair)
    row(f"cvt_pk_{_kind}_f32", "u16", "f32 f32", _narrowed)
