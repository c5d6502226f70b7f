"""GEMMs whose rows are copied to multiples of 16 bytes first, so that TMA and wgmma take them.

    kernel:  padded[row, k] = operand[row, k] if k < K else 0         (pad_rows_gpu)
             of weights at compile time
    kernel:  C[m, n] = sum over k < K of padded A[m, k] * padded B[n, k]

Rows of, say, 4,684 or 7,207 half floats begin at addresses that neither TMA nor 16-byte copies can
read; as shifted words through registers on CUDA cores they keep tensor cores waiting. A copy of an
operand takes the time of its bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import DataType, ir, relax, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load, loads
from ...core.loops import constant, index, product
from ...core.template import Emission, Kernel, Slot
from ...device import Device
from ...program.program import Program
from ...program.stage import Axis
from ..gpu.mma import HALF_TYPES
from ..gpu.tma import ALIGNMENT
from .operands import SumOfProducts
from .packing_function import packing_function
from .pad_rows_gpu import pad_rows
from .tile_gemm_config import is_plain, narrow_operand
from .tile_gemm_model import RATES


@dataclass(frozen=True, eq=False)
class AlignedRows:
    """A product of operands whose rows are padded.

    Attributes
    ----------
    contraction : SumOfProducts
        Over the padded operands.
    sources, padded : tuple of Var
        The operands that are copied, and what kernels read instead.
    is_constant : tuple of bool
        Which of them are copied at compile time.
    """

    contraction: SumOfProducts
    sources: tuple[ir.Var, ...]
    padded: tuple[ir.Var, ...]
    is_constant: tuple[bool, ...]

    @property
    def launches(self) -> int:
        """Kernels of copies at run time: one, of all operands."""
        return int(not all(self.is_constant))

    @property
    def bytes(self) -> int:
        """Bytes that these read and write."""
        return sum(_size(a) + _size(b) for a, b in self._copied)

    @property
    def _copied(self) -> list[tuple[ir.Var, ir.Var]]:
        pairs = zip(self.sources, self.padded, self.is_constant, strict=True)
        return [(source, padded) for source, padded, is_constant in pairs if not is_constant]

    def program(self, program: Program) -> Program:
        """Replace the operands among the inputs of a program."""
        padded = dict(zip(self.sources, self.padded, strict=True))
        return replace(program, inputs=tuple(padded.get(x, x) for x in program.inputs))

    def emission(self, program: Program, made: Emission) -> Emission:
        """Put the copies in front of a kernel.

        Parameters
        ----------
        program : Program
            Of the group, over its own inputs.
        made : Emission
            The kernel, over padded operands.
        """
        positions = {x: n for n, x in enumerate(program.inputs)}
        pairs = zip(self.sources, self.padded, self.is_constant, strict=True)
        packing = {positions[s]: _copy(s, p) for s, p, is_constant in pairs if is_constant}
        if not self._copied:
            return replace(made, packing=packing)
        slots = {positions[s]: n for n, (s, _) in enumerate(self._copied)}
        (kernel,) = made.kernels
        reads = tuple(
            Slot("workspace", slots[x.index]) if x.kind == "input" and x.index in slots else x
            for x in kernel.reads
        )
        inputs = tuple(Slot("input", position) for position in slots)
        between = tuple(Slot("workspace", n) for n in slots.values())
        copies = Kernel(pad_rows(self._copied), inputs, between)
        types = [relax.TensorType(list(p.ty.shape), str(p.ty.dtype)) for _, p in self._copied]
        return Emission((copies, replace(kernel, reads=reads)), tuple(types), packing)


def aligned_rows(contraction: SumOfProducts, constants: Collection[ir.Var]) -> AlignedRows | None:
    """Pad the rows of operands that are not aligned.

    Parameters
    ----------
    contraction : SumOfProducts
        Any product.
    constants : collection of Var
        Inputs that are known at compile time.

    Returns
    -------
    AlignedRows or None
        ``None`` where all rows are aligned, extents are symbolic, or something but the product
        reads an operand.
    """
    if contraction.column_split is not None:
        return None
    sides = contraction.left, contraction.right
    cores = [narrow_operand(x) for x in sides]
    if not all(map(is_plain, cores)):
        return None
    sources = [core.source for core in cores]
    read = {x.source for r in contraction.results for x in loads(r.value)}
    if sources[0].same_as(sources[1]) or read & set(sources):
        return None
    padded = {s: found for s in sources if (found := _padded(s)) is not None}
    if not padded or any(constant(d) is None for s in sources for d in s.ty.shape):
        return None

    def read_padded(node: ir.TensorLoad) -> ir.Expr:
        to = padded.get(node.source)
        return node if to is None else load(to, list(node.indices))

    left, right = (tvm_ffi.structural_map(x, (ir.TensorLoad, read_padded)) for x in sides)
    made = replace(contraction, left=left, right=right)
    own = tuple(padded)
    return AlignedRows(
        made, own, tuple(padded.values()), tuple(any(s.same_as(c) for c in constants) for s in own)
    )


def copies_clocks(copies: AlignedRows, device: Device) -> float:
    """Estimate the time of the copies at run time, in clocks of a multiprocessor."""
    return copies.bytes / (RATES.dram * (device.sm_count or 1)) + copies.launches * RATES.launch


def _padded(source: ir.Var) -> ir.Var | None:
    """Declare an operand with aligned rows; ``None`` where they are, or are not known."""
    shape, dtype = list(source.ty.shape), str(source.ty.dtype)
    width, lanes = constant(shape[-1]), ALIGNMENT // DataType(dtype).itemsize
    if width is None or width % lanes == 0 or dtype not in HALF_TYPES:
        return None
    return declare([*shape[:-1], index(-(-width // lanes) * lanes)], dtype, f"{source.name}_padded")


def _copy(source: ir.Var, padded: ir.Var) -> tirx.PrimFunc:
    axes = [Axis(tirx.Var(f"i{n}", "int64"), index(d)) for n, d in enumerate(padded.ty.shape)]
    place = [a.var for a in axes]
    zero = tirx.const(0, str(source.ty.dtype))
    inside = place[-1] < index(source.ty.shape[-1])
    value = tirx.if_then_else(inside, load(source, place), zero)
    return packing_function(source, padded, axes, value)


def _size(buffer: ir.Var) -> int:
    return int(product(buffer.ty.shape)) * DataType(str(buffer.ty.dtype)).itemsize
