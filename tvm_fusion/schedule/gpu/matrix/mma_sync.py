"""CUDA functions of ``mma.sync``: one instruction of a table row, on the registers of a warp.

c[4] += a[4 words] * b[2 words]      fragments of a row, or in the order of the registers
c[4], small[4] += a * b              float32 as two tfloat32 each (3xTF32)
"""

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...instructions.instruction import Instruction
from ...instructions.nvidia import NVIDIA, OPERAND_TYPES, ptx
from ...instructions.table import newest


def _multiply(a_dtype: str, b_dtype: str, sums: str, factors: str) -> str:
    """Write the instruction of fragments, and what older devices have for it.

    Parameters
    ----------
    a_dtype, b_dtype
        Types of A and of B.
    sums, factors
        Operands of the assembler: four of C, which are those of D; four of A and two of B.
    """
    row = newest("mma.sync", a_dtype, b_dtype)
    c = "{%0, %1, %2, %3}"
    whole = f"{ptx(row, a_dtype, b_dtype)} {c}, {{%4, %5, %6, %7}}, {{%8, %9}}, {c};"
    newer = f'  asm("{whole}"\n      : {sums}\n      : {factors});\n'
    rows = [x for x in NVIDIA if x.family == row.family and x.takes(a_dtype, b_dtype)]
    shorter = [x for x in rows if 2 * x.k == row.k]
    if not shorter:
        return newer
    part = ptx(shorter[0], a_dtype, b_dtype)
    lower, upper = f"{{%4, %5}}, {{%8}}, {c};", f"{{%6, %7}}, {{%9}}, {c};"
    older = (
        f'  asm("{part} {c}, {lower}\\n\\t"\n      "{part} {c}, {upper}"\n'
        f"      : {sums}\n      : {factors});\n"
    )
    return f"#if __CUDA_ARCH__ >= 800\n{newer}#else\n{older}#endif\n"


_SOURCE = """
__device__ __forceinline__ void {name}(
    float* c, const void* a_row, const void* a_row_8, const void* b_column) {{
  const unsigned* x = (const unsigned*)a_row;
  const unsigned* y = (const unsigned*)a_row_8;
  const unsigned* z = (const unsigned*)b_column;
{multiply}}}
"""
_WORDS_OF_ROWS = '"r"(x[0]), "r"(y[0]), "r"(x[1]), "r"(y[1]), "r"(z[0]), "r"(z[1])'
_WORDS = '"r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(z[0]), "r"(z[1])'


def _sums(constraint: str) -> str:
    return ", ".join(f'"+{constraint}"(c[{i}])' for i in range(4))


def _function(row: Instruction, a_dtype: str, b_dtype: str) -> str:
    """Name the CUDA function that wraps an instruction."""
    types = dict.fromkeys((OPERAND_TYPES[a_dtype], OPERAND_TYPES[b_dtype]))
    return f"tvm_fusion_mma_m{row.m}n{row.n}k{row.k}_{'_'.join(types)}"


def mma_m16n8k16(
    dtype: str, c: ir.TensorLoad, a_rows: Sequence[ir.TensorLoad], b_column: ir.TensorLoad
) -> tirx.Stmt:
    """Add the product of two fragments to accumulators; a whole warp executes it together.

    Parameters
    ----------
    dtype
        Type of A and B.
    c
        The first of a thread's four accumulators, which are contiguous.
    a_rows
        The first of the four values of A's rows groupID and groupID + 8.
    b_column
        The first of the values of B's column groupID.
    """
    name = _function(newest("mma.sync", dtype, dtype), dtype, dtype)
    multiply = _multiply(dtype, dtype, _sums("f"), _WORDS_OF_ROWS)
    source = _SOURCE.format(name=name, multiply=multiply)
    addresses = [tirx.address_of(x) for x in (c, *a_rows, b_column)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


_FRAGMENTS = """
__device__ __forceinline__ void {name}({sums}* c, const void* a_frag, const void* b_frag) {{
  const unsigned* x = (const unsigned*)a_frag;
  const unsigned* z = (const unsigned*)b_frag;
{multiply}}}
"""

# float32 as two tfloat32 of 11 bits each: cut off, so that nothing overflows; then rounded.
_SPLIT = """
__device__ __forceinline__ void {name}(float* c, float* small, const void* a_frag,
                                       const void* b_frag) {{
  const unsigned* x = (const unsigned*)a_frag;
  const unsigned* z = (const unsigned*)b_frag;
  unsigned x_hi[4], x_lo[4], z_hi[2], z_lo[2];
  {splits}
  asm("{instruction} "
      "{{%4, %5, %6, %7}}, {{%12, %13, %14, %15}}, {{%16, %17}}, {{%4, %5, %6, %7}};\\n\\t"
      "{instruction} "
      "{{%4, %5, %6, %7}}, {{%8, %9, %10, %11}}, {{%18, %19}}, {{%4, %5, %6, %7}};\\n\\t"
      "{instruction} "
      "{{%0, %1, %2, %3}}, {{%8, %9, %10, %11}}, {{%16, %17}}, {{%0, %1, %2, %3}};"
      : {sums}
      : {parts});
}}
"""
_SPLIT_ONE = (
    "{0}_hi[{1}] = {0}[{1}] & 0xffffe000u; {0}_lo[{1}] = __float_as_uint("
    "__uint_as_float({0}[{1}]) - __uint_as_float({0}_hi[{1}])) + 0x1000u;"
)


def mma_split_fragments(
    c: ir.TensorLoad, small: ir.TensorLoad, a_frag: ir.TensorLoad, b_frag: ir.TensorLoad
) -> tirx.Stmt:
    """Add three products of fragments of float32, each split into two tfloat32 (3xTF32).

    Parameters
    ----------
    c, small
        The first of the accumulators of upper by upper halves, and of those of upper by lower ones.
        Where float32 gives an infinity, the first give it, and the others NaN.
    a_frag, b_frag
        See :func:`mma_fragments`.
    """
    row = newest("mma.sync", "float32", "float32")
    name = "tvm_fusion_mma_3xtf32"
    words = [*(("x", i) for i in range(4)), *(("z", i) for i in range(2))]
    given = [(v, half, n) for v, n in (("x", 4), ("z", 2)) for half in ("hi", "lo")]
    source = _SPLIT.format(
        name=name,
        instruction=ptx(row, "float32", "float32"),
        splits="\n  ".join(_SPLIT_ONE.format(*word) for word in words),
        sums=", ".join(f'"+f"({v}[{i}])' for v in ("c", "small") for i in range(4)),
        parts=", ".join(f'"r"({v}_{half}[{i}])' for v, half, n in given for i in range(n)),
    )
    addresses = [tirx.address_of(x) for x in (c, small, a_frag, b_frag)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))


def mma_fragments(
    a_dtype: str, b_dtype: str, c: ir.TensorLoad, a_frag: ir.TensorLoad, b_frag: ir.TensorLoad
) -> tirx.Stmt:
    """Add the product of two fragments in the order of the instruction's registers.

    Parameters
    ----------
    a_dtype, b_dtype
        Types of A and of B.
    c
        The first of a thread's four accumulators, which are contiguous.
    a_frag, b_frag
        The first of a thread's 16 bytes of A: rows groupID and groupID + 8 of the lower k, then of
        the upper; and of 8 bytes of B: lower k, then upper. So ``ldmatrix`` leaves them.
    """
    row = newest("mma.sync", a_dtype, b_dtype)
    name = f"{_function(row, a_dtype, b_dtype)}_fragments"
    is_integer = row.sums == "int32"
    source = _FRAGMENTS.format(
        name=name,
        sums="int" if is_integer else "float",
        multiply=_multiply(a_dtype, b_dtype, _sums("r" if is_integer else "f"), _WORDS),
    )
    addresses = [tirx.address_of(x) for x in (c, a_frag, b_frag)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
