"""Tensor cores: ``mma.sync`` of a warp, ``wgmma`` of a warpgroup (PTX ISA, "Matrix Fragments").

A fragment's unit is a word of 32 bits along K, so layouts of all types are one in terms of bytes:
lane ``4 * groupID + threadID_in_group`` holds, in PTX's words,

    A   word threadID_in_group, and the fourth behind it, of rows groupID and groupID + 8
    B   the same two words of column groupID
    C   columns 2 * threadID_in_group and the next, of rows groupID and groupID + 8

A warpgroup's warp w has the rows from ``16 * w`` on; wgmma reads B, and A if it is told to, from
shared memory. ``mma.m16n8k8`` is what compute capability 7.5 has of float16: two of them, one
behind the other, take the fragments of one m16n8k16. Rows of newer devices come first. Float64, and
the shorter shapes that newer devices still have, are left out: no kernel takes them.
"""

from .instruction import Instruction
from .layout import Layout, layout

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}  # half types, and their names in PTX
# Types of A and B in memory, and their names in PTX; a float32 is read as a tfloat32.
OPERAND_TYPES = {
    **PTX_TYPES,
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
    "float32": "tf32",
}
SUM_TYPES = {"float32": "f32", "int32": "s32"}
HALF_TYPES = tuple(PTX_TYPES)
FLOAT8_TYPES = ("float8_e4m3fn", "float8_e5m2")
BYTE_TYPES = ("int8", "uint8")

WORD_BYTES = 4
K_BYTES = 32  # of the k of an instruction, of every type
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "tfloat32": 4, "float8": 1, "int8": 1}
_OPERANDS = {
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "float8": FLOAT8_TYPES,
    "int8": BYTE_TYPES,
    "tfloat32": ("float32",),
}


def ptx(row: Instruction, a_dtype: str, b_dtype: str, n: int | None = None) -> str:
    """Write an instruction in PTX, without its operands.

    Parameters
    ----------
    row
        One of :data:`NVIDIA`.
    a_dtype, b_dtype
        Types of A and B.
    n
        Columns of wgmma, where not all.
    """
    return row.name.format(a=OPERAND_TYPES[a_dtype], b=OPERAND_TYPES[b_dtype], n=n or row.n)


def _a(item: int, words: int, warps: int) -> Layout:
    count = WORD_BYTES // item
    return layout(
        lanes=[(4, 0, count), (8, 1, 0), (warps, 16, 0)],
        registers=[(count, 0, 1), (2, 8, 0), (words // 4, 0, 4 * count)],
    )


def _b(item: int, words: int) -> Layout:
    count = WORD_BYTES // item
    return layout([(4, count, 0), (8, 0, 1)], [(count, 1, 0), (words // 4, 4 * count, 0)])


def _c(n: int, warps: int) -> Layout:
    return layout([(4, 0, 2), (8, 1, 0), (warps, 16, 0)], [(2, 0, 1), (2, 8, 0), (n // 8, 0, 8)])


def _mma(kind: str, k_bytes: int = K_BYTES) -> Instruction:
    """Make a row of ``mma.sync.m16n8``."""
    types, item, words = _OPERANDS[kind], _ITEM_BYTES[kind], k_bytes // WORD_BYTES
    sums, k = "int32" if kind == "int8" else "float32", k_bytes // item
    name = "mma.sync.aligned.m16n8k{k}.row.col.{c}.{{a}}.{{b}}.{c}".format(k=k, c=SUM_TYPES[sums])
    layouts = _a(item, words, 1), _b(item, words), _c(8, 1)
    return Instruction("mma.sync", name, 16, 8, k, types, types, kind, sums, *layouts)


def _wgmma(kind: str, n: int = 256) -> Instruction:
    types, item, words = _OPERANDS[kind], _ITEM_BYTES[kind], K_BYTES // WORD_BYTES
    sums, k = "int32" if kind == "int8" else "float32", K_BYTES // item
    name = "wgmma.mma_async.sync.aligned.m64n{{n}}k{k}.{c}.{{a}}.{{b}}"
    name = name.format(k=k, c=SUM_TYPES[sums])
    return Instruction(
        "wgmma", name, 64, n, k, types, types, kind, sums, _a(item, words, 4), None, _c(n, 4),
        from_shared=("a", "b"), is_mn_major=kind in HALF_TYPES,
    )  # fmt: skip


NVIDIA = (*map(_mma, _OPERANDS), _mma("float16", K_BYTES // 2), *map(_wgmma, _OPERANDS))
