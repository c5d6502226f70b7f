"""GEMMs whose rows are copied to multiples of 16 bytes first, so that TMA and wgmma take them.

    kernel:  padded[row, k] = operand[row, k] if k < K else 0                (below)
             of weights at compile time
    kernel:  C[m, n] = sum over k < K of padded A[m, k] * padded B[n, k]

Rows of, say, 4,684 or 7,207 half floats begin at addresses that neither TMA nor 16-byte copies can
read; as shifted words through registers on CUDA cores they keep tensor cores waiting. A copy of an
operand takes the time of its bytes.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import tvm_ffi
from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads
from ....core.tir.loops import (
    Body,
    constant,
    coordinates,
    index,
    local,
    product,
    sequence,
    vectorized,
)
from ....program.stage import Axis
from ...gpu.launch import block_by_address
from ...gpu.memory.tma import ALIGNMENT
from ...gpu.memory.vector_loads import ELEMENTS, load_words, shift_words
from ...instructions.nvidia import HALF_TYPES
from ..problem.functions.packing import packing_function
from ..problem.sum_of_products import SumOfProducts
from ..tile.config import is_plain, narrow_operand
from .operand_copies import OperandCopies, copy_kernel


def aligned_rows(
    contraction: SumOfProducts, constants: Collection[ir.Var]
) -> OperandCopies | Refusal:
    """Pad the rows of operands that are not aligned.

    Parameters
    ----------
    constants
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


# Copies of matrices whose rows begin at any address to rows of whole 16-byte chunks.
#
# block of 256 chunks of all matrices, one behind the other thread (row, c): word[0 .. 4] = the
# aligned words around source[row, 8 c ..], none beyond the row global padded[row, 8 c .. 8 c + 7] =
# shifted words, zeros beyond the row global
CHUNK = 8  # elements of a half type


def pad_rows(pairs: Sequence[tuple[ir.Var, ir.Var]]) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    pairs
        Matrices of half types, and where their rows go: as long, rounded up to chunks.

    Returns
    -------
    PrimFunc
        Its parameters are the matrices, then the padded ones.
    """
    pieces = [_chunks(source, padded) for source, padded in pairs]
    params = [source for source, _ in pairs] + [padded for _, padded in pairs]
    return copy_kernel(params, pieces)


def _chunks(source: ir.Var, padded: ir.Var) -> tuple[ir.Expr, Body]:
    """Return the number of a matrix's chunks, and what copies one."""
    *outer, width = (index(d) for d in source.ty.shape)
    sizes = [*outer, tirx.floordiv(index(padded.ty.shape[-1]), index(CHUNK))]
    dtype = str(source.ty.dtype)

    def copy(task: ir.Expr) -> tirx.Stmt:
        *row, chunk = coordinates(task, sizes)
        words = local("words", [ELEMENTS], dtype)
        made = local("chunk", [CHUNK], dtype)
        first = load(source, [*row, chunk * CHUNK])
        count = tirx.min(width - chunk * CHUNK, index(CHUNK))
        held, to = load(words, [index(0)]), load(made, [index(0)])

        def store(lane: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(padded, load(made, [lane]), [*row, chunk * CHUNK + lane])

        stmts = [load_words(held, first, count), shift_words(to, held, first)]
        body = sequence([*stmts, vectorized(CHUNK, store)])
        return block_by_address(f"pad_{source.name}", body, [words, made])

    return product(sizes), copy
