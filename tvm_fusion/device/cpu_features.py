"""Instruction sets of CPUs: Linux's and LLVM's names, and what each makes a CPU capable of."""

from collections.abc import Iterable, Mapping
from typing import Any

from .model import MatrixInstruction

#: Linux's names (/proc/cpuinfo) of the instruction sets that kernels use, with LLVM's names.
X86_FEATURES: Mapping[str, str] = {
    "sse2": "sse2", "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2",
    "popcnt": "popcnt", "movbe": "movbe", "abm": "lzcnt", "bmi1": "bmi", "bmi2": "bmi2",
    "f16c": "f16c", "fma": "fma", "avx": "avx", "avx2": "avx2", "avx_vnni": "avxvnni",
    "avx512f": "avx512f", "avx512cd": "avx512cd", "avx512bw": "avx512bw", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2", "avx512_vnni": "avx512vnni", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "gfni": "gfni", "vaes": "vaes", "vpclmulqdq": "vpclmulqdq",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}  # fmt: skip
ARM_FEATURES: Mapping[str, str] = {
    "asimd": "neon", "asimdhp": "fullfp16", "asimdfhm": "fp16fml", "asimdrdm": "rdm",
    "asimddp": "dotprod", "atomics": "lse", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve",
    "sve2": "sve2",
}  # fmt: skip

#: Extensions of x86-64 and Arm with float16 arithmetic.
FLOAT16_ARITHMETIC = ("avx512fp16", "fullfp16")

#: Every feature name that a Device of a CPU may list.
CPU_FEATURES = frozenset(X86_FEATURES.values()) | frozenset(ARM_FEATURES.values())

# Vector length of the Arm cores whose SVE registers are wider than the 128 bits that SVE promises
# (Arm's technical reference manuals; A64FX microarchitecture manual).
SVE_BITS: Mapping[str, int] = {"a64fx": 512, "neoverse-v1": 256, "neoverse-512tvb": 512}

_AMX_INT8 = MatrixInstruction("amx", "int8", 16, 16, 64)
_AMX_BF16 = MatrixInstruction("amx", "bfloat16", 16, 16, 32)
_AMX_FP16 = MatrixInstruction("amx", "float16", 16, 16, 32)

# What LLVM's name of an instruction set stands for in a Device; later rows win, tuples add up.
# Sources: Intel's Software Developer's Manual and Intrinsics Guide, Arm's Architecture Reference
# Manual.
_CAPABILITIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("sse2", {"fixed_vector_bits": 128, "vector_registers": 16, "int16_dot_bits": 128}),
    ("neon", {"fixed_vector_bits": 128, "vector_registers": 32, "fused_multiply_add": True}),
    ("dotprod", {"sdot_bits": 128}),
    ("fullfp16", {"arithmetic": ("float16",)}),
    ("avx", {"fixed_vector_bits": 256}),
    ("fma", {"fused_multiply_add": True}),
    ("avx2", {"int16_dot_bits": 256}),
    ("avxvnni", {"vnni_bits": 256}),
    (
        "avx512f",
        {"fixed_vector_bits": 512, "vector_registers": 32, "fused_multiply_add": True},
    ),
    ("avx512bw", {"int16_dot_bits": 512}),
    ("avx512vnni", {"vnni_bits": 512}),
    ("avx512bf16", {"dpbf16_bits": 512}),
    ("avx512fp16", {"arithmetic": ("float16",)}),
    ("amx-int8", {"matrix_instructions": (_AMX_INT8,)}),
    ("amx-bf16", {"matrix_instructions": (_AMX_BF16,)}),
    ("amx-fp16", {"matrix_instructions": (_AMX_FP16,)}),
)
_VECTOR_FEATURES = ("avx", "amx", "sve", "neon")


def capabilities(arch: str, features: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a :class:`Device` that a CPU's instruction sets decide.

    Parameters
    ----------
    arch
        LLVM's name of the CPU.

    Returns
    -------
    dict
        By name of a field, ``features`` and ``vector_bits`` among them. TVM's own query of the
        width answers 512 for every x86 CPU, AVX or not.
    """
    features = tuple(sorted(features))
    found: dict[str, Any] = {}
    for feature, fields in _CAPABILITIES:
        for name, value in fields.items() if feature in features else ():
            is_list = isinstance(value, tuple)
            found[name] = (*found.get(name, ()), *value) if is_list else value
    if arch == "cooperlake" or "amx-bf16" in features:
        # Intel's cores issue one VDPBF16PS of 512 bits a cycle, and two FMAs: as many products, of
        # a longer latency. A layer of BERT took 1.44 times as long as in float32, widened 1.02.
        found.pop("dpbf16_bits", None)
    width = SVE_BITS.get(arch, 128) if "sve" in features else found.get("fixed_vector_bits")
    return {"features": features, "vector_bits": width, **found}


def linux_names(features: Iterable[str]) -> list[str]:
    """Translate LLVM's names of instruction sets to those of ``/proc/cpuinfo``."""
    names = {llvm: linux for linux, llvm in {**X86_FEATURES, **ARM_FEATURES}.items()}
    return sorted(names[feature] for feature in features)


def vector_extensions(features: Iterable[str]) -> list[str]:
    """Pick the vector and matrix extensions among feature names, for a reader."""
    return [name for name in features if name.startswith(_VECTOR_FEATURES)]
