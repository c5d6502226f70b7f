"""Which machine a library is for, read off its first bytes."""

from pathlib import Path

# e_machine of the ELF header: /usr/include/elf.h.
_MACHINES = {3: "i386", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_AT, _UNTIL = 18, 20

#: Of which TVM has wheels.
FAMILIES = ("x86_64", "aarch64")


def machine_of(library: Path) -> str | None:
    """Name the CPU family of a shared library as :func:`tvm_fusion.device.probe.machine` does.

    Returns
    -------
    str or None
        None for what is no ELF file, or of a family without a name here.
    """
    with library.open("rb") as file:
        header = file.read(_UNTIL)
    if len(header) < _UNTIL or header[:4] != b"\x7fELF":
        return None
    code = header[_AT:_UNTIL]
    return _MACHINES.get(int.from_bytes(code, "little" if header[5] == 1 else "big"))
