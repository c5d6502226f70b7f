"""Maps on a GPU: one launch, neighbouring threads on neighbouring elements, 16 bytes each."""

from __future__ import annotations

from tvm import ir, tirx

from ...fusion.program import Program
from ..inline import inlined
from ..loops import (
    Body,
    add,
    ceildiv,
    choose,
    constant,
    coordinates,
    index,
    kernel,
    loop,
    product,
    sequence,
    threads,
    when,
)
from .domain import Domain, domains, in_registers
from .tiles_gpu import NARROW, tile_blocks, tiles
from .vectors_gpu import Vectors, compute, vectors

THREADS = 256
TILE = 32  # rows and columns of a transposed tile, which the nearest cache holds


def elementwise_gpu(program: Program) -> tirx.PrimFunc:
    """Make the kernel: every domain has its own range of blocks in one grid."""
    kept = in_registers(program)
    spaces = domains(inlined(program, kept), kept)
    # Barriers must not stand under conditions, such as which domain a block belongs to.
    cut = tiles(spaces[0]) if len(spaces) == 1 else None
    if cut is not None:
        return kernel(program, threads("blockIdx.x", *tile_blocks(cut)))
    pieces = [_blocks(domain) for domain in spaces]

    def body_of(block_index: ir.Expr) -> tirx.Stmt:
        return threads(
            "threadIdx.x",
            THREADS,
            lambda thread: choose(
                block_index, [(count, _bind(body, thread)) for count, body in pieces]
            ),
        )

    total = add(count for count, _ in pieces)
    return kernel(program, threads("blockIdx.x", total, body_of))


def _bind(body, thread: ir.Expr) -> Body:
    return lambda number: body(number, thread)


def _blocks(domain: Domain):
    """Count a domain's blocks, and say what one thread of a block does."""
    tiled = domain.transposed_axis()
    if tiled is not None and (constant(domain.axes[-1].extent) or NARROW) >= NARROW:
        return _tiles(domain, tiled)
    cut = vectors(domain)
    if cut is not None:
        return _vectors(cut)
    extents = [a.extent for a in domain.axes]
    points = product(extents)

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        return when_inside(flat, points, domain.point(coordinates(flat, extents)))

    return ceildiv(points, THREADS), body


def when_inside(flat: ir.Expr, points: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Leave the last block's surplus threads idle."""
    size = constant(points)
    return body if size is not None and size % THREADS == 0 else when(flat < points, body)


def _vectors(cut: Vectors):
    """Give every thread of a block some vectors, neighbouring ones to neighbouring threads."""
    each, whole = cut.per_thread, cut.whole
    count = constant(whole)
    is_full = count is not None and count % (each * THREADS) == 0
    points = cut.domain.points

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        def start(which: ir.Expr) -> ir.Expr:
            return (number * each + which) * THREADS + thread

        main = compute(cut, start, None if is_full else whole)
        if constant(cut.left) == 0:
            return main
        # What is left over is for the first block's first threads, one element each.
        flat = whole * cut.width + thread
        place = coordinates(flat, cut.extents)
        rest = when(tirx.And(number < 1, flat < points), cut.domain.point(place))
        return sequence([main, rest])

    return ceildiv(points, cut.width * each * THREADS), body


def _tiles(domain: Domain, tiled: int):
    """Cut a transposed read into blocks, a square each, so that both sides use whole cache lines.

    The strided side comes round again from the nearest cache within the block.
    """
    across, last = domain.axes[tiled], domain.axes[-1]
    rest = [a for n, a in enumerate(domain.axes[:-1]) if n != tiled]
    extents = [
        *(a.extent for a in rest),
        ceildiv(across.extent, TILE),
        ceildiv(last.extent, TILE),
    ]
    rows = THREADS // TILE

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        *place, band, column_tile = coordinates(number, extents)
        column = column_tile * TILE + tirx.floormod(thread, index(TILE))

        def step(count: ir.Expr) -> tirx.Stmt:
            row = band * TILE + count * rows + tirx.floordiv(thread, index(TILE))
            where = [*place[:tiled], row, *place[tiled:], column]
            inside = tirx.And(row < index(across.extent), column < index(last.extent))
            return when(inside, domain.point(where))

        return loop("step", TILE // rows, step, tirx.ForKind.UNROLLED)

    return product(extents), body
