"""AMD's matrix cores: MFMA of CDNA, WMMA of RDNA3 (the architectures' instruction set guides).

MFMA: a wave of 64 lanes. Of a tile of ``size`` rows lane ``size * group + row`` holds a row of A,
or a column of B, and contiguous k: the groups share them out. C has four rows of a lane contiguous,
then the same of all groups, then the next four.

WMMA: a wave of 32 lanes. Lane ``row`` holds all k of a row of A, or of a column of B, and lane
``row + 16`` a copy, which the hardware needs. C's rows alternate between the halves of the wave.
"""

from __future__ import annotations

from .instruction import Instruction
from .layout import layout

_FLOAT8 = ("float8_e4m3fnuz", "float8_e5m2fnuz")


def _mfma(size: int, per_lane: int, kind: str, name: str, *types: str) -> Instruction:
    """Make an instruction on tiles of ``size`` rows and columns; a lane has so many k."""
    groups = 64 // size
    k = groups * per_lane
    sums = "int32" if kind == "int8" else "float32"
    a = layout([(size, 1, 0), (groups, 0, per_lane)], [(per_lane, 0, 1)])
    c = layout([(size, 0, 1), (groups, 4, 0)], [(4, 1, 0), (size // groups // 4, 4 * groups, 0)])
    text = f"llvm.amdgcn.mfma.{_short(sums)}.{size}x{size}x{k}{name}"
    return Instruction("mfma", text, size, size, k, types, types, kind, sums, a, a.transposed, c)


def _wmma(kind: str, name: str, *types: str) -> Instruction:
    sums = "int32" if kind == "int8" else "float32"
    a = layout([(16, 1, 0), (2, 0, 0)], [(16, 0, 1)])
    c = layout([(16, 0, 1), (2, 1, 0)], [(8, 2, 0)])
    text = f"llvm.amdgcn.wmma.{_short(sums)}.16x16x16.{name}"
    return Instruction("wmma", text, 16, 16, 16, types, types, kind, sums, a, a.transposed, c)


def _short(dtype: str) -> str:
    return {"float32": "f32", "int32": "i32"}[dtype]


AMD = (
    *(
        instruction
        for size in (16, 32)
        for instruction in (
            _mfma(size, 1, "float32", "f32", "float32"),
            _mfma(size, 4, "float16", "f16", "float16"),
            _mfma(size, 4, "bfloat16", "bf16.1k", "bfloat16"),
            _mfma(size, 4, "int8", "i8", "int8"),  # of CDNA2
            _mfma(size, 8, "int8", ".i8", "int8"),  # of CDNA3, as what follows
            _mfma(size, 2, "tfloat32", ".xf32", "float32"),
            _mfma(size, 8, "float8", ".{a}.{b}", *_FLOAT8),
        )
    ),
    _wmma("float16", "f16", "float16"),
    _wmma("bfloat16", "bf16", "bfloat16"),
    _wmma("int8", "iu8", "int8", "uint8"),
)
