"""The kernel that copies an image to the columns of its partial im2col.

block of 128 columns
thread (n, y, x):
for term in depth:  column[term] = image[.. of the term ..] or 0, outside or beyond the last
own[thread] = column                                          shared, chunks of 16 bytes
threads, of all chunks in the order of memory:
columns[first + chunk] = own[..]                              16 bytes of each thread, side by side

Terms are known at compile time, so that addresses are constants away from that of a pixel. Adjacent
threads read adjacent pixels, and write adjacent chunks: stored by the thread that made them, chunks
of a column would be parts of sectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tvm import DataType, ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
    block,
    coordinates,
    index,
    local,
    sequence,
    threads,
    unrolled,
    vectorized,
    when,
)
from ...core.untouched import SCHEDULED
from ..gpu.tma import ALIGNMENT
from .tma_window import ImageDim

THREADS = 128  # of a block, a column each: of 96 terms they take 26 KiB


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
    dtype = str(image.ty.dtype)
    lanes = ALIGNMENT // DataType(dtype).itemsize
    chunks, count = columns.depth // lanes, math.prod(columns.extents)
    stride = (chunks | 1) * lanes  # odd numbers of chunks lie in different banks
    shared = scratch([THREADS * stride], dtype, "own", "shared")

    def make(first: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        made = local("column", [columns.depth], dtype)
        place = coordinates(first + thread, columns.extents)
        zeros = [tirx.const(0, dtype)] * (columns.depth - len(columns.terms))
        values = [*(_element(image, columns, place, t) for t in columns.terms), *zeros]
        stmts: list[tirx.Stmt] = [
            tirx.BufferStore(made, value, [index(n)]) for n, value in enumerate(values)
        ]
        for chunk in range(chunks):

            def keep(lane: ir.Expr, at: int = chunk * lanes) -> tirx.Stmt:
                return tirx.BufferStore(
                    shared, load(made, [lane + at]), [thread * stride + lane + at]
                )

            stmts.append(vectorized(lanes, keep))
        return when(first + thread < count, block("make", sequence(stmts), [made]))

    def store(first: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        def one(step: ir.Expr) -> tirx.Stmt:
            column, chunk = coordinates(step * THREADS + thread, [THREADS, chunks])
            *outer, x = coordinates(first + column, columns.extents)

            def move(lane: ir.Expr) -> tirx.Stmt:
                place = [*(outer or [index(0)]), (x * chunks + chunk) * lanes + lane]
                value = load(shared, [column * stride + chunk * lanes + lane])
                return tirx.BufferStore(copy, value, place)

            return when(first + column < count, vectorized(lanes, move))

        return unrolled("step", chunks, one)

    def of_block(number: ir.Expr) -> tirx.Stmt:
        first = number * THREADS
        phases = [
            threads("threadIdx.x", THREADS, partial(make, first)),
            threads("threadIdx.x", THREADS, partial(store, first)),
        ]
        return block("columns", sequence(phases), [shared])

    grid = threads("blockIdx.x", -(-count // THREADS), of_block)
    func = tirx.PrimFunc([image, copy], block("root", grid))
    return func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})


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
