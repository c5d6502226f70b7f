"""Ask this machine for its CPU, CUDA and AMD devices; needs no TVM and no vendor package."""

import ctypes
import functools
import os
import platform
from dataclasses import replace
from pathlib import Path

from .architecture import amd_arch, nvidia_arch
from .cpu_features import ARM_FEATURES, X86_FEATURES, capabilities
from .model import Device
from .table import GPUS

_CPU = Path("/sys/devices/system/cpu")
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")

# CUdevice_attribute values (cuda.h).
_THREADS_PER_BLOCK, _REGISTERS_PER_BLOCK, _WARP_SIZE = 1, 12, 10
_SM_COUNT, _MEMORY_CLOCK_KHZ, _BUS_BITS, _L2_BYTES = 16, 36, 37, 38
_MAJOR, _MINOR, _SHARED_OPT_IN = 75, 76, 97


def machine() -> str:
    """Return LLVM's name of this machine's CPU architecture: ``x86_64``, ``aarch64`` and so on."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


@functools.cache
def host_cpu() -> Device:
    """Return this machine's CPU; ``arch`` is its family, since only LLVM knows LLVM's names."""
    flags: set[str] = set()
    name = platform.processor() or machine()
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags.update(value.split())
        elif key.strip() == "model name":
            name = value.strip()
    names = ARM_FEATURES if machine() == "aarch64" else X86_FEATURES
    caches = _caches()
    return Device(
        "llvm",
        machine(),
        name,
        cores=len(os.sched_getaffinity(0)),
        l2_bytes=caches.get(2),
        l3_bytes=caches.get(3),
        **capabilities(machine(), (names[flag] for flag in flags & names.keys())),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # containers hide parts of /proc and /sys
        return ""


def _caches() -> dict[int, int]:
    """Bytes of the data caches of the first allowed core, by level."""
    core = min(os.sched_getaffinity(0))
    sizes = {}
    for index in (_CPU / f"cpu{core}" / "cache").glob("index*"):
        kind, level, size = (_read(index / f).strip() for f in ("type", "level", "size"))
        if kind in ("Data", "Unified") and level and size[:-1].isdigit():
            unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1])
            if unit:
                sizes[int(level)] = int(size[:-1]) * unit
    return sizes


def cuda_devices() -> tuple[Device, ...]:
    """Return the CUDA devices that the driver shows; its attributes refine the table's figures."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) != 0:
            return ()
    except (OSError, AttributeError):
        return ()
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_cuda_device(driver, ordinal) for ordinal in range(count.value))


def _cuda_device(driver: ctypes.CDLL, ordinal: int) -> Device:
    handle, value = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), ordinal)
    text = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(text, len(text), handle)

    def attribute(number: int) -> int | None:
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return None if failed else value.value

    arch = nvidia_arch(attribute(_MAJOR) or 0, attribute(_MINOR) or 0, GPUS)
    base = GPUS.get(arch, Device("cuda", arch, arch))
    clock, bus, sms = (attribute(n) for n in (_MEMORY_CLOCK_KHZ, _BUS_BITS, _SM_COUNT))
    # Two transfers a clock: the driver reports the command clock of both GDDR and HBM.
    bandwidth = 2 * clock * 1e3 * bus / 8 if clock and bus else base.memory_bandwidth
    # Rates scale with the multiprocessors; the driver's clock is no board's sustained one.
    scale = sms / base.sm_count if sms and base.sm_count else 1.0
    return replace(
        base,
        name=text.value.decode(),
        max_threads_per_block=attribute(_THREADS_PER_BLOCK) or base.max_threads_per_block,
        shared_memory_per_block=attribute(_SHARED_OPT_IN) or base.shared_memory_per_block,
        registers_per_block=attribute(_REGISTERS_PER_BLOCK) or base.registers_per_block,
        warp_size=attribute(_WARP_SIZE) or base.warp_size,
        sm_count=sms or base.sm_count,
        l2_bytes=attribute(_L2_BYTES) or base.l2_bytes,
        memory_bandwidth=bandwidth,
        peak_flops={dtype: rate * scale for dtype, rate in base.peak_flops.items()},
    )


def rocm_devices() -> tuple[Device, ...]:
    """Return the AMD GPUs that the kernel driver lists (no ROCm installation needed)."""
    devices = []
    for node in sorted(_KFD.glob("*/properties")):
        fields = dict(line.split(None, 1) for line in _read(node).splitlines() if " " in line)
        version = int(fields.get("gfx_target_version", 0))
        if version == 0:  # a CPU node
            continue
        arch = amd_arch(version)
        simds, per_unit = int(fields.get("simd_count", 0)), int(fields.get("simd_per_cu", 0))
        base = GPUS.get(arch, Device("rocm", arch, arch))
        devices.append(replace(base, sm_count=simds // per_unit if per_unit else base.sm_count))
    return tuple(devices)
