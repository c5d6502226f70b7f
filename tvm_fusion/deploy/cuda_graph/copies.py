"""Copy several tensors in one launch, between a caller's memory and a CUDA graph.

grid: ceil(vectors[0] / 256) blocks for tensor 0, then those of tensor 1, ...;  block: 256 threads
    t       = the tensor whose blocks hold this one
    i       = number of the block among those of t * 256 + thread
    if i < vectors[t]:  destination[t][vector i] = source[t][vector i]       16 bytes where aligned
"""

from collections.abc import Sequence
from functools import partial

from tvm import DataType, ir, relax, tirx

from ..._tvm.ir.buffer import declare
from ...core.tir.loops import (
    Body,
    add,
    block,
    ceildiv,
    choose,
    coordinates,
    loop,
    product,
    threads,
    when,
)
from ...core.untouched import SCHEDULED
from ...schedule.gpu.launch import VECTOR_BYTES, VECTOR_TYPES

THREADS = 256


def copies(types: Sequence[relax.TensorType]) -> tirx.PrimFunc:
    """Make a kernel that copies tensors; each block has a piece of one of them.

    Parameters
    ----------
    types
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
    pieces = []
    for (shape, dtype), source, result in zip(pairs, sources, results, strict=True):
        width = side_by_side(shape[-1], dtype) if shape else 1
        vectors = int(product(shape)) // width
        pieces.append((vectors, partial(_vector, source, result, shape, width)))
    attrs = {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
    return tirx.PrimFunc([*sources, *results], block("root", in_blocks(pieces))).with_attrs(attrs)


def _vector(
    source: ir.Var, result: ir.Var, shape: Sequence[int], width: int, flat: ir.Expr
) -> tirx.Stmt:
    extents = [*shape[:-1], shape[-1] // width] if shape else []

    def element(lane: ir.Expr) -> tirx.Stmt:
        place = coordinates(flat, extents)
        if place:
            place[-1] = place[-1] * width + lane
        return tirx.BufferStore(result, tirx.BufferLoad(source, place), place)

    return loop("lane", width, element, tirx.ForKind.VECTORIZED)


def in_blocks(pieces: Sequence[tuple[ir.Expr | int, Body]]) -> tirx.Stmt:
    """Assign each piece blocks of its own, and each of its vectors a thread.

    Parameters
    ----------
    pieces
        How many vectors a piece has, and what is done with one.
    """

    def every(count: ir.Expr | int, vector: Body) -> tuple[ir.Expr, Body]:
        def one(number: ir.Expr) -> tirx.Stmt:
            def thread(t: ir.Expr) -> tirx.Stmt:
                flat = number * THREADS + t
                return when(flat < count, vector(flat))

            return threads("threadIdx.x", THREADS, thread)

        return ceildiv(count, THREADS), one

    chosen = [every(*piece) for piece in pieces]
    total = add(blocks for blocks, _ in chosen)
    return threads("blockIdx.x", total, lambda number: choose(number, chosen))


def side_by_side(extent: int, dtype: str) -> int:
    """Choose the elements of a vector, of so many that are contiguous in a line."""
    most = VECTOR_BYTES // DataType(dtype).itemsize if dtype in VECTOR_TYPES else 1
    return next(n for n in (8, 4, 2, 1) if n <= most and extent % n == 0)
