"""The kernel that copies an image to the columns of its partial im2col.

for each chunk of 16 bytes of a column: blocks of 256 columns
thread (n, y, x):
for lane in 8:  chunk[lane] = image[.. of the term of the lane ..] or 0, outside or beyond the last
columns[n, y, x, chunk] = chunk                                           one store of 16 bytes

Lanes of a chunk are terms known at compile time, so that addresses are constants away from that of
a pixel. Adjacent threads read adjacent pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ...core.expressions import load
from ...core.loops import (
    Body,
    block,
    ceildiv,
    coordinates,
    index,
    local,
    product,
    sequence,
    vectorized,
    when,
)
from ..gpu.tma import ALIGNMENT
from .operand_copies import THREADS, copy_kernel
from .tma_window import ImageDim


@dataclass(frozen=True)
class ImageColumns:
    """Columns of an image: the terms that one input column has for a row of results.

    Attributes
    ----------
    dims : tuple of ImageDim
        How each dimension of the image is moved along by pixels.
    row : int
        The dimension along rows, of which columns are places, and not pixels of the results.
    extents : tuple of int
        Extents of the pixels, and of the columns of a row.
    depth : int
        Elements of a column: terms, then zeros.
    terms : tuple of tuple of int
        For each term, where it is along each dimension from the first pixel on.
    """

    dims: tuple[ImageDim, ...]
    row: int
    extents: tuple[int, ...]
    depth: int
    terms: tuple[tuple[int, ...], ...]


def partial_im2col_gpu(image: ir.Var, copy: ir.Var, columns: ImageColumns) -> tirx.PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    image, copy : Var
        The image, and where the columns of a row lie one behind the other.
    columns : ImageColumns
        The columns.

    Returns
    -------
    PrimFunc
        Its parameters are the image and the copy.
    """
    lanes = ALIGNMENT // DataType(str(image.ty.dtype)).itemsize
    count = product(columns.extents)
    firsts = range(0, columns.depth, lanes)
    # Each chunk has whole blocks: its terms are those of all threads of a warp.
    rounded = ceildiv(count, THREADS) * THREADS
    pieces = [(rounded, _chunk(image, copy, columns, first, lanes)) for first in firsts]
    return copy_kernel([image, copy], pieces)


def _chunk(image: ir.Var, copy: ir.Var, columns: ImageColumns, first: int, lanes: int) -> Body:
    """Write how a thread copies a chunk of a column."""
    dtype = str(image.ty.dtype)

    def body(task: ir.Expr) -> tirx.Stmt:
        made = local("chunk", [lanes], dtype)
        *outer, column = coordinates(task, columns.extents)
        stmts = []
        for lane in range(lanes):
            value: ir.Expr = tirx.const(0, dtype)
            if first + lane < len(columns.terms):
                value = _element(image, columns, [*outer, column], columns.terms[first + lane])
            stmts.append(tirx.BufferStore(made, value, [lane]))

        def store(lane: ir.Expr) -> tirx.Stmt:
            place = [*(outer or [index(0)]), column * columns.depth + first + lane]
            return tirx.BufferStore(copy, load(made, [lane]), place)

        inside = task < product(columns.extents)
        stmts.append(vectorized(lanes, store))
        return when(inside, block("columns", sequence(stmts), [made]))

    return body


def _element(
    image: ir.Var, columns: ImageColumns, place: Sequence[ir.Expr], term: Sequence[int]
) -> ir.Expr:
    """Give the element of a term, or zero where it is not in the image."""
    indices: list[ir.Expr] = []
    conditions: list[ir.Expr] = []
    for n, (dim, start, extent) in enumerate(zip(columns.dims, term, image.ty.shape, strict=True)):
        if dim.row is None:
            if not 0 <= start < int(extent):
                return tirx.const(0, str(image.ty.dtype))
            indices.append(index(start))
            continue
        step = 1 if n == columns.row else dim.step
        at = place[dim.row] * step + start
        indices.append(at)
        if start < 0:
            conditions.append(at >= 0)
        if (columns.extents[dim.row] - 1) * step + start >= int(extent):
            conditions.append(at < index(extent))
    value = load(image, indices)
    if not conditions:
        return value
    return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, str(value.ty.dtype)))
