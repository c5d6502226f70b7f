"""GPU figures from vendors' documents, one representative board per architecture.

Limits per block and thread come from the "Technical Specifications per Compute Capability" table of
NVIDIA's CUDA C++ Programming Guide and from AMD's instruction set guides; caches, bandwidth and
rates from the document named beside each entry. Rates are dense; datasheets often print twice that,
with sparsity. A probe of the present device (`probe.py`) replaces what it can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .model import Device

KIB, MIB = 1 << 10, 1 << 20
GB, TERA = 1e9, 1e12


def _nvidia(arch: str, name: str, shared_kib: int, **figures: object) -> Device:
    # The same for every compute capability from 7.5 on (programming guide).
    return Device(
        "cuda",
        arch,
        name,
        max_threads_per_block=1024,
        shared_memory_per_block=shared_kib * KIB,
        registers_per_block=65536,
        registers_per_thread=255,
        warp_size=32,
        **figures,  # type: ignore[arg-type]
    )


# The hardware takes 1024 threads a workgroup, but without a device at hand TVM writes the limit 256
# into every kernel (`amdgpu-flat-work-group-size`), and a launch with more threads fails.
_TVM_ROCM_THREADS = 256


def _amd(arch: str, name: str, **figures: object) -> Device:
    # Local data share: 64 KiB a workgroup on all three (instruction set guides).
    return Device(
        "rocm",
        arch,
        name,
        max_threads_per_block=_TVM_ROCM_THREADS,
        shared_memory_per_block=64 * KIB,
        **figures,  # type: ignore[arg-type]
    )


# NVIDIA H100 datasheet (SXM5) and Hopper architecture white paper.
_H100 = _nvidia(
    "sm_90",
    "H100 SXM 80GB",
    227,
    sm_count=132,
    l2_bytes=50 * MIB,
    memory_bandwidth=3350 * GB,
    peak_flops={
        "float64": 67 * TERA,
        "float32": 67 * TERA,
        "tfloat32": 494.5 * TERA,
        "float16": 989.5 * TERA,
        "bfloat16": 989.5 * TERA,
        "float8": 1979 * TERA,
        "int8": 1979 * TERA,
    },
)

_GPUS = (
    # T4 datasheet; Turing white paper (TU104: 4096 KB of L2).
    _nvidia(
        "sm_75",
        "T4",
        64,
        sm_count=40,
        l2_bytes=4 * MIB,
        memory_bandwidth=320 * GB,
        peak_flops={"float32": 8.1 * TERA, "float16": 65 * TERA, "int8": 130 * TERA},
    ),
    # A100 80GB datasheet (SXM); Ampere white paper.
    _nvidia(
        "sm_80",
        "A100 SXM 80GB",
        163,
        sm_count=108,
        l2_bytes=40 * MIB,
        memory_bandwidth=2039 * GB,
        peak_flops={
            "float64": 19.5 * TERA,
            "float32": 19.5 * TERA,
            "tfloat32": 156 * TERA,
            "float16": 312 * TERA,
            "bfloat16": 312 * TERA,
            "int8": 624 * TERA,
        },
    ),
    # A10 datasheet; GA102 white paper (6 MB of L2).
    _nvidia(
        "sm_86",
        "A10",
        99,
        sm_count=72,
        l2_bytes=6 * MIB,
        memory_bandwidth=600 * GB,
        peak_flops={
            "float32": 31.2 * TERA,
            "tfloat32": 62.5 * TERA,
            "float16": 125 * TERA,
            "bfloat16": 125 * TERA,
            "int8": 250 * TERA,
        },
    ),
    # Jetson AGX Orin technical brief (64 GB): 2048 cores; int8 is printed as 170 with sparsity.
    _nvidia(
        "sm_87",
        "Jetson AGX Orin 64GB",
        163,
        sm_count=16,
        l2_bytes=4 * MIB,
        memory_bandwidth=204.8 * GB,
        peak_flops={"float32": 5.3 * TERA, "int8": 85 * TERA},
    ),
    # L40S datasheet; Ada white paper (AD102 as in L40: 98304 KB of L2).
    _nvidia(
        "sm_89",
        "L40S",
        99,
        sm_count=142,
        l2_bytes=96 * MIB,
        memory_bandwidth=864 * GB,
        peak_flops={
            "float32": 91.6 * TERA,
            "tfloat32": 183 * TERA,
            "float16": 362 * TERA,
            "bfloat16": 362 * TERA,
            "float8": 733 * TERA,
            "int8": 733 * TERA,
        },
    ),
    _H100,
    # The same silicon; the suffix permits wgmma and setmaxnreg, which exist on 9.0 only.
    replace(_H100, arch="sm_90a"),
    # Blackwell datasheet (an eighth of HGX B200); Blackwell tuning guide (L2, shared memory).
    _nvidia(
        "sm_100",
        "B200 SXM",
        227,
        l2_bytes=126 * MIB,
        memory_bandwidth=8000 * GB,
        peak_flops={
            "float16": 2250 * TERA,
            "bfloat16": 2250 * TERA,
            "float8": 4500 * TERA,
            "int8": 4500 * TERA,
        },
    ),
    # Half of MI250X's data sheet: HIP shows each of its two dies as a device. CDNA2 guide: 512
    # registers a lane, vector and accumulation together; four SIMDs of 64 lanes a compute unit.
    _amd(
        "gfx90a",
        "Instinct MI250X (one die)",
        warp_size=64,
        sm_count=110,
        registers_per_thread=512,
        registers_per_block=131072,
        l2_bytes=8 * MIB,
        memory_bandwidth=1638.4 * GB,
        peak_flops={
            "float64": 47.85 * TERA,
            "float32": 47.85 * TERA,
            "float16": 191.5 * TERA,
            "bfloat16": 191.5 * TERA,
            "int8": 191.5 * TERA,
        },
    ),
    # MI300X data sheet; CDNA3 white paper: eight dies with 4 MB of L2 each, 256 MB Infinity Cache.
    _amd(
        "gfx942",
        "Instinct MI300X",
        warp_size=64,
        sm_count=304,
        registers_per_thread=512,
        registers_per_block=131072,
        l2_bytes=32 * MIB,
        l3_bytes=256 * MIB,
        memory_bandwidth=5300 * GB,
        peak_flops={
            "float64": 163.4 * TERA,
            "float32": 163.4 * TERA,
            "tfloat32": 653.7 * TERA,
            "float16": 1307.4 * TERA,
            "bfloat16": 1307.4 * TERA,
            "float8": 2614.9 * TERA,
            "int8": 2614.9 * TERA,
        },
    ),
    # Radeon RX 7900 XTX product page; RDNA3 guide: wave32, 256 vector registers a lane.
    _amd(
        "gfx1100",
        "Radeon RX 7900 XTX",
        warp_size=32,
        sm_count=96,
        registers_per_thread=256,
        l2_bytes=6 * MIB,
        l3_bytes=96 * MIB,
        memory_bandwidth=960 * GB,
        peak_flops={"float32": 61 * TERA, "float16": 123 * TERA},
    ),
)

#: Known GPUs by architecture.
GPUS: Mapping[str, Device] = {device.arch: device for device in _GPUS}

#: Architectures that exist, compile, and are refused: why.
REFUSED: Mapping[str, str] = {
    "gfx10": "this package has no figures for it and has verified no kernel on it",
    "gfx12": "TVM's code for it passes barriers without waiting for writes to shared memory, "
    "so results would race",
}

# Vector length of the Arm cores whose SVE registers are wider than the 128 bits that SVE promises
# (Arm's technical reference manuals; A64FX microarchitecture manual).
SVE_BITS: Mapping[str, int] = {"a64fx": 512, "neoverse-v1": 256, "neoverse-512tvb": 512}


def vector_bits(arch: str, features: frozenset[str] | tuple[str, ...]) -> int | None:
    """Width in bits of the vector registers that LLVM may use, from a CPU's feature names.

    TVM's own query answers 512 for every x86 CPU, AVX or not.
    """
    if "sve" in features:
        return SVE_BITS.get(arch, 128)
    if "avx512f" in features:
        return 512
    if "avx" in features:
        return 256
    return 128 if {"sse2", "neon"} & set(features) else None
