"""Matrix-multiply-accumulate instructions of tensor cores: one table row per instruction.

``D[m, n] = A[m, k] * B[k, n] + C[m, n]`` is distributed over a warp as PTX describes it for
``mma.m16n8k16``: lane = 4 * groupID + threadID_in_group, and a thread holds

    A: rows groupID and groupID + 8, of each 2 + 2 consecutive k      4 registers of 2 values
    B: column groupID,               of it  2 + 2 consecutive k      2 registers of 2 values
    C: rows groupID and groupID + 8, columns 2 * threadID_in_group and the next   4 float32

The order of k inside an instruction is free as long as A and B agree. Kernels let a thread pass
``k_per_thread`` values that are contiguous in memory, so that a vector load is a fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...device import Device

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}  # half types, and their names in PTX


@dataclass(frozen=True)
class MmaAtom:
    """One instruction; sums are float32.

    Attributes
    ----------
    name : str
        Of the family, as :class:`tvm_fusion.device.model.MatrixInstruction` has it.
    dtype : str
        Type of A and B.
    m, n, k : int
        The shape of one warp's product.
    """

    name: str
    dtype: str
    m: int
    n: int
    k: int

    @property
    def short(self) -> str:
        """The type's name in PTX."""
        return PTX_TYPES[self.dtype]

    @property
    def instruction(self) -> str:
        """The instruction in PTX."""
        shape, types = f"m{self.m}n{self.n}k{self.k}", f"{self.short}.{self.short}"
        return f"{self.name}.aligned.{shape}.row.col.f32.{types}.f32"

    @property
    def function(self) -> str:
        """The name of the CUDA function that wraps it."""
        return f"tvm_fusion_mma_m{self.m}n{self.n}k{self.k}_{self.short}"


ATOMS = (
    MmaAtom("mma.sync", "float16", 16, 8, 16),
    MmaAtom("mma.sync", "bfloat16", 16, 8, 16),
)
# The layout of mma.m16n8k16.
WARP = 32
GROUPS = 8  # values of groupID: an atom's n, and half of its m
THREADS_IN_GROUP = WARP // GROUPS
K_PER_THREAD = 16 // THREADS_IN_GROUP
ACCUMULATORS = 16 * 8 // WARP  # of a thread: of two rows of A times two columns of B


def mma_atom(device: Device, dtype: str) -> MmaAtom | None:
    """Find the instruction that a device has for a type of A and B."""
    for atom in ATOMS:
        if atom.dtype == dtype and device.has_matrix(atom.name, dtype, (atom.m, atom.n, atom.k)):
            return atom
    return None


_SOURCE = """
__device__ __forceinline__ void {name}(
    float* c, const void* a_row, const void* a_row_8, const void* b_column) {{
  const unsigned* x = (const unsigned*)a_row;
  const unsigned* y = (const unsigned*)a_row_8;
  const unsigned* z = (const unsigned*)b_column;
  asm("{instruction} "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(x[0]), "r"(y[0]), "r"(x[1]), "r"(y[1]), "r"(z[0]), "r"(z[1]));
}}
"""


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
    atom = next(atom for atom in ATOMS if atom.dtype == dtype)
    source = _SOURCE.format(name=atom.function, instruction=atom.instruction)
    addresses = [tirx.address_of(x) for x in (c, *a_rows, b_column)]
    return tirx.Evaluate(cuda_func_call(atom.function, *addresses, source_code=source))


_FRAGMENTS = """
__device__ __forceinline__ void {name}(float* c, const void* a_frag, const void* b_frag) {{
  const unsigned* x = (const unsigned*)a_frag;
  const unsigned* z = (const unsigned*)b_frag;
  asm("{instruction} "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(z[0]), "r"(z[1]));
}}
"""


def mma_fragments(
    dtype: str, c: ir.TensorLoad, a_frag: ir.TensorLoad, b_frag: ir.TensorLoad
) -> tirx.Stmt:
    """Add the product of two fragments in the order of the instruction's registers.

    Parameters
    ----------
    dtype : str
        Type of A and B.
    c : TensorLoad
        The first of a thread's :data:`ACCUMULATORS`, which are contiguous.
    a_frag, b_frag : TensorLoad
        The first of a thread's 8 values of A: rows groupID and groupID + 8 of the lower k, then of
        the upper; and of 4 values of B: lower k, then upper. So ``ldmatrix`` leaves them.
    """
    atom = next(atom for atom in ATOMS if atom.dtype == dtype)
    name = f"{atom.function}_fragments"
    source = _FRAGMENTS.format(name=name, instruction=atom.instruction)
    addresses = [tirx.address_of(x) for x in (c, a_frag, b_frag)]
    return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))
