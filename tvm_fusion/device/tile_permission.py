"""The permission to use AMX's tile registers, which Linux gives to a process that asks for it.

Their 8 KiB a thread would make every signal frame larger, so that Linux saves them for processes
that asked only (Documentation/arch/x86/xstate.rst). Threads that were started before have the
permission as well; processes that are forked inherit it, and programs that are executed do not.
"""

import ctypes
import functools
import os
from collections.abc import Iterable, Mapping

_ARCH_PRCTL = 158  # on x86-64
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
_TILES = "amx-"

#: LLVM's intrinsics of AMX, with its names of what brings them (Intel's Intrinsics Guide).
TILE_INTRINSICS: Mapping[str, str] = {
    f"llvm.x86.{name}": feature
    for feature, names in {
        "amx-tile": "ldtilecfg tilerelease tilezero tileloadd64 tileloaddt164 tilestored64",
        "amx-int8": "tdpbssd tdpbsud tdpbusd tdpbuud",
        "amx-bf16": "tdpbf16ps",
        "amx-fp16": "tdpfp16ps",
    }.items()
    for name in names.split()
}
#: What to do where the permission is refused.
ADVICE = (
    "run it on Linux 5.16 or later, where no sandbox forbids arch_prctl, or compile it for a CPU "
    "without AMX, such as cpu:x86-64-v4"
)


def need_tiles(features: Iterable[str]) -> bool:
    """Tell whether code for these instruction sets, by LLVM's names, uses tile registers."""
    return any(feature.startswith(_TILES) for feature in features)


def refused_tiles() -> str | None:
    """Ask for the permission, which a process needs to ask for once; more often does no harm.

    Returns
    -------
    str or None
        Why it is refused: by a sandbox's filter of system calls, by a Linux older than 5.16, or
        for a CPU without tile registers.
    """
    if _libc().syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return None
    return os.strerror(ctypes.get_errno())


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
