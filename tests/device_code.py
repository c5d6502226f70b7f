"""Readers of the machine code inside an exported library, by its formats' headers."""

import re
import struct

EM_CUDA, EM_AMDGPU = 190, 224


def elf_flags(data: bytes, machine: int) -> list[int]:
    """`e_flags` of every ELF image for a machine inside a file."""
    starts = [m.start() for m in re.finditer(b"\x7fELF\x02", data)]
    headers = [data[i : i + 64] for i in starts]
    return [
        struct.unpack_from("<I", header, 48)[0]
        for header in headers
        if len(header) == 64 and struct.unpack_from("<H", header, 18)[0] == machine
    ]


def cuda_archs(data: bytes) -> list[int]:
    """Compute capabilities (90 for sm_90 and sm_90a) of the cubins inside a file, ascending."""
    return sorted(flags >> 8 & 0xFF for flags in elf_flags(data, EM_CUDA))


def fat_binary_kinds(data: bytes) -> list[int]:
    """Kind of every entry of every fat binary inside a file: 1 is PTX, 2 a cubin."""
    kinds = []
    for match in re.finditer(struct.pack("<I", 0xBA55ED50), data):
        header_size, size = struct.unpack_from("<HQ", data, match.start() + 6)
        at = match.start() + header_size
        end = at + size
        while at < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, at)
            kinds.append(kind)
            at += entry_header + entry_size
    return kinds


def unguarded_barriers(assembly: str) -> int:
    """Barriers of AMD assembly that a write to shared memory reaches without a wait between."""
    pending, count = False, 0
    for line in assembly.splitlines():
        instruction = line.split(";")[0].strip()
        if re.match(r"ds_(write|store)", instruction):
            pending = True
        elif "lgkmcnt(0)" in instruction or instruction.startswith("s_wait_dscnt 0x0"):
            pending = False
        elif instruction.startswith("s_barrier"):
            count += pending
    return count


def amd_kernels(assembly: str) -> list[dict[str, int]]:
    """What the metadata of AMD assembly say of each kernel: the numbers, by their names."""
    metadata = assembly[assembly.index("amdhsa.kernels:") : assembly.index("amdhsa.target:")]
    kernels = re.split(r"^  - ", metadata, flags=re.MULTILINE)[1:]
    return [
        {name: int(number) for name, number in re.findall(r"^ {0,4}\.(\w+): +(\d+)$", text, re.M)}
        for text in kernels
    ]
