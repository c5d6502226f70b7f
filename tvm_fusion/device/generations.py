"""What GPUs of one generation can execute, as fields of a Device: rows of the table share them.

Sources: PTX ISA (sections "mma", "wgmma.mma_async", "cp.async", "setmaxnreg", "griddepcontrol",
"max", "add" of bf16, each with the lowest target) and AMD's instruction set guides of CDNA2, CDNA3
and RDNA3. Sparse matrix instructions and those of 4-bit and 1-bit integers are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .model import MatrixInstruction

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

# The hardware takes 1024 threads a workgroup, but without a device at hand TVM writes the limit 256
# into every kernel (`amdgpu-flat-work-group-size`), and a launch with more threads fails.
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
}
CDNA2: Fields = {**_CDNA, "matrix_instructions": _MFMA_CDNA2}
CDNA3: Fields = {**_CDNA, "matrix_instructions": _MFMA_CDNA3}
# RDNA3 guide: 256 vector registers a lane; two SIMDs of 32 lanes a compute unit, 16 waves on each.
RDNA3: Fields = {
    **_AMD,
    "warp_size": 32,
    "max_threads_per_sm": 1024,
    "matrix_instructions": _WMMA,
}
