"""Dot products and tiles of x86 CPUs (Intel's software developer manual; AMX's own chapter).

One thread executes them: a layout has registers alone, in the order of memory. A vector
instruction broadcasts its row of A, of as many k as fill 32 bits, and has such words of B's columns
beside each other. AMX multiplies tiles of 16 rows of 64 bytes: A's as they are, B's with the k of a
word together ("VNNI order").
"""

from __future__ import annotations

from .instruction import Instruction
from .layout import layout

_BITS = {"bfloat16": 16, "float16": 16, "int8": 8, "uint8": 8, "float32": 32}
_TILE_ROWS, _TILE_ROW_BYTES = 16, 64


def _dot(text: str, n: int, kind: str, a_dtype: str, b_dtype: str) -> Instruction:
    """Make an instruction of vectors with n words: n columns of C."""
    k = 32 // _BITS[a_dtype]
    a, b = layout([], [(k, 0, 1)]), layout([], [(k, 1, 0), (n, 0, 1)])
    c = layout([], [(n, 0, 1)])
    return Instruction("dot", text, 1, n, k, (a_dtype,), (b_dtype,), kind, _sums(kind), a, b, c)


def _amx(name: str, kind: str, a_dtype: str, b_dtype: str) -> Instruction:
    group = 32 // _BITS[a_dtype]
    rows, columns, words = _TILE_ROWS, _TILE_ROWS, _TILE_ROW_BYTES // 4
    k = words * group
    a = layout([], [(k, 0, 1), (rows, 1, 0)])
    b = layout([], [(group, 1, 0), (columns, 0, 1), (words, group, 0)])
    c = layout([], [(columns, 0, 1), (rows, 1, 0)])
    text, types = f"llvm.x86.{name}", ((a_dtype,), (b_dtype,))
    return Instruction("amx", text, rows, columns, k, *types, kind, _sums(kind), a, b, c)


def _sums(kind: str) -> str:
    return "int32" if kind == "int8" else "float32"


X86 = (
    *(
        instruction
        for n in (4, 8, 16)
        for instruction in (
            _dot(f"llvm.fma.v{n}f32", n, "float32", "float32", "float32"),
            _dot(f"llvm.x86.avx512.vpdpbusd.{32 * n}", n, "int8", "uint8", "int8"),
            _dot(f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}", n, "bfloat16", "bfloat16", "bfloat16"),
        )
    ),
    _amx("tdpbf16ps", "bfloat16", "bfloat16", "bfloat16"),
    _amx("tdpfp16ps", "float16", "float16", "float16"),
    _amx("tdpbssd", "int8", "int8", "int8"),
    _amx("tdpbsud", "int8", "int8", "uint8"),
    _amx("tdpbusd", "int8", "uint8", "int8"),
    _amx("tdpbuud", "int8", "uint8", "uint8"),
)
