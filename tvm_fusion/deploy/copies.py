"""Several tensors copied in one launch: what stands between a caller's memory and a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import DataType, ir, relax, tirx

from .._tvm_buffer import declare
from ..foreign import SCHEDULED
from ..schedule.gpu import VECTOR_BYTES, VECTOR_TYPES
from ..schedule.loops import (
    block,
    ceildiv,
    choose,
    coordinates,
    loop,
    product,
    threads,
    when,
)

THREADS = 256


def copies(types: Sequence[relax.TensorType]) -> tirx.PrimFunc:
    """Make a kernel that copies tensors; each block has a piece of one of them.

    Parameters
    ----------
    types : sequence of TensorType
        Static shapes and dtypes.

    Returns
    -------
    PrimFunc
        Over the sources, then the destinations.
    """
    shapes = [[int(extent) for extent in ty.shape.values] for ty in types]
    dtypes = [str(ty.dtype) for ty in types]
    pairs = list(zip(shapes, dtypes, strict=True))
    sources = [declare(s, d, f"source{i}") for i, (s, d) in enumerate(pairs)]
    results = [declare(s, d, f"result{i}") for i, (s, d) in enumerate(pairs)]
    blocks, bodies = [], []
    for (shape, dtype), source, result in zip(pairs, sources, results, strict=True):
        width = _width(shape, dtype)
        vectors = int(product(shape)) // width
        blocks.append(ceildiv(vectors, THREADS))
        bodies.append(partial(_piece, source, result, shape, width, vectors))
    grid = threads(
        "blockIdx.x",
        sum(int(count) for count in blocks),
        lambda number: choose(number, list(zip(blocks, bodies, strict=True))),
    )
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc([*sources, *results], block("root", grid)).with_attrs(attrs)


def _piece(
    source: ir.Var,
    result: ir.Var,
    shape: Sequence[int],
    width: int,
    vectors: int,
    number: ir.Expr,
) -> tirx.Stmt:
    extents = [*shape[:-1], shape[-1] // width] if shape else []

    def thread(t: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + t

        def element(lane: ir.Expr) -> tirx.Stmt:
            place = coordinates(flat, extents)
            if place:
                place[-1] = place[-1] * width + lane
            return tirx.BufferStore(result, tirx.BufferLoad(source, place), place)

        return when(flat < vectors, loop("lane", width, element, tirx.ForKind.VECTORIZED))

    return threads("threadIdx.x", THREADS, thread)


def _width(shape: Sequence[int], dtype: str) -> int:
    """Choose the elements that a thread copies: a vector of those that lie side by side."""
    if not shape or dtype not in VECTOR_TYPES:
        return 1
    most = VECTOR_BYTES * 8 // DataType(dtype).bits
    return next(n for n in (8, 4, 2, 1) if n <= most and shape[-1] % n == 0)
