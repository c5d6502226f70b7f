"""What tinygrad's emulator needs to run what LLVM makes of whole kernels; applied in memory.

Found with the checkout of August 2026 (a9069c177a). Each mend names the text that it replaces and
stops if it is not there once more: then the emulator has changed, and may need it no longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# Upper halves of registers above 127 are named so by RDNA's 16-bit instructions alone: CDNA's read
# and write the registers themselves.
_HALVES = (
    ("_c(384)", "_c(384 if ctx.wave_size == 32 else 4096)", 4),
    ("bits['d'] == 16 and (vdst_reg", "ctx.wave_size == 32 and bits['d'] == 16 and (vdst_reg", 1),
    ("bits['s0'] == 16 and (vsrc1", "ctx.wave_size == 32 and bits['s0'] == 16 and (vsrc1", 1),
    (
        "if bits['s0'] == 16:\n      vsrc1_hi",
        "if bits['s0'] == 16 and ctx.wave_size == 32:\n      vsrc1_hi",
        1,
    ),
)
# Loads of 16 bits from LDS keep the other half of the register.
_LDS_HALF_AT = "      write_gpr = ctx.waccvgpr_dyn if use_acc else ctx.wvgpr_dyn\n"
_LDS_HALF = """      if is_lds and 'D16' in op_name:
        old, new = ctx.rvgpr_dyn(vdst_reg, lane), _to_u32(val) & _c(0xFFFF)
        high = (old & _c(0xFFFF)) | (new << _c(16))
        both = high if op_name.endswith('_HI') else (old & _c(0xFFFF0000)) | new
        return [ctx.wvgpr_dyn(vdst_reg, lane, both, exec_mask)]
"""
# LDS instructions whose data lie in accumulation registers read ordinary ones.
_DATA_FROM = "      if data_bits_mem <= 32:\n        data = {'DATA'"
_DATA_TO = "      # RDNA3 uses ADDR/OFFSET"
_DATA = "      read = (lambda r, l: ctx.raccvgpr_dyn(r, l)) if use_acc else ctx.rvgpr_dyn\n"


def mended(text: str) -> str:
    """Mend the emulator's source.

    Raises
    ------
    ValueError
        If it is not the one that the mends are for.
    """

    def replaced(text: str, old: str, new: str, count: int = 1) -> str:
        if text.count(old) != count:
            raise ValueError(f"the emulator has changed: {old!r} is there {text.count(old)} times")
        return text.replace(old, new)

    for old, new, count in _HALVES:
        text = replaced(text, old, new, count)
    text = replaced(text, _LDS_HALF_AT, _LDS_HALF + _LDS_HALF_AT)
    text = replaced(text, _DATA_FROM, _DATA + _DATA_FROM)
    start, end = text.index(_DATA_FROM), text.index(_DATA_TO)
    return text[:start] + text[start:end].replace("ctx.rvgpr_dyn(", "read(") + text[end:]


def mended_pseudo_code(pcode: Callable[[Any], str]) -> Callable[[Any], str]:
    """Mend the pseudo code of instructions.

    Lanes of DS_PERMUTE and DS_BPERMUTE wrap ("high-order bits are ignored", AMD's guide says); the
    parser knows no modulo. And a NaN of 16 bits is written as a number that no float16 holds.
    """

    def get(op: Any) -> str:
        text = pcode(op)
        if "PERMUTE" in op.name:
            lanes = r"(/ 4U?) % (\d+)(U?)"
            text = re.sub(lanes, lambda m: f"{m[1]} & {int(m[2]) - 1}{m[3]}", text)
        return text.replace("16'F(0xfe00)", "NAN.f16")

    return get
