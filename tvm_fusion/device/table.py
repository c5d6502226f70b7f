"""GPU figures from vendors' documents, one representative board per architecture.

Limits per block and multiprocessor come from the "Technical Specifications per Compute Capability"
table of NVIDIA's CUDA C++ Programming Guide, what a generation can execute from `generations.py`,
caches, bandwidth and rates from the document named with each entry. A new architecture is a row
here, ascending among those of its vendor, and nothing else. Rates are dense; datasheets often print
twice that, with sparsity. A probe of the present device (`probe.py`) replaces what it can read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .model import Device, MatrixInstruction

# What GPUs of one generation can execute, as fields of a Device: rows of the table share them.
#
# Sources: PTX ISA (sections "mma", "wgmma.mma_async", "cp.async", "setmaxnreg", "griddepcontrol",
# "max", "add" of bf16, each with the lowest target) and AMD's instruction set guides of CDNA2,
# CDNA3 and RDNA3. Sparse matrix instructions and those of 4-bit and 1-bit integers are left out.
Fields = Mapping[str, Any]


def _matrix(
    name: str, shapes: Mapping[str, Sequence[tuple[int, int, int]]]
) -> tuple[MatrixInstruction, ...]:
    """List an instruction's shapes (m, n, k) of each dtype."""
    return tuple(
        MatrixInstruction(name, dtype, *shape) for dtype, each in shapes.items() for shape in each
    )


_MMA_TURING = _matrix("mma.sync", {"float16": [(16, 8, 8)], "int8": [(8, 8, 16)]})
_MMA_AMPERE = _matrix(
    "mma.sync",
    {
        "float16": [(16, 8, 8), (16, 8, 16)],
        "bfloat16": [(16, 8, 8), (16, 8, 16)],
        "tfloat32": [(16, 8, 4), (16, 8, 8)],
        "float64": [(8, 8, 4)],
        "int8": [(8, 8, 16), (16, 8, 16), (16, 8, 32)],
    },
)
_MMA_FLOAT8 = _matrix("mma.sync", {"float8": [(16, 8, 16), (16, 8, 32)]})
_MMA_FLOAT64 = _matrix("mma.sync", {"float64": [(16, 8, 4), (16, 8, 8), (16, 8, 16)]})
_WGMMA = _matrix(
    "wgmma",
    {
        "float16": [(64, 256, 16)],
        "bfloat16": [(64, 256, 16)],
        "tfloat32": [(64, 256, 8)],
        "float8": [(64, 256, 32)],
        "int8": [(64, 256, 32)],
    },
)
_MFMA = {
    "float64": [(16, 16, 4)],
    "float32": [(32, 32, 2), (16, 16, 4)],
    "float16": [(32, 32, 8), (16, 16, 16)],
    "bfloat16": [(32, 32, 8), (16, 16, 16)],
}
_MFMA_CDNA2 = _matrix("mfma", {**_MFMA, "int8": [(32, 32, 8), (16, 16, 16)]})
_MFMA_CDNA3 = _matrix(
    "mfma",
    {
        **_MFMA,
        "tfloat32": [(32, 32, 4), (16, 16, 8)],
        "float8": [(32, 32, 16), (16, 16, 32)],
        "int8": [(32, 32, 16), (16, 16, 32)],
    },
)
_WMMA = _matrix("wmma", {d: [(16, 16, 16)] for d in ("float16", "bfloat16", "int8")})
_DOT_CDNA = _matrix("v_dot", {"float16": [(1, 1, 2)], "int8": [(1, 1, 4)]})
_DOT_RDNA3 = (
    *_matrix("v_dot", {"float16": [(1, 1, 2)]}),
    *_matrix("v_dot_iu8", {"int8": [(1, 1, 4)]}),
)

# Warps, registers of a block and threads are the same for every compute capability from 7.5 on
# (programming guide).
_NVIDIA: Fields = {
    "max_threads_per_block": 1024,
    "registers_per_block": 65536,
    "warp_size": 32,
    "arithmetic": ("float16",),
}
TURING: Fields = {**_NVIDIA, "matrix_instructions": _MMA_TURING}
AMPERE: Fields = {**_NVIDIA, "matrix_instructions": _MMA_AMPERE, "async_copy": True}
ADA: Fields = {**AMPERE, "matrix_instructions": (*_MMA_AMPERE, *_MMA_FLOAT8)}
HOPPER: Fields = {
    **ADA,
    "matrix_instructions": (*_MMA_AMPERE, *_MMA_FLOAT8, *_MMA_FLOAT64),
    "arithmetic": ("float16", "bfloat16"),
    "tma": True,
    "clusters": True,
    "dependent_launch": True,
}
# With the suffix of the architecture: what exists on compute capability 9.0 alone.
HOPPER_ONLY: Fields = {"matrix_instructions": (*HOPPER["matrix_instructions"], *_WGMMA)}
# Without a suffix: tcgen05 and tensor memory need one.
BLACKWELL: Fields = HOPPER

# The hardware takes 1024 threads a workgroup. TVM writes the limit 256 into every kernel where it
# sees no device, and builds keep that everywhere (`deploy.toolchain.rocm_threads`): of more threads
# each has fewer registers.
_TVM_ROCM_THREADS = 256

# Local data share: 64 KiB a workgroup on all three (instruction set guides).
_AMD: Fields = {
    "max_threads_per_block": _TVM_ROCM_THREADS,
    "shared_memory_per_block": 64 << 10,
    "shared_memory_per_sm": 64 << 10,
    "arithmetic": ("float16",),
}
# CDNA2 guide: 512 registers a lane, vector and accumulation together; four SIMDs of 64 lanes a
# compute unit, eight waves on each.
_CDNA: Fields = {
    **_AMD,
    "warp_size": 64,
    "registers_per_block": 131072,
    "max_threads_per_sm": 2048,
    "lane_moves": ("dpp", "row_bcast"),
}
CDNA2: Fields = {**_CDNA, "matrix_instructions": (*_MFMA_CDNA2, *_DOT_CDNA)}
CDNA3: Fields = {**_CDNA, "matrix_instructions": (*_MFMA_CDNA3, *_DOT_CDNA)}
# RDNA3 guide: 256 vector registers a lane; two SIMDs of 32 lanes a compute unit, 16 waves on each.
RDNA3: Fields = {
    **_AMD,
    "warp_size": 32,
    "max_threads_per_sm": 1024,
    "lane_moves": ("dpp", "row_xmask", "permlanex16"),
    "matrix_instructions": (*_WMMA, *_DOT_RDNA3),
}


KIB, MIB = 1 << 10, 1 << 20
GB, TERA = 1e9, 1e12


def _nvidia(
    arch: str, name: str, shared_kib: int, threads: int, generation: Fields, **figures: Any
) -> Device:
    """Make a row: of shared memory, a block cannot ask for the last KiB of a multiprocessor's."""
    shared = {
        "shared_memory_per_sm": shared_kib * KIB,
        "shared_memory_per_block": (shared_kib - (generation is not TURING)) * KIB,
    }
    limits = {**generation, **shared, "max_threads_per_sm": threads}
    return Device("cuda", arch, name, **limits, **figures)


# NVIDIA H100 datasheet (SXM5) and Hopper architecture white paper.
_H100 = _nvidia(
    "sm_90",
    "H100 SXM 80GB",
    228,
    2048,
    HOPPER,
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
        1024,
        TURING,
        sm_count=40,
        l2_bytes=4 * MIB,
        memory_bandwidth=320 * GB,
        peak_flops={"float32": 8.1 * TERA, "float16": 65 * TERA, "int8": 130 * TERA},
    ),
    # A100 80GB datasheet (SXM); Ampere white paper.
    _nvidia(
        "sm_80",
        "A100 SXM 80GB",
        164,
        2048,
        AMPERE,
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
        100,
        1536,
        AMPERE,
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
        164,
        1536,
        AMPERE,
        sm_count=16,
        l2_bytes=4 * MIB,
        memory_bandwidth=204.8 * GB,
        peak_flops={"float32": 5.3 * TERA, "int8": 85 * TERA},
    ),
    # L40S datasheet; Ada white paper (AD102 as in L40: 98304 KB of L2).
    _nvidia(
        "sm_89",
        "L40S",
        100,
        1536,
        ADA,
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
    replace(_H100, arch="sm_90a", **HOPPER_ONLY),
    # Blackwell datasheet (an eighth of HGX B200); Blackwell tuning guide (L2, shared memory).
    _nvidia(
        "sm_100",
        "B200 SXM",
        228,
        2048,
        BLACKWELL,
        l2_bytes=126 * MIB,
        memory_bandwidth=8000 * GB,
        peak_flops={
            "float16": 2250 * TERA,
            "bfloat16": 2250 * TERA,
            "float8": 4500 * TERA,
            "int8": 4500 * TERA,
        },
    ),
    # Half of MI250X's data sheet: HIP shows each of its two dies as a device.
    Device(
        "rocm",
        "gfx90a",
        "Instinct MI250X (one die)",
        **CDNA2,
        device_library=("90a",),
        sm_count=110,
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
    Device(
        "rocm",
        "gfx942",
        "Instinct MI300X",
        **CDNA3,
        device_library=("942", "940"),
        sm_count=304,
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
    # Radeon RX 7900 XTX product page.
    Device(
        "rocm",
        "gfx1100",
        "Radeon RX 7900 XTX",
        **RDNA3,
        device_library=("1100", "1036", "1030"),
        sm_count=96,
        l2_bytes=6 * MIB,
        l3_bytes=96 * MIB,
        memory_bandwidth=960 * GB,
        peak_flops={"float32": 61 * TERA, "float16": 123 * TERA},
    ),
)

#: Known GPUs by architecture.
GPUS: Mapping[str, Device] = {device.arch: device for device in _GPUS}


def known_archs(kind: str) -> list[str]:
    """List the architectures of a kind of device, ``cuda`` or ``rocm``, in the table's order."""
    return [arch for arch, device in GPUS.items() if device.kind == kind]


#: Architectures that exist, compile, and are refused: why.
REFUSED: Mapping[str, str] = {
    "gfx10": "this package has no figures for it and has verified no kernel on it",
    "gfx95": "no kernel was verified on it: LLVM 19, which reads code back here, does not know it",
    "gfx12": "TVM's code for it passes barriers without waiting for writes to shared memory, "
    "so results would race",
}
