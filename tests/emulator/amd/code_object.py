"""AMD code objects: the ELF file that a device loads.

Formats: LLVM's "User Guide for AMDGPU Backend", sections Code Object and Kernel Descriptor.
"""

import re
import struct
from dataclasses import dataclass

import numpy as np

from .disassembler import disassemble

MACHINES = {0x3F: "gfx90a", 0x41: "gfx1100", 0x4C: "gfx942", 0x4F: "gfx950"}
_PT_LOAD, _SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 1, 2, 4, 11


@dataclass(frozen=True)
class Descriptor:
    """What a kernel asks of the hardware.

    Attributes
    ----------
    entry
        Address or label of its first instruction.
    shared_bytes, scratch_bytes
        Of a block, of a thread.
    rsrc2
        The register COMPUTE_PGM_RSRC2: which identifiers lie in scalar registers.
    user_registers
        Bits that say what the first scalar registers hold (``kernel_code_properties``).
    """

    entry: int | str
    shared_bytes: int
    scratch_bytes: int
    rsrc2: int
    user_registers: int


def lanes_of(arch: str) -> int:
    """Return how many lanes the waves of our kernels have."""
    return 64 if arch.startswith("gfx9") else 32


class CodeObject:
    """A code object whose segments lie in this process.

    Parameters
    ----------
    data
        An ELF image.

    Raises
    ------
    ValueError
        For another machine, or relocations.

    Attributes
    ----------
    arch : str
        ``gfx942``.
    text
        Its instructions, as llvm-objdump writes them.
    memory : array of uint8
        The segments, at their addresses.
    """

    def __init__(self, data: bytes):
        machine = struct.unpack_from("<I", data, 48)[0] & 0xFF
        if machine not in MACHINES:
            raise ValueError(f"an object for machine {machine:#x}, expected {sorted(MACHINES)}")
        self.arch = MACHINES[machine]
        at_segments, at_sections = struct.unpack_from("<QQ", data, 32)
        segments, _, sections = struct.unpack_from("<HHH", data, 56)
        headers = [
            struct.unpack_from("<IIQQQQQQ", data, at_segments + 56 * i) for i in range(segments)
        ]
        loads = [h for h in headers if h[0] == _PT_LOAD]
        self.memory = np.zeros(max(h[3] + h[6] for h in loads) + 4096, "u1")
        for _, _, offset, address, _, size, _, _ in loads:
            self.memory[address : address + size] = np.frombuffer(data, "u1", size, offset)
        tables = [
            struct.unpack_from("<IIQQQQIIQQ", data, at_sections + 64 * i) for i in range(sections)
        ]
        self._symbols: dict[str, int] = {}
        texts = []
        for table in tables:
            if table[1] == _SHT_RELA and table[5]:
                raise ValueError("the code object has relocations")
            if table[1] in (_SHT_SYMTAB, _SHT_DYNSYM):
                names = tables[table[6]][4]
                for at in range(table[4], table[4] + table[5], 24):
                    name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                    end = data.index(b"\0", names + name)
                    self._symbols[data[names + name : end].decode()] = value
            if table[2] & 4:  # executable
                texts.append((data[table[4] : table[4] + table[5]], table[3]))
        self._texts = texts

    @property
    def text(self) -> str:
        """Disassemble it."""
        return "".join(disassemble(code, self.arch, address) for code, address in self._texts)

    @property
    def kernels(self) -> list[str]:
        """Return the names of its kernels."""
        return sorted({n[: -len(".kd")] for n in self._symbols if n.endswith(".kd")})

    def descriptor(self, kernel: str) -> Descriptor:
        """Read a kernel's descriptor."""
        at = self._symbols[f"{kernel}.kd"]
        raw = self.memory[at : at + 64].tobytes()
        shared, scratch, _, _, entry = struct.unpack_from("<IIIIq", raw)
        _, _, rsrc2 = struct.unpack_from("<III", raw, 44)
        properties, preload = struct.unpack_from("<HH", raw, 56)
        if preload:
            raise ValueError(f"{kernel} has its arguments in registers")
        return Descriptor(at + entry, shared, scratch, rsrc2, properties & 0x7F)


class Assembly:
    """A compiler's assembly, which has directives where a code object has descriptors."""

    def __init__(self, text: str):
        found = re.search(r"\.amdgcn_target \"[^\"]*-(gfx\w+)", text)
        if not found:
            raise ValueError("assembly without .amdgcn_target")
        self.arch = found[1]
        self.memory = np.zeros(0, "u1")
        self._kernels = {
            name: dict(re.findall(r"\.amdhsa_(\w+) (\d+)", body))
            for name, body in re.findall(
                r"\.amdhsa_kernel (\S+)\n(.*?)\.end_amdhsa_kernel", text, re.DOTALL
            )
        }
        code = re.sub(r"\.amdgpu_metadata.*?\.end_amdgpu_metadata", "", text, flags=re.DOTALL)
        self.text = code

    @property
    def kernels(self) -> list[str]:
        """Return the names of its kernels."""
        return sorted(self._kernels)

    def descriptor(self, kernel: str) -> Descriptor:
        """Read a kernel's directives."""
        fields = {name: int(value) for name, value in self._kernels[kernel].items()}
        names = (
            "private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr",
            "dispatch_id", "flat_scratch_init", "private_segment_size",
        )  # fmt: skip
        user = sum(fields.get(f"user_sgpr_{name}", 0) << bit for bit, name in enumerate(names))
        scratch = fields.get("system_sgpr_private_segment_wavefront_offset", 0)
        rsrc2 = fields.get("enable_private_segment", scratch)
        rsrc2 |= fields["user_sgpr_count"] << 1
        for bit, name in enumerate(("id_x", "id_y", "id_z", "info")):
            rsrc2 |= fields.get(f"system_sgpr_workgroup_{name}", 0) << 7 + bit
        rsrc2 |= fields.get("system_vgpr_workitem_id", 0) << 11
        return Descriptor(
            kernel, fields["group_segment_fixed_size"], fields["private_segment_fixed_size"],
            rsrc2, user,
        )  # fmt: skip
