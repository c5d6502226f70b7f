"""Matrix-multiply-accumulate instructions of tensor cores: one table row per instruction.

``D[m, n] = A[m, k] * B[k, n] + C[m, n]`` is distributed over a warp as PTX describes it for
``mma.m16n8k16``: lane = 4 * groupID + threadID_in_group, and a thread holds

    A: rows groupID and groupID + 8, of each 4 + 4 bytes along k     4 registers
    B: column groupID,               of it  4 + 4 bytes along k      2 registers
    C: rows groupID and groupID + 8, columns 2 * threadID_in_group and the next   4 sums

An instruction's k is 32 bytes of every type: 16 of half types, 32 of bytes, 8 of float32. So one
kernel serves all types, in terms of bytes. Compute capability 7.5 has 16 bytes of float16 alone:
two ``mma.m16n8k8`` take the same fragments, the first the lower 4 bytes of each row and column. The
compiler chooses by ``__CUDA_ARCH__``, so that architectures share kernels. The order of k
inside an instruction is free as long as A and B agree. Kernels of half types let a thread pass
``k_per_thread`` values that are contiguous in memory, so that a vector load is a fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...device import Device

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
K_BYTES = 32  # of an instruction's k, of every type


@dataclass(frozen=True)
class MmaAtom:
    """One instruction.

    Attributes
    ----------
    name : str
        Of the family, as :class:`tvm_fusion.device.model.MatrixInstruction` has it.
    dtype : str
        Type of A and B, as the same has it.
    m, n, k : int
        The shape of one product; the largest n of wgmma.
    operands : tuple of str
        Types of A and of B in memory; each of them may be any.
    sums : str
        Type of C and D.
    count : int
        Instructions, one behind the other, that multiply fragments of 32 bytes of k.
    """

    name: str
    dtype: str
    m: int
    n: int
    k: int
    operands: tuple[str, ...]
    sums: str = "float32"
    count: int = 1

    @property
    def item_bytes(self) -> int:
        """Size of an element of A and of B."""
        return K_BYTES // (self.k * self.count)

    def takes(self, a_dtype: str, b_dtype: str) -> bool:
        """Whether it multiplies these types."""
        return a_dtype in self.operands and b_dtype in self.operands

    def instruction(self, a_dtype: str, b_dtype: str) -> str:
        """Write the instruction in PTX."""
        shape = f"m{self.m}n{self.n}k{self.k}"
        a, b, c = OPERAND_TYPES[a_dtype], OPERAND_TYPES[b_dtype], SUM_TYPES[self.sums]
        return f"{self.name}.aligned.{shape}.row.col.{c}.{a}.{b}.{c}"

    def function(self, a_dtype: str, b_dtype: str) -> str:
        """Name the CUDA function that wraps it."""
        types = dict.fromkeys((OPERAND_TYPES[a_dtype], OPERAND_TYPES[b_dtype]))
        return f"tvm_fusion_mma_m{self.m}n{self.n}k{self.k}_{'_'.join(types)}"


HALF_TYPES = tuple(PTX_TYPES)
FLOAT8_TYPES = ("float8_e4m3fn", "float8_e5m2")
BYTE_TYPES = ("int8", "uint8")
ATOMS = (
    MmaAtom("mma.sync", "float16", 16, 8, 16, ("float16",)),
    MmaAtom("mma.sync", "float16", 16, 8, 8, ("float16",), count=2),
    MmaAtom("mma.sync", "bfloat16", 16, 8, 16, ("bfloat16",)),
    MmaAtom("mma.sync", "float8", 16, 8, 32, FLOAT8_TYPES),
    MmaAtom("mma.sync", "int8", 16, 8, 32, BYTE_TYPES, "int32"),
    MmaAtom("mma.sync", "tfloat32", 16, 8, 8, ("float32",)),
    MmaAtom("wgmma", "float16", 64, 256, 16, ("float16",)),
    MmaAtom("wgmma", "bfloat16", 64, 256, 16, ("bfloat16",)),
    MmaAtom("wgmma", "float8", 64, 256, 32, FLOAT8_TYPES),
    MmaAtom("wgmma", "int8", 64, 256, 32, BYTE_TYPES, "int32"),
    MmaAtom("wgmma", "tfloat32", 64, 256, 8, ("float32",)),
)
# The layout of mma.m16n8k16.
WARP = 32
GROUPS = 8  # values of groupID: an atom's n, and half of its m
THREADS_IN_GROUP = WARP // GROUPS
K_PER_THREAD = 16 // THREADS_IN_GROUP
ACCUMULATORS = 16 * 8 // WARP  # of a thread: of two rows of A times two columns of B


def find_atom(device: Device, name: str, a_dtype: str, b_dtype: str) -> MmaAtom | None:
    """Find the instruction of a family that a device has for types of A and B."""
    for atom in ATOMS:
        shape = atom.m, atom.n, atom.k
        is_it = atom.name == name and atom.takes(a_dtype, b_dtype)
        if is_it and device.has_matrix(name, atom.dtype, shape):
            return atom
    return None


def mma_atom(device: Device, dtype: str) -> MmaAtom | None:
    """Find ``mma.sync`` of a half type, m16n8k16 or two m16n8k8; ``None`` for other types."""
    return find_atom(device, "mma.sync", dtype, dtype) if dtype in HALF_TYPES else None


def atom_of(a_dtype: str, b_dtype: str, name: str = "mma.sync") -> MmaAtom:
    """Return the instruction for types of A and B, of the newest devices."""
    return next(a for a in ATOMS if a.name == name and a.takes(a_dtype, b_dtype))


def _multiply(a_dtype: str, b_dtype: str, sums: str, factors: str) -> str:
    """Write the instruction of fragments, and what older devices have for it.

    Parameters
    ----------
    a_dtype, b_dtype : str
        Types of A and of B.
    sums, factors : str
        Operands of the assembler: four of C, which are those of D; four of A and two of B.
    """
    atom = atom_of(a_dtype, b_dtype)
    c = "{%0, %1, %2, %3}"
    whole = f"{atom.instruction(a_dtype, b_dtype)} {c}, {{%4, %5, %6, %7}}, {{%8, %9}}, {c};"
    newer = f'  asm("{whole}"\n      : {sums}\n      : {factors});\n'
    rows = [x for x in ATOMS if x.name == atom.name and x.takes(a_dtype, b_dtype) and x.count > 1]
    if not rows:
        return newer
    part = rows[0].instruction(a_dtype, b_dtype)
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
    return ", ".join(f'"+{constraint}"(c[{i}])' for i in range(ACCUMULATORS))


def mma_m16n8k16(
    dtype: str, c: ir.TensorLoad, a_rows: Sequence[ir.TensorLoad], b_column: ir.TensorLoad
) -> tirx.Stmt:
    """Add the product of two fragments to accumulators; a whole warp executes it together.

    Parameters
    ----------
    dtype : str
        Type of A and B.
    c : TensorLoad
        The first of a thread's :data:`ACCUMULATORS`, which are contiguous.
    a_rows : sequence of TensorLoad
        The first of the :data:`K_PER_THREAD` values of A's rows groupID and groupID + 8.
    b_column : TensorLoad
        The first of the values of B's column groupID.
    """
    atom = atom_of(dtype, dtype)
    name = atom.function(dtype, dtype)
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
    c, small : TensorLoad
        The first of the accumulators of upper by upper halves, and of those of upper by lower ones.
        Where float32 gives an infinity, the first give it, and the others NaN.
    a_frag, b_frag : TensorLoad
        See :func:`mma_fragments`.
    """
    atom = atom_of("float32", "float32")
    name = "tvm_fusion_mma_3xtf32"
    words = [*(("x", i) for i in range(4)), *(("z", i) for i in range(2))]
    given = [(v, half, n) for v, n in (("x", 4), ("z", 2)) for half in ("hi", "lo")]
    source = _SPLIT.format(
        name=name,
        instruction=atom.instruction("float32", "float32"),
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
    a_dtype, b_dtype : str
        Types of A and of B.
    c : TensorLoad
        The first of a thread's :data:`ACCUMULATORS`, which are contiguous.
    a_frag, b_frag : TensorLoad
        The first of a thread's 16 bytes of A: rows groupID and groupID + 8 of the lower k, then of
        the upper; and of 8 bytes of B: lower k, then upper. So ``ldmatrix`` leaves them.
    """
    atom = atom_of(a_dtype, b_dtype)
    name = f"{atom.function(a_dtype, b_dtype)}_fragments"
    is_integer = atom.sums == "int32"
    source = _FRAGMENTS.format(
        name=name,
        sums="int" if is_integer else "float",
        multiply=_multiply(a_dtype, b_dtype, _sums("r" if is_integer else "f"), _WORDS),
    )
    addresses = [tirx.address_of(x) for x in (c, a_frag, b_frag)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
