"""All matrix instructions, and the choice of one for a device."""

from __future__ import annotations

from ...device import Device
from .amd import AMD
from .instruction import Instruction
from .nvidia import NVIDIA
from .x86 import X86

INSTRUCTIONS = (*NVIDIA, *AMD, *X86)


def instructions_of(device: Device, a_dtype: str, b_dtype: str) -> list[Instruction]:
    """List the matrix instructions of a device for types of A and B, in the table's order."""
    return [
        row
        for row in INSTRUCTIONS
        if row.takes(a_dtype, b_dtype)
        if device.has_matrix(row.family, row.kind, (row.m, row.n, row.k))
    ]
