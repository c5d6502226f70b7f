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

from dataclasses import dataclass

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
