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
from dataclasses import replace
from functools import partial

import tvm_ffi
from tvm import DataType, ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import load, loads
from ...core.forms import other_form
from ...core.loops import constant, index
from ...core.template import Refusal
from ...program.stage import Axis
from ..gpu.mma import HALF_TYPES
from ..gpu.tma import ALIGNMENT
from .operand_copies import OperandCopies
from .operands import SumOfProducts
from .packing_function import packing_function
from .pad_rows_gpu import pad_rows
from .tile_gemm_config import is_plain, narrow_operand


def aligned_rows(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> OperandCopies | Refusal:
    """Pad the rows of operands that are not aligned.

    Parameters
    ----------
    contraction : SumOfProducts
        Any product.
    constants : collection of Var
        Inputs that are known at compile time.

    Returns
    -------
    OperandCopies or Refusal
        Refused where all rows are aligned, extents are symbolic, or something but the product
        reads an operand.
    """
    if contraction.column_split is not None:
        return other_form("Its epilogue reads several columns of the result.")
    sides = contraction.left, contraction.right
    cores = [narrow_operand(x) for x in sides]
    if not all(map(is_plain, cores)):
        return other_form("An operand is computed, not copied, on its way to shared memory.")
    sources = [core.source for core in cores]
    read = {x.source for r in contraction.results for x in loads(r.value)}
    if sources[0].same_as(sources[1]):
        return other_form("Both operands are the same tensor.")
    if read & set(sources):
        return other_form("The epilogue reads an operand, too.")
    padded = {s: found for s in sources if (found := _padded(s)) is not None}
    if not padded:
        sentence = f"No operand of a half type has rows to be padded to {ALIGNMENT} bytes."
        return other_form(sentence)
    if any(constant(d) is None for s in sources for d in s.ty.shape):
        return other_form("An extent of an operand is symbolic.")

    def read_padded(node: ir.TensorLoad) -> ir.Expr:
        to = padded.get(node.source)
        return node if to is None else load(to, list(node.indices))

    left, right = (tvm_ffi.structural_map(x, (ir.TensorLoad, read_padded)) for x in sides)
    made = replace(contraction, left=left, right=right)
    is_known = {s: any(s.same_as(c) for c in constants) for s in padded}
    packing = tuple(partial(_pack, s, p) if is_known[s] else None for s, p in padded.items())
    copied = [(s, p) for s, p in padded.items() if not is_known[s]]
    return OperandCopies(
        made, tuple(padded), tuple(padded.values()), packing, partial(pad_rows, copied)
    )


def _padded(source: ir.Var) -> ir.Var | None:
    """Declare an operand with aligned rows; ``None`` where they are, or are not known."""
    shape, dtype = list(source.ty.shape), str(source.ty.dtype)
    width, lanes = constant(shape[-1]), ALIGNMENT // DataType(dtype).itemsize
    if width is None or width % lanes == 0 or dtype not in HALF_TYPES:
        return None
    return declare([*shape[:-1], index(-(-width // lanes) * lanes)], dtype, f"{source.name}_padded")


def _pack(source: ir.Var, padded: ir.Var) -> tirx.PrimFunc:
    axes = [Axis(tirx.Var(f"i{n}", "int64"), index(d)) for n, d in enumerate(padded.ty.shape)]
    place = [a.var for a in axes]
    zero = tirx.const(0, str(source.ty.dtype))
    inside = place[-1] < index(source.ty.shape[-1])
    value = tirx.if_then_else(inside, load(source, place), zero)
    return packing_function(source, padded, axes, value)
