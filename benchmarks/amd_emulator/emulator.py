"""Kernels of a code object, executed by the emulator of a tinygrad checkout.

The emulator decodes and executes instructions; blocks, waves and memory are looked after here:

    for each block of the grid:
        shared memory: NaN patterns, so that what nobody wrote shows
        until all waves have ended:
            for each wave, first to last (or last to first, which shows some missing barriers):
                instructions up to the next barrier, or the end

Waves run one after the other between barriers, so that a missing wait cannot show; that is looked
for in the assembly (:mod:`tvm_fusion.deploy.toolchain.rocm_code`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .code_object import CodeObject, Descriptor
from .mend import mended, mended_pseudo_code

_EMULATOR = "test.mockgpu.amd.emu"

# Inactive lanes compute addresses, too, which the emulator reads: of garbage, anywhere in 4 GiB
# around the block's shared memory.
_ROOM = 1 << 33
_NORESERVE = 0x4000
_NAN = b"\xff"
# Registers that a launch may set, in order, by bit of kernel_code_properties; 3 is the arguments'.
_USER_REGISTERS = ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1))
_ARGUMENTS = 3
_GRANULE = 512  # of LDS sizes in COMPUTE_PGM_RSRC2, bits 15 to 23
_LDS_FIELD = 0x1FF << 15
LONGEST = 5_000_000  # instructions of a wave: more is an endless loop


def open_emulator(folder: Path) -> ModuleType:
    """Import the emulator from a checkout, mended.

    Parameters
    ----------
    folder : Path
        Of github.com/tinygrad/tinygrad.

    Returns
    -------
    module
        ``test.mockgpu.amd.emu``.
    """
    os.environ.setdefault("DEV", "CPU:LLVM")
    sys.path.insert(0, str(folder))
    # Other packages are called test, too, the standard library's among them.
    for name in [n for n in sys.modules if n == "test" or n.startswith("test.")]:
        del sys.modules[name]
    found = importlib.util.find_spec(_EMULATOR)
    if found is None or found.origin is None:
        raise ValueError(f"{folder} has no {_EMULATOR.replace('.', '/')}.py")
    emulator = importlib.util.module_from_spec(found)
    sys.modules[_EMULATOR] = emulator
    text = mended(Path(found.origin).read_text())
    exec(compile(text, found.origin, "exec"), vars(emulator))
    emulator.get_pcode = mended_pseudo_code(emulator.get_pcode)
    return emulator


class Emulator:
    """Launches kernels.

    Parameters
    ----------
    folder : Path
        The checkout.
    reverse : bool
        Whether waves run from the last to the first.
    """

    def __init__(self, folder: Path, reverse: bool = False):
        self._emu = open_emulator(folder)
        self._reverse = reverse
        self._runners: dict[int, tuple[Any, Sequence[int], bool]] = {}
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._room = mmap.mmap(-1, _ROOM, flags=flags)
        self._shared = ctypes.addressof(ctypes.c_char.from_buffer(self._room)) + _ROOM // 2

    def launch(
        self,
        code: CodeObject,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: bytes,
        dynamic_bytes: int = 0,
    ) -> None:
        """Run all blocks of a kernel, one after the other."""
        made = code.descriptor(kernel)
        shared = made.shared_bytes + dynamic_bytes
        padded = arguments.ljust(max(made.argument_bytes, len(arguments)) + 64, b"\0")
        held = ctypes.create_string_buffer(padded, len(padded))
        self._runners.clear()  # another code object may lie where one was
        with self._emu._MXCSRContext():
            for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
                ctypes.memset(self._shared, _NAN[0], shared)
                self._block(code, made, (x, y, z), block, ctypes.addressof(held), shared)

    def _block(
        self,
        code: CodeObject,
        made: Descriptor,
        at: tuple[int, int, int],
        block: Sequence[int],
        arguments: int,
        shared: int,
    ) -> None:
        emu, threads = self._emu, block[0] * block[1] * block[2]
        rsrc2 = (made.rsrc2 & ~_LDS_FIELD) | (-(-shared // _GRANULE) << 15)
        waves = []
        for first in range(0, threads, code.lanes):
            state = emu._init_wave(
                made.entry, first, threads, *block, arguments, rsrc2, made.scratch_bytes,
                code.arch, *at, _user_data(made, arguments), code.lanes,
            )  # fmt: skip
            scratch = ctypes.create_string_buffer(max(made.scratch_bytes, 1) * code.lanes)
            places = (
                state.sgpr_buf._buf.va_addr, state.vgpr_buf._buf.va_addr, 0, self._shared,
                ctypes.addressof(scratch), state.accvgpr_buf._buf.va_addr,
            )  # fmt: skip
            waves.append((state, [ctypes.c_uint64(place) for place in places], scratch))
        running = list(reversed(waves)) if self._reverse else waves
        while running:
            # A wave stays while it waits at a barrier.
            running = [wave for wave in running if self._wave(code, *wave[:2])]

    def _wave(self, code: CodeObject, state: Any, places: Sequence[Any]) -> bool:
        """Run a wave up to a barrier or its end; returns whether it goes on."""
        for _ in range(LONGEST):
            at = state.pc
            if at == self._emu.ENDPGM_PC:
                return False
            if at not in self._runners:
                self._runners[at] = self._runner(at, code.arch)
            function, used, is_barrier = self._runners[at]
            function(*[places[i] for i in used])
            if is_barrier:
                return True
        raise RuntimeError(f"a wave ran {LONGEST} instructions without a barrier")

    def _runner(self, at: int, arch: str) -> tuple[Any, Sequence[int], bool]:
        emu = self._emu
        (program, runtime), instruction = emu._decode_at(at, arch)
        is_barrier = getattr(instruction, "op", None) in emu._BARRIER_OPS
        return runtime.fxn, program.arg.globals, is_barrier


def _user_data(made: Descriptor, arguments: int) -> list[int]:
    registers: list[int] = []
    for bit, count in _USER_REGISTERS:
        if made.user_registers >> bit & 1:
            pair = [arguments & 0xFFFFFFFF, arguments >> 32]
            registers += pair if bit == _ARGUMENTS else [0] * count
    wanted = made.rsrc2 >> 1 & 0x1F
    return (registers + [0] * wanted)[:wanted]
