"""Names of registers and constants in the text of instructions.

Registers have numbers of one space: vector registers from 0, accumulation registers from
:data:`AGPR`, scalar ones from :data:`SGPR`, those with names among them.
"""

import re
import struct
from dataclasses import dataclass

import numpy as np

from .text import Unsupported

AGPR, SGPR = 1 << 10, 1 << 11
SCALARS = 130
VCC, M0, NULL, EXEC, SCC = 106, 124, 125, 126, 128
_NAMED = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1), "null": (NULL, 2),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1), "src_scc": (SCC, 1),
    "scc": (SCC, 1), "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1), "xnack_mask": (104, 2),
}  # fmt: skip
_REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d+)(?:\.([lh]))?|\[(\d+):(\d+)\]|\[(\d+)\])$")
_BASES = {"v": 0, "a": AGPR, "s": SGPR, "ttmp": SGPR + 108}
# 1/(2 pi), a constant of instructions, in 16, 32 and 64 bits.
_INVERSE_TWO_PI = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
_FLOAT_FORMATS = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}


@dataclass(frozen=True)
class Registers:
    """A range of registers; ``half`` is 1 for the upper 16 bits of one, None where unsaid."""

    first: int
    count: int
    half: int | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether a wave, not a lane, has them."""
        return self.first >= SGPR

    @property
    def numbers(self) -> range:
        """All of them."""
        return range(self.first, self.first + self.count)


def registers(text: str) -> Registers | None:
    """Read a register's name; None if it is a constant."""
    if text in _NAMED:
        first, count = _NAMED[text]
        return Registers(SGPR + first, count)
    found = _REGISTER.match(text)
    if not found:
        return None
    kind, single, half, first, last, alone = found.groups()
    base = _BASES[kind]
    if first is not None:
        return Registers(base + int(first), int(last) - int(first) + 1)
    return Registers(base + int(single or alone), 1, None if half is None else int(half == "h"))


def constant(text: str, bits: int, is_float: bool) -> int:
    """Return the bits of a constant as an operand of a type.

    Decimal fractions are floating-point values of the operand's width. Literals of 32 bits are the
    upper half of a 64-bit floating-point operand, and are extended to a 64-bit integer.
    """
    try:
        if re.fullmatch(r"-?(\d+|0x[0-9a-fA-F]+)", text):
            value = int(text, 0)
            if bits == 64 and is_float and text.startswith("0x"):
                return value << 32 if value < 1 << 32 else value
            return value & ((1 << bits) - 1)
        value = float(text)
    except ValueError:
        raise Unsupported(f"operand {text!r}") from None
    width = bits if is_float else max(bits, 32)
    if abs(value - 0.15915494) < 1e-3:
        return _INVERSE_TWO_PI[width]
    value_format, integer_format = _FLOAT_FORMATS[width]
    (integer,) = struct.unpack(integer_format, struct.pack(value_format, value))
    return integer & ((1 << bits) - 1)


def scalar(dtype: str, bits: int) -> np.generic:
    """Make a numpy scalar from bits."""
    kind = np.dtype(dtype)
    return np.array([bits], f"<u{kind.itemsize}").view(kind)[0]
