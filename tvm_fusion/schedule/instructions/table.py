"""All matrix instructions, and the choice of one for a device."""

from functools import cache

from ...device import Device
from .amd import AMD
from .cpu import CPU, SMALL_BITS, WORD, dot_bits
from .instruction import Instruction
from .nvidia import HALF_TYPES, NVIDIA

INSTRUCTIONS = (*NVIDIA, *AMD, *CPU)
_DOTS = ("dot", "maddubs", "sdot")


def has(device: Device, row: Instruction) -> bool:
    """Whether a device can execute an instruction."""
    if row.family in _DOTS:
        return row.n * WORD <= dot_bits(device, row.kind)
    return device.has_matrix(row.family, row.kind, (row.m, row.n, row.k))


def instructions_of(device: Device, a_dtype: str, b_dtype: str) -> list[Instruction]:
    """List the matrix instructions of a device for types of A and B, in the table's order."""
    return [row for row in INSTRUCTIONS if row.takes(a_dtype, b_dtype) if has(device, row)]


def find(device: Device, family: str, a_dtype: str, b_dtype: str) -> Instruction | None:
    """Find the best instruction of a family that a device has for types of A and B."""
    rows = instructions_of(device, a_dtype, b_dtype)
    return next((row for row in rows if row.family == family), None)


def find_of_bytes(device: Device, bits: int) -> Instruction | None:
    """Find what a CPU multiplies integers of so many bits with int8 by.

    It takes them as uint8, or as int8 or int16: then those of 8 bits have a sign.
    """
    families = ["dot", "maddubs"] if bits <= SMALL_BITS else ["dot"]
    rows = [find(device, family, "uint8", "int8") for family in families]
    rows += [find(device, "sdot", "int8", "int8"), find(device, "dot", "int16", "int16")]
    return next((row for row in rows if row is not None), None)


def find_dot(device: Device, a_dtype: str, b_dtype: str) -> Instruction | None:
    """Find the dot product of an AMD lane, a word of A by a word of B, for types of A and B."""
    found = (find(device, family, a_dtype, b_dtype) for family in ("v_dot", "v_dot_iu8"))
    return next((row for row in found if row is not None), None)


def find_of_fragments(device: Device, a_dtype: str, b_dtype: str) -> Instruction | None:
    """Find the best instruction that multiplies the fragments of a warp, or of a wave."""
    families = ("mma.sync", "mfma", "wmma")
    found = (find(device, family, a_dtype, b_dtype) for family in families)
    return next((row for row in found if row is not None), None)


def find_half(device: Device, dtype: str) -> Instruction | None:
    """Find the ``mma.sync`` of a half type; ``None`` for other types."""
    return find(device, "mma.sync", dtype, dtype) if dtype in HALF_TYPES else None


@cache
def newest(family: str, a_dtype: str, b_dtype: str) -> Instruction:
    """Return the instruction of a family for types of A and B that the newest devices have.

    Kernels lay out fragments for it: older devices multiply them with several instructions, one
    behind the other.
    """
    rows = (row for row in INSTRUCTIONS if row.family == family)
    return next(row for row in rows if row.takes(a_dtype, b_dtype))
