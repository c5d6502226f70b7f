"""What TVM's and LLVM's code generators made of AMD kernels, read back before anything is shipped.

The text of a built module is checked for faults that a device would answer with wrong numbers or a
memory fault: shared or private memory addressed as global memory, and barriers that a wave reaches
while its writes to shared memory may still be on their way. Registers that LLVM moved to memory or
to accumulation registers cost time only: they are reported.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Address spaces of AMDGPU: 1 is global, 3 shared (LDS), 5 private (scratch).
_CAST = re.compile(r"addrspacecast \(?ptr addrspace\(([35])\) [^\n]*? to ptr addrspace\(1\)")
_MEMORY = {"3": "shared", "5": "private"}
_FUNCTION = re.compile(r"^define [^\n]*?@(?:\"([^\"]+)\"|([\w.$-]+))\(", re.MULTILINE)
_LDS_WRITE = re.compile(r"ds_(?!read|load|bpermute|permute|swizzle|nop)")
_NO_LDS_PENDING = re.compile(r"s_waitcnt\b.*\blgkmcnt\(0\)|s_waitcnt 0$|s_wait_dscnt 0x0")
_BRANCH = re.compile(r"s_(c?)branch\w*\s+(\S+)")


@dataclass(frozen=True)
class KernelCode:
    """What the metadata of a code object say of one kernel."""

    name: str  # of the device function
    registers: int  # vector registers of a lane, accumulation registers included
    # Those among them that only CDNA has; kernels without matrix instructions need none.
    accumulation_registers: int
    scalar_registers: int  # of a wave
    shared_bytes: int  # of one block
    # Of one thread, in memory: spilled registers and arrays with computed indices.
    scratch_bytes: int
    spilled: int  # vector and scalar registers that were moved elsewhere for want of room
    threads: int  # the most that a block may have

    @property
    def spills(self) -> bool:
        """Whether registers, or arrays with computed indices, lie elsewhere."""
        return bool(self.spilled or self.scratch_bytes)


def kernels(assembly: str) -> list[KernelCode]:
    """Read the metadata of all kernels of an assembly text."""
    metadata = assembly[assembly.index("amdhsa.kernels:") : assembly.index("amdhsa.target:")]
    found = []
    for text in re.split(r"^  - ", metadata, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^ {0,4}\.(\w+): +(\S+)$", text, re.MULTILINE))
        number = {name: int(value) for name, value in fields.items() if value.isdigit()}
        found.append(
            KernelCode(
                fields["name"].strip("'\""),
                number["vgpr_count"],
                number.get("agpr_count", 0),
                number["sgpr_count"],
                number["group_segment_fixed_size"],
                number["private_segment_fixed_size"],
                number["vgpr_spill_count"] + number["sgpr_spill_count"],
                number["max_flat_workgroup_size"],
            )
        )
    return found


def faults(ir: str, assembly: str) -> Iterator[tuple[str, str]]:
    """Find what would run wrongly.

    Parameters
    ----------
    ir
        LLVM's IR of a module.

    Yields
    ------
    tuple of str and str
        A function's name and what is wrong with it, a clause.
    """
    starts = list(_FUNCTION.finditer(ir))
    ends = [start.start() for start in starts[1:]] + [len(ir)]
    for start, end in zip(starts, ends, strict=True):
        cast = _CAST.search(ir, start.end(), end)
        if cast is not None:
            yield start[1] or start[2], f"addresses {_MEMORY[cast[1]]} memory as global memory"
    for kernel in kernels(assembly):
        count = unguarded_barriers(_body(assembly, kernel.name))
        if count:
            yield (
                kernel.name,
                f"passes {count} barriers without waiting for its writes to shared memory",
            )


def unguarded_barriers(assembly: str) -> int:
    """Count barriers that a write to shared memory can reach without a wait between.

    Parameters
    ----------
    assembly
        Of one function; every path through its branches is followed.

    Returns
    -------
    int
        How many barrier instructions.
    """
    lines = [line.split(";")[0].strip() for line in assembly.splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    pending_at: list[bool | None] = [None] * len(lines)
    bad, work = set(), [(0, False)]
    while work:
        at, pending = work.pop()
        while at < len(lines) and not (pending_at[at] or pending_at[at] is pending):
            pending_at[at] = pending
            line = lines[at]
            if _LDS_WRITE.match(line):
                pending = True
            elif _NO_LDS_PENDING.match(line):
                pending = False
            elif line.startswith("s_barrier") and pending:
                bad.add(at)
            elif line.startswith("s_endpgm"):
                break
            elif branch := _BRANCH.match(line):
                if branch[2] in labels:
                    work.append((labels[branch[2]], pending))
                if not branch[1]:
                    break
            at += 1
    return len(bad)


def amd_modules(module: Any) -> Iterator[Any]:
    """Yield a runtime module and what it imports, as far as they hold AMD code."""
    if module.kind == "hip":
        yield module
    for imported in module.imports:
        yield from amd_modules(imported)


def _body(assembly: str, name: str) -> str:
    start = assembly.index(f"\n{name}:")
    return assembly[start : assembly.index("\n.Lfunc_end", start)]
