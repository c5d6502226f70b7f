"""Copies of matrices whose rows begin at any address to rows of whole 16-byte chunks.

block of 256 chunks of all matrices, one behind the other
thread (row, c):
word[0 .. 4] = the aligned words around source[row, 8 c ..], none beyond the row   global
padded[row, 8 c .. 8 c + 7] = shifted words, zeros beyond the row                  global
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import Body, coordinates, index, local, product, sequence, vectorized
from ..gpu.launch import block_by_address
from ..gpu.shifted_loads import ELEMENTS, load_words, shift_words
from .operand_copies import copy_kernel

CHUNK = 8  # elements of a half type


def pad_rows(pairs: Sequence[tuple[ir.Var, ir.Var]]) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    pairs : sequence of (Var, Var)
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
    """Give the number of a matrix's chunks, and what copies one."""
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
