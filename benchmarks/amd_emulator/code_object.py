"""An AMD code object in memory: segments, symbols, kernel descriptors.

Formats: LLVM's "User Guide for AMDGPU Backend", sections Code Object and Kernel Descriptor.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass

# EF_AMDGPU_MACH to the emulator's name of the instruction set, and lanes of a wave.
MACHINES = {0x41: ("rdna3", 32), 0x4C: ("cdna", 64)}
_PAGE = 4096
_PT_LOAD, _SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 1, 2, 4, 11


@dataclass(frozen=True)
class Descriptor:
    """What a kernel asks of the hardware.

    Attributes
    ----------
    entry : int
        Address of its first instruction.
    shared_bytes, scratch_bytes, argument_bytes : int
        Of a block, of a thread, of a launch.
    rsrc2 : int
        The register COMPUTE_PGM_RSRC2: which identifiers lie in scalar registers.
    user_registers : int
        Bits that say what the first scalar registers hold (``kernel_code_properties``).
    """

    entry: int
    shared_bytes: int
    scratch_bytes: int
    argument_bytes: int
    rsrc2: int
    user_registers: int


class CodeObject:
    """A code object whose segments lie in this process.

    Parameters
    ----------
    data : bytes
        An ELF image.

    Raises
    ------
    ValueError
        For another machine, or relocations.
    """

    def __init__(self, data: bytes):
        machine = struct.unpack_from("<I", data, 48)[0] & 0xFF
        if machine not in MACHINES:
            raise ValueError(f"no machine {machine:#x} in the emulator")
        self.arch, self.lanes = MACHINES[machine]
        at_segments, at_sections = struct.unpack_from("<QQ", data, 32)
        (segments,) = struct.unpack_from("<H", data, 56)
        (sections,) = struct.unpack_from("<H", data, 60)
        headers = [
            struct.unpack_from("<IIQQQQQQ", data, at_segments + 56 * i) for i in range(segments)
        ]
        loads = [h for h in headers if h[0] == _PT_LOAD]
        top = max(h[3] + h[6] for h in loads)
        self._memory = mmap.mmap(-1, -(-(top + _PAGE) // _PAGE) * _PAGE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for _, _, offset, address, _, size, _, _ in loads:
            self._memory[address : address + size] = data[offset : offset + size]
        tables = [
            struct.unpack_from("<IIQQQQIIQQ", data, at_sections + 64 * i) for i in range(sections)
        ]
        self._symbols: dict[str, int] = {}
        for table in tables:
            if table[1] == _SHT_RELA and table[5]:
                raise ValueError("the code object has relocations")
            if table[1] in (_SHT_SYMTAB, _SHT_DYNSYM):
                names = tables[table[6]][4]
                for at in range(table[4], table[4] + table[5], 24):
                    name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                    end = data.index(b"\0", names + name)
                    self._symbols[data[names + name : end].decode()] = value

    def descriptor(self, kernel: str) -> Descriptor:
        """Read a kernel's descriptor."""
        at = self._symbols[f"{kernel}.kd"]
        shared, scratch, arguments, _, entry = struct.unpack_from("<IIIIq", self._memory, at)
        _, _, rsrc2 = struct.unpack_from("<III", self._memory, at + 44)
        properties, preload = struct.unpack_from("<HH", self._memory, at + 56)
        if preload:
            raise ValueError(f"{kernel} has its arguments in registers")
        return Descriptor(
            self._base + at + entry, shared, scratch, arguments, rsrc2, properties & 0x7F
        )
