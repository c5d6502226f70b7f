"""Machine code to text by LLVM's library, which lld brings along; no tool is started.

LLVM 19 knows an older encoding of RDNA 3's 16-bit instructions than the compiler writes: it loses
which half of a register they use. That is read from the encoding here.
"""

import ctypes
import functools
import re
import struct
from typing import Any

_LIBRARIES = (
    "libLLVM.so.22.1", "libLLVM.so.21.1", "libLLVM.so.20.1", "libLLVM.so.19.1", "libLLVM-19.so.1",
)  # fmt: skip
_LONGEST = 20
_VOP1 = 0x3F
_UPPER_DESTINATION, _UPPER_SOURCE, _UPPER_SECOND = 1 << 24, 1 << 7, 1 << 16
# What LLVM 19 says of an upper half, whose number is 128 higher.
_UPPER = re.compile(r"v(\d+)/\*Invalid register[^*]*\*/")
_SIXTEEN = re.compile(r"[bfiu]16\b|[bfiu]16_")


@functools.cache
def library() -> Any:
    """Return LLVM's library, or None."""
    for name in _LIBRARIES:
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        for part in ("TargetInfo", "TargetMC", "Disassembler"):
            getattr(found, f"LLVMInitializeAMDGPU{part}")()
        found.LLVMCreateDisasmCPUFeatures.restype = ctypes.c_void_p
        found.LLVMCreateDisasmCPUFeatures.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        found.LLVMDisasmInstruction.restype = ctypes.c_size_t
        found.LLVMDisasmInstruction.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p,
            ctypes.c_size_t,
        ]  # fmt: skip
        return found
    return None


@functools.cache
def _context(arch: str, features: str = "") -> int:
    llvm = library()
    if llvm is None:
        raise RuntimeError(f"no LLVM library was found ({', '.join(_LIBRARIES)})")
    found: int = llvm.LLVMCreateDisasmCPUFeatures(
        b"amdgcn-amd-amdhsa", arch.encode(), features.encode(), None, 0, None, None
    )
    return found


def _one(context: int, code: bytes, address: int) -> tuple[int, str]:
    buffer = ctypes.create_string_buffer(512)
    size = library().LLVMDisasmInstruction(context, code, len(code), address, buffer, 512)
    return size, buffer.value.decode().strip()


def disassemble(code: bytes, arch: str, address: int) -> str:
    """Write instructions as llvm-objdump does, each with its address and encoding.

    Parameters
    ----------
    code
        Of a section.
    arch
        ``gfx942``.
    address
        Of the section.
    """
    context, at, lines = _context(arch), 0, []
    while at < len(code):
        piece = code[at : at + _LONGEST]
        size, text = _one(context, piece, address + at)
        if not size and arch.startswith("gfx11"):
            size, text = _with_upper_half(arch, piece, address + at)
        if not size:
            size, text = 4, "unknown"
        words = struct.unpack_from(f"<{size // 4}I", piece)
        if arch.startswith("gfx11"):
            text = _with_halves(text, words[0])
        if text.startswith("s_code_end"):
            break
        encoding = " ".join(f"{word:08X}" for word in words)
        lines.append(f"\t{text} // {address + at:012X}: {encoding}\n")
        at += size
    return "".join(lines)


def _with_upper_half(arch: str, piece: bytes, address: int) -> tuple[int, str]:
    """Decode an instruction that LLVM 19 does not know because of the halves that it uses.

    It knows some where it is told of true 16-bit registers. Of VOP1 and VOP2 the highest bit of a
    register's number names the upper half: it is taken out and the operand named ``v1.h``.
    """
    size, text = _one(_context(arch, "+real-true16"), piece, address)
    (word,) = struct.unpack_from("<I", piece)
    if size or word >> 31:
        return size, text
    upper = {0: word & _UPPER_DESTINATION, 1: word & _UPPER_SOURCE if word & 0x100 else 0}
    if word >> 25 != _VOP1:
        upper[2] = word & _UPPER_SECOND
    lower = word & ~sum(upper.values())
    size, text = _one(_context(arch), struct.pack("<I", lower) + piece[4:], address)
    mnemonic, _, rest = text.partition(" ")
    operands = rest.split(", ")
    for place, bit in upper.items():
        if bit and size:
            place += place == 2 and "fmamk" in mnemonic  # its constant comes first
            operands[place] = re.sub(r"(v\d+)(\.l)?", r"\1.h", operands[place])
    return size, f"{mnemonic} {', '.join(operands)}"


def _with_halves(text: str, word: int) -> str:
    """Name the upper halves that an instruction of 16 bits uses."""
    text = _UPPER.sub(lambda found: f"v{int(found[1]) - 128}.h", text)
    mnemonic = text.partition(" ")[0]
    if word >> 26 != 0x35 or "op_sel" in text or not _SIXTEEN.search(mnemonic):
        return text
    chosen = word >> 11 & 15
    if not chosen:
        return text
    bits = [chosen >> i & 1 for i in range(4)]
    sources = text.count(",")
    return f"{text} op_sel:[{','.join(str(b) for b in (*bits[: min(sources, 3)], bits[3]))}]"
