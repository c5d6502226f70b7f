"""Maps on a GPU: one launch, neighbouring threads on neighbouring elements, 16 bytes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ...core.loops import (
    add,
    block,
    ceildiv,
    choose,
    constant,
    coordinates,
    kernel,
    product,
    sequence,
    threads,
    when,
)
from ...program.program import Program
from ..gpu.launch import STATIC_SHARED_BYTES
from ..inline import inlined
from .domain import Domain, domains, in_registers
from .tile_reads_gpu import read_tiles
from .tile_results_gpu import write_tiles
from .tiles_gpu import Tiles, tiles
from .vectors_gpu import Vectors, compute, vectors

THREADS = 256
Work = Callable[[ir.Expr, ir.Expr], tirx.Stmt]


@dataclass(frozen=True)
class Piece:
    """What some of the blocks do.

    Attributes
    ----------
    blocks : PrimExpr
        How many.
    finish : callable
        From the number of the block and of the thread to what that thread does.
    prepare : callable, optional
        The same, before all threads of the block wait for each other.
    shared : tuple of Var
        Buffers in shared memory.
    """

    blocks: ir.Expr
    finish: Work
    prepare: Work | None = None
    shared: tuple[ir.Var, ...] = ()


def elementwise_gpu(program: Program) -> tirx.PrimFunc:
    """Make the kernel: every domain has its own range of blocks in one grid."""
    kept = in_registers(program)
    pieces: list[Piece] = []
    left = STATIC_SHARED_BYTES
    for domain in domains(inlined(program, kept), kept):
        cut = tiles(domain, left)
        left -= 0 if cut is None else cut.shared_bytes
        pieces.append(_points(domain) if cut is None else _tiles(cut))
    shared = [buffer for piece in pieces for buffer in piece.shared]

    def body_of(block_index: ir.Expr) -> tirx.Stmt:
        # Pieces are chosen by each thread, for barriers must not stand under conditions.
        def phase(works: list[Work | None]) -> tirx.Stmt:
            def run(thread: ir.Expr) -> tirx.Stmt:
                chosen = [
                    (
                        piece.blocks,
                        lambda number, work=work: work(number, thread) if work else _idle(),
                    )
                    for piece, work in zip(pieces, works, strict=True)
                ]
                return choose(block_index, chosen)

            return threads("threadIdx.x", THREADS, run)

        finish = phase([piece.finish for piece in pieces])
        if not shared:
            return finish
        prepare = phase([piece.prepare for piece in pieces])
        return block("tiles", sequence([prepare, finish]), shared)

    total = add(piece.blocks for piece in pieces)
    return kernel(program, threads("blockIdx.x", total, body_of))


def _idle() -> tirx.Stmt:
    return sequence([])


def _tiles(cut: Tiles) -> Piece:
    """Let every block compute a tile."""
    shared = cut.declare()
    return Piece(
        cut.blocks,
        lambda number, thread: write_tiles(cut, shared, number, thread),
        lambda number, thread: read_tiles(cut, shared, number, thread),
        shared,
    )


def _points(domain: Domain) -> Piece:
    """Let every thread compute some vectors, or one point where there are none."""
    cut = vectors(domain)
    if cut is not None:
        return _vectors(cut)
    extents = [a.extent for a in domain.axes]
    points = product(extents)

    def finish(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        return when_inside(flat, points, domain.point(coordinates(flat, extents)))

    return Piece(ceildiv(points, THREADS), finish)


def when_inside(flat: ir.Expr, points: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Leave the last block's surplus threads idle."""
    size = constant(points)
    return body if size is not None and size % THREADS == 0 else when(flat < points, body)


def _vectors(cut: Vectors) -> Piece:
    """Give every thread of a block some vectors, neighbouring ones to neighbouring threads."""
    each, whole = cut.per_thread, cut.whole
    count = constant(whole)
    is_full = count is not None and count > 0 and count % (each * THREADS) == 0
    points = cut.domain.points

    def finish(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
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

    return Piece(ceildiv(points, cut.width * each * THREADS), finish)
