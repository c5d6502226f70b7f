"""Launching kernels: registers as the hardware sets them, blocks in batches."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .code_object import Assembly, CodeObject, Descriptor, lanes_of
from .group import Group
from .machine import Launch, Machine
from .memory import Regions
from .operands import put
from .program import Program, decode
from .scalar_operands import put_scalar
from .step import Processor

# Scalar registers that a launch may set, in order, by bit of kernel_code_properties.
_USER_REGISTERS = ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1))
_SCRATCH_DESCRIPTOR, _ARGUMENTS = 0, 3
_SWIZZLE = 1 << 31
#: Waves that run together: more are faster, as long as their registers stay in the cache.
WAVES = 64


@functools.lru_cache(maxsize=64)
def load(code: bytes | str) -> Kernels:
    """Decode a code object, or a compiler's assembly."""
    return Kernels(CodeObject(code) if isinstance(code, bytes) else Assembly(code))


class Kernels:
    """The kernels of a code object."""

    def __init__(self, code: CodeObject | Assembly):
        self.code = code
        self.base = code.memory.ctypes.data if code.memory.size else 0
        self.processor = Processor(code.arch, lanes_of(code.arch))
        self.program: Program = decode(code.text, self.processor, self.base)


def run(
    code: bytes | str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: bytes | Sequence[Any],
    dynamic_lds: int = 0,
    *,
    memory: Iterable[tuple[int, int]] | None = None,
    reverse: bool = False,
    clocks: bool = False,
    blocks: Sequence[int] | None = None,
) -> Launch:
    """Launch a kernel and wait for its end.

    Parameters
    ----------
    code
        A code object, or the assembly that TVM's ``inspect_source("asm")`` gives.
    kernel
        Name of the device function.
    grid, block
        Blocks, and threads of a block: x, y, z.
    arguments
        Arrays, whose address is passed, and numpy scalars; or the packed arguments.
    dynamic_lds
        Bytes behind the LDS that the kernel declares.
    memory
        Addresses and sizes of what else the kernel may access. With packed arguments and without
        it, that is the mappings of this process that the arguments point into.
    reverse
        Whether waves come in reverse order, where that makes a difference.
    clocks
        Whether LDS bank conflicts are counted.
    blocks
        Numbers of those blocks of the grid that run, x the fastest; all of them by default.

    Returns
    -------
    Launch
        With how often waves ran each instruction.

    Raises
    ------
    Mistake
        If the kernel does what a device answers with wrong numbers or a fault.
    Unsupported
        If there is an instruction that the interpreter does not know.
    """
    loaded = load(code)
    made = loaded.code.descriptor(kernel)
    regions = [(address, size, "an allocation") for address, size in memory or ()]
    packed = arguments
    if not isinstance(arguments, bytes):
        packed, found = pack(arguments)
        regions += found
    elif memory is None:
        regions = _mapped(arguments)
    held = np.frombuffer(bytes(packed) + bytes(256), "u1").copy()
    regions.append((held.ctypes.data, held.size, "the arguments"))
    if loaded.code.memory.size:
        regions.append((loaded.base, loaded.code.memory.size, "the code object"))
    lanes = loaded.processor.lanes
    block = [*block, 1, 1][:3]
    grid = [*grid, 1, 1][:3]
    program = loaded.program
    addresses = {at: i for at, i in program.place.items() if isinstance(at, int)}
    launch = Launch(
        kernel, program.steps, addresses, Regions(regions), lanes, program.granules, reverse
    )
    if clocks:
        launch.clocks = {}
    threads = block[0] * block[1] * block[2]
    waves = -(-threads // lanes)
    batch = max(WAVES // waves, 1)
    numbers = np.arange(grid[0] * grid[1] * grid[2]) if blocks is None else np.array(blocks)
    with np.errstate(all="ignore"):
        for start in range(0, len(numbers), batch):
            some = numbers[start : start + batch]
            machine = Machine(
                launch, some, waves, made.shared_bytes + dynamic_lds, made.scratch_bytes
            )
            _initialise(machine.group, made, grid, block, held.ctypes.data, loaded.processor)
            machine.run(program.place[made.entry])
    return launch


def pack(arguments: Sequence[Any]) -> tuple[bytes, list[tuple[int, int, str]]]:
    """Lay arguments out as a kernel reads them; returns the regions of arrays as well."""
    packed, regions = b"", []
    for at, value in enumerate(arguments):
        if isinstance(value, np.ndarray) and value.ndim >= 0 and not isinstance(value, np.generic):
            if not value.flags.c_contiguous:
                raise ValueError(f"argument {at} is not contiguous")
            regions.append((value.ctypes.data, value.nbytes, f"argument {at}"))
            value = np.uint64(value.ctypes.data)
        raw = np.asarray(value).tobytes()
        packed = packed.ljust(-(-len(packed) // len(raw)) * len(raw), b"\0") + raw
    return packed, regions


def _mapped(packed: bytes) -> list[tuple[int, int, str]]:
    """Return the writable mappings of this process that words of the arguments point into."""
    words = {int(x) for x in np.frombuffer(packed[: len(packed) // 8 * 8], "u8")}
    spans: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, rights, *_ = line.split()
        start, end = (int(x, 16) for x in bounds.split("-"))
        if not rights.startswith("rw"):
            continue
        if spans and spans[-1][1] == start:  # an array may lie in two
            start = spans.pop()[0]
        spans.append((start, end))
    return [
        (start, end - start, "a mapping")
        for start, end in spans
        if any(start <= word < end for word in words)
    ]


def _initialise(
    g: Group, made: Descriptor, grid: Sequence[int], block: Sequence[int], arguments: int,
    processor: Processor,
) -> None:  # fmt: skip
    """Set the registers that the hardware sets before the first instruction."""
    machine, lanes = g.machine, g.lanes
    numbers, waves = machine.block[g.ids], machine.wave[g.ids]
    thread = waves[:, None] * lanes + np.arange(lanes)
    width, height = block[0], block[1]
    x, y, z = thread % width, thread // width % height, thread // (width * height)
    inside = thread < block[0] * block[1] * block[2]
    put(g, 0, (x | y << 10 | z << 20).astype("u4"))
    g.set_exec(inside)
    registers: list[Any] = []
    for bit, count in _USER_REGISTERS:
        if made.user_registers >> bit & 1:
            if bit == _ARGUMENTS:
                registers += [arguments & 0xFFFFFFFF, arguments >> 32]
            elif bit == _SCRATCH_DESCRIPTOR:
                registers += [0, _SWIZZLE, 0xFFFFFFFF, 0]
            else:
                registers += [0] * count
    wanted = made.rsrc2 >> 1 & 0x1F
    registers = (registers + [None] * wanted)[:wanted]
    places = np.stack([numbers % grid[0], numbers // grid[0] % grid[1],
                       numbers // (grid[0] * grid[1])])  # fmt: skip
    for bit, axis in ((7, 0), (8, 1), (9, 2)):
        if made.rsrc2 >> bit & 1:
            registers.append(places[axis].astype("u4"))
    if made.rsrc2 >> 10 & 1:
        registers.append(0)
    if made.rsrc2 & 1:  # where the wave's scratch begins
        registers.append(0)
    for number, value in enumerate(registers):
        if value is not None:
            put_scalar(g, number, value)
    for number in itertools.chain((102, 103, 104, 105), (128,)):
        put_scalar(g, number, 0)
