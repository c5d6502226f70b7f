"""Dot products of vectors and tiles of CPUs (Intel's software developer manual, its AMX chapter).

One thread executes them: a layout has registers alone, in the order of memory.

    dot   C[1, n] += A[1, k] * B[k, n]: as many k as fill a word of 32 bits. A's word is broadcast,
          B has the words of n columns next to each other. float32 has one k: a multiply-add.
    maddubs
          the same in two instructions, for CPUs without a dot product of bytes: pairs of products
          are added in 16 bits, which hold those of bytes of A up to 7 bits, then pairs of these
    sdot  the same by Arm's dot product of signed bytes, which those of 7 bits are, too
    amx   tiles of 16 rows of 64 bytes: A's rows as they are, B's with the k of a word together
          ("VNNI order"), so that a row of the tile has such words of 16 columns.

Wider vectors come first.
"""

from tvm import ir, tirx

from ..._tvm.ir.bf16 import dot_bf16
from ...device import Device
from .instruction import Instruction
from .layout import layout

WORD = 32  # bits of the k of a dot product, and of a sum
_BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int16": 16, "int8": 8, "uint8": 8}
_TILE_ROWS, _TILE_ROW_BYTES = 16, 64
_PMADD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBS = {8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}
SMALL_BITS = 7  # of A's bytes, whose sums of pairs fit into 16 bits, and which have no sign


def dot_bits(device: Device, kind: str) -> int:
    """Return the width of the widest vectors that a CPU has a dot product for; 0 for none."""
    fused = device.fixed_vector_bits if device.fused_multiply_add else 0
    widths = {
        "float32": fused,
        "int8": device.vnni_bits,
        "bfloat16": device.dpbf16_bits,
        "int16": device.int16_dot_bits,
        "int8 signed": device.sdot_bits,
    }
    return widths[kind] or 0


def dot_of(a_dtype: str, b_dtype: str, n: int) -> Instruction:
    """Return the dot product of types of A and B whose vectors have n words."""
    rows = (row for row in CPU if row.family == "dot" and row.n == n)
    return next(row for row in rows if row.takes(a_dtype, b_dtype))


def multiply(row: Instruction, a: ir.Expr, b: ir.Expr, c: ir.Expr) -> ir.Expr:
    """Emit a dot product: give ``a * b + c``.

    Parameters
    ----------
    row
        A ``dot`` of :data:`CPU`.
    a, b
        Vectors of words, int32; A's word is broadcast. Of float32, the numbers themselves.
    """
    if row.kind == "float32":  # TVM lets LLVM contract them
        return c + a * b
    if row.kind == "bfloat16":  # :func:`with_dot_bf16` has to stand around it
        return dot_bf16(c, a, b)
    if row.family == "maddubs":
        return add_pairs(row, pairs_of(row, a, b), c)
    left, right = _operands(row, a, b)
    if row.kind == "int16":  # multiplies pairs and adds the two products
        return c + tirx.call_llvm_pure_intrin(f"int32x{row.n}", row.name, left, right)
    return tirx.call_llvm_pure_intrin(f"int32x{row.n}", row.name, c, left, right)


def pairs_of(row: Instruction, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """Emit the first half of ``maddubs``: sums of two products, in int16."""
    return tirx.call_llvm_pure_intrin(f"int16x{row.n * 2}", row.name, *_operands(row, a, b))


def add_pairs(row: Instruction, pairs: ir.Expr, c: ir.Expr) -> ir.Expr:
    """Emit the second half: add two such sums to each word of ``c``."""
    ones = tirx.Broadcast(tirx.const(1, "int16"), row.n * 2)
    name = f"llvm.x86.{_PMADD[row.n]}"
    return c + tirx.call_llvm_pure_intrin(f"int32x{row.n}", name, pairs, ones)


def _operands(row: Instruction, a: ir.Expr, b: ir.Expr) -> list[ir.Expr]:
    """Read words as the numbers in them."""
    return [
        tirx.reinterpret(f"{types[0]}x{row.n * row.k}", x)
        for types, x in ((row.a_types, a), (row.b_types, b))
    ]


def _dot(
    name: str, n: int, kind: str, a_dtype: str, b_dtype: str, family: str = "dot"
) -> Instruction:
    """Make a row of vectors of n words: n columns of C."""
    k = WORD // _BITS[a_dtype]
    a, b = layout([], [(k, 0, 1)]), layout([], [(k, 1, 0), (n, 0, 1)])
    c, types = layout([], [(n, 0, 1)]), ((a_dtype,), (b_dtype,))
    return Instruction(family, f"llvm.{name}", 1, n, k, *types, kind, _sums(kind), a, b, c)


def _amx(name: str, kind: str, a_dtype: str, b_dtype: str) -> Instruction:
    group = WORD // _BITS[a_dtype]
    rows, columns, words = _TILE_ROWS, _TILE_ROWS, _TILE_ROW_BYTES // 4
    k = words * group
    a = layout([], [(k, 0, 1), (rows, 1, 0)])
    b = layout([], [(group, 1, 0), (columns, 0, 1), (words, group, 0)])
    c = layout([], [(columns, 0, 1), (rows, 1, 0)])
    types = ((a_dtype,), (b_dtype,))
    return Instruction(
        "amx", f"llvm.x86.{name}", rows, columns, k, *types, kind, _sums(kind), a, b, c
    )


def _sums(kind: str) -> str:
    return "int32" if kind.startswith("int") else "float32"


CPU = (
    *(
        instruction
        for n in (16, 8, 4)
        for instruction in (
            _dot(f"fma.v{n}f32", n, "float32", "float32", "float32"),
            _dot(f"x86.avx512.vpdpbusd.{WORD * n}", n, "int8", "uint8", "int8"),
            _dot(f"x86.avx512bf16.dpbf16ps.{WORD * n}", n, "bfloat16", "bfloat16", "bfloat16"),
            _dot(f"x86.{_PMADD[n]}", n, "int16", "int16", "int16"),
        )
    ),
    *(
        _dot(f"x86.{name}", n, "int16", "uint8", "int8", "maddubs")
        for n, name in sorted(_PMADDUBS.items(), reverse=True)
    ),
    _dot("aarch64.neon.sdot.v4i32.v16i8", 4, "int8 signed", "int8", "int8", "sdot"),
    _amx("tdpbf16ps", "bfloat16", "bfloat16", "bfloat16"),
    _amx("tdpfp16ps", "float16", "float16", "float16"),
    _amx("tdpbssd", "int8", "int8", "int8"),
    _amx("tdpbsud", "int8", "int8", "uint8"),
    _amx("tdpbusd", "int8", "uint8", "int8"),
    _amx("tdpbuud", "int8", "uint8", "uint8"),
)
