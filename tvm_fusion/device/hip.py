"""HIP, the runtime library of AMD GPUs: where it is, and which devices it shows."""

import ctypes
import os
from dataclasses import replace

from ..errors import UserError
from .model import Device
from .table import GPUS

#: The first ROCm that reads what LLVM 22 in TVM writes: code objects of version 6.
OLDEST = (6, 3)
_EXPECTED = "libamdhip64.so of ROCm 6.3 or newer"
# ROCm 7's and 6's runtime, then what a development package links.
_NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
# hipDeviceProp_tR0600, the same from ROCm 6 on: its size, and where names and numbers lie.
_PROPERTIES_BYTES, _NAME, _ARCH, _MULTIPROCESSORS = 1472, 0, 1160, 388


def open_hip() -> ctypes.CDLL:
    """Open HIP's runtime library, as ``deploy/rocm/hip.cc`` does.

    What the process has already comes first, since two copies would not know of each other's
    memory; then that in the folder that the environment variable ``ROCM_PATH`` names.

    Raises
    ------
    UserError
        If it is not there, or too old.
    """
    root = os.environ.get("ROCM_PATH")
    own = [f"{root}/lib/libamdhip64.so"] if root else []
    tries = [(name, os.RTLD_NOW | os.RTLD_NOLOAD) for name in _NAMES]
    tries += [(name, os.RTLD_NOW) for name in (*own, *_NAMES, "/opt/rocm/lib/libamdhip64.so")]
    reasons = []
    for name, mode in tries:
        try:
            library = ctypes.CDLL(name, mode)
            break
        except OSError as error:
            if not mode & os.RTLD_NOLOAD:
                reasons.append(str(error))
    else:
        raise UserError(
            f"HIP's runtime library does not load ({reasons[0]})",
            _EXPECTED,
            "install ROCm, or name its folder by the environment variable ROCM_PATH",
        )
    found = hip_version(library)
    if found < OLDEST:
        raise UserError(f"ROCm {found[0]}.{found[1]} is installed", _EXPECTED, "update ROCm")
    return library


def hip_version(hip: ctypes.CDLL) -> tuple[int, int]:
    """Tell the major and the minor version of the ROCm that a library is of."""
    version = ctypes.c_int()
    hip.hipRuntimeGetVersion(ctypes.byref(version))
    return version.value // 10_000_000, version.value // 100_000 % 100


def hip_devices(hip: ctypes.CDLL) -> tuple[Device, ...]:
    """Return the AMD GPUs that HIP shows to this process; ``HIP_VISIBLE_DEVICES`` counts."""
    count = ctypes.c_int()
    if hip.hipGetDeviceCount(ctypes.byref(count)):
        return ()
    return tuple(_device(hip, ordinal) for ordinal in range(count.value))


def _device(hip: ctypes.CDLL, ordinal: int) -> Device:
    found = ctypes.create_string_buffer(_PROPERTIES_BYTES)
    hip.hipGetDevicePropertiesR0600(found, ordinal)
    # Behind the architecture HIP names modes: gfx942:sramecc+:xnack-.
    arch = _text(found, _ARCH).partition(":")[0]
    base = GPUS.get(arch, Device("rocm", arch, arch))
    multiprocessors = ctypes.c_int.from_buffer(found, _MULTIPROCESSORS).value
    return replace(
        base, name=_text(found, _NAME) or base.name, sm_count=multiprocessors or base.sm_count
    )


def _text(buffer: ctypes.Array[ctypes.c_char], at: int) -> str:
    return buffer.raw[at : at + 256].partition(b"\0")[0].decode(errors="replace")
