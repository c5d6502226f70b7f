"""Tensor cores: ``mma.sync`` of a warp, ``wgmma`` of a warpgroup (PTX ISA, "Matrix Fragments").

A fragment's unit is a word of 32 bits along K, so layouts of all types are one in terms of bytes:
lane ``4 * group + thread`` holds word ``thread``, and the one four words behind, of A's rows
``group`` and ``group + 8``, of B's column ``group``. A warpgroup's warp w has rows ``16 * w`` on.
"""

from __future__ import annotations

from .instruction import Instruction
from .layout import Layout, layout

_WORD = 4  # bytes
_PTX = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
    "float32": "tf32",
    "int32": "s32",
}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_KINDS = {  # name: types of A and B, type of sums
    "float16": (("float16",), "float32"),
    "bfloat16": (("bfloat16",), "float32"),
    "float8": (("float8_e4m3fn", "float8_e5m2"), "float32"),
    "int8": (("int8", "uint8"), "int32"),
    "tfloat32": (("float32",), "float32"),
}


def _a(item: int, words: int, warps: int) -> Layout:
    count = _WORD // item
    return layout(
        lanes=[(4, 0, count), (8, 1, 0), (warps, 16, 0)],
        registers=[(count, 0, 1), (2, 8, 0), (words // 4, 0, 4 * count)],
    )


def _b(item: int, words: int) -> Layout:
    count = _WORD // item
    return layout([(4, count, 0), (8, 0, 1)], [(count, 1, 0), (words // 4, 4 * count, 0)])


def _c(n: int, warps: int) -> Layout:
    return layout([(4, 0, 2), (8, 1, 0), (warps, 16, 0)], [(2, 0, 1), (2, 8, 0), (n // 8, 0, 8)])


def _mma(kind: str, words: int = 8) -> Instruction:
    """``mma.sync.m16n8``, of some words of k."""
    types, sums = _KINDS[kind]
    item = _BYTES.get(types[0], 1)
    k = words * _WORD // item
    short = {"float32": "f32", "int32": "s32"}[sums]
    operands = f"{_PTX[types[0]]}.{_PTX[types[0]]}" if len(types) == 1 else "{a}.{b}"
    text = f"mma.sync.aligned.m16n8k{k}.row.col.{short}.{operands}.{short}"
    layouts = _a(item, words, 1), _b(item, words), _c(8, 1)
    return Instruction("mma.sync", text, 16, 8, k, types, types, kind, sums, *layouts)


def _wgmma(kind: str, n: int = 256) -> Instruction:
    types, sums = _KINDS[kind]
    item = _BYTES.get(types[0], 1)
    k = 8 * _WORD // item
    short = {"float32": "f32", "int32": "s32"}[sums]
    operands = f"{_PTX[types[0]]}.{_PTX[types[0]]}" if len(types) == 1 else "{a}.{b}"
    text = f"wgmma.mma_async.sync.aligned.m64n{{n}}k{k}.{short}.{operands}"
    return Instruction(
        "wgmma", text, 64, n, k, types, types, kind, sums, _a(item, 8, 4), None, _c(n, 4)
    )


NVIDIA = (
    *map(_mma, _KINDS),
    _mma("float16", words=4),  # all that compute capability 7.5 has
    *map(_wgmma, _KINDS),
)
