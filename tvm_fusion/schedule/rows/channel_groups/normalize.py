"""The maps of a norm of channel groups on a GPU, in vectors of channels.

  grid    rows * tiles blocks: some pixels of an image with all their channels
  join the statistics of all groups (joined_parts)                             shared memory
  thread (line, vector):
    invariants[lane] = such as scale[c] / deviation[g of c], shift[c] - mean[g of c] * ..
    for its pixels, the last first: out[pixel][c] = f(v, invariants)

What the first launch has read last is in the cache: pixels are read in the opposite order.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from ....core.expressions import load
from ....core.loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    vectorized,
)
from ....program.program import Program
from .channel_groups import ChannelGroups
from .joined_parts import JoinedParts
from .pixel_loop import PixelLoop, PixelTile, Value


def normalize_kernel(
    view: ChannelGroups, program: Program, tile: PixelTile, partial: Sequence[ir.Var]
) -> tirx.PrimFunc:
    """Make the kernel of the second launch.

    Parameters
    ----------
    view : ChannelGroups
        The norm.
    program : Program
        Its inputs end with the workspaces.
    tile : PixelTile
        Pixels of a block, and threads.
    partial : sequence of Var
        What the first launch has written.
    """
    tiles = view.pixel_count // tile.pixels
    extents = [*(axis.extent for axis in view.rows), index(tiles)]
    joined = JoinedParts(view, partial, tile.threads)

    def body(number: ir.Expr) -> tirx.Stmt:
        *rows, part = coordinates(number, extents)

        def maps(thread: ir.Expr) -> tirx.Stmt:
            return _maps(view, tile, joined, thread, rows, part * tile.pixels)

        phases = [*joined.phases(rows), maps]
        stmts = [threads("threadIdx.x", tile.threads, phase) for phase in phases]
        return block("normalize", sequence(stmts), joined.buffers)

    return kernel(program, threads("blockIdx.x", product(extents), body))


def _maps(
    view: ChannelGroups,
    tile: PixelTile,
    joined: JoinedParts,
    thread: ir.Expr,
    rows: Sequence[ir.Expr],
    first: ir.Expr,
) -> tirx.Stmt:
    """Compute the maps of a thread's pixels."""
    pixels = PixelLoop(view, tile, [s.value for s in view.stores], thread, rows, first)
    made = [
        local(f"{store.target.name}_vector", [view.width], str(store.target.dtype))
        for store in view.stores
    ]

    def of_group(buffer: ir.Var):
        return lambda lane: load(buffer, [tirx.floordiv(pixels.channel + lane, index(view.size))])

    def write(pixel: ir.Expr, value: Value) -> tirx.Stmt:
        stmts = []
        for store, expr, out in zip(view.stores, pixels.values, made, strict=True):

            def compute(lane: ir.Expr, expr=expr, out=out) -> tirx.Stmt:
                return tirx.BufferStore(out, value(expr, lane), [lane])

            def put(lane: ir.Expr, store=store, out=out) -> tirx.Stmt:
                place = pixels.place(pixel, lane)
                indices = [substitute(i, place) for i in store.indices]
                return tirx.BufferStore(store.target, load(out, [lane]), indices)

            stmts += [unrolled("lane", view.width, compute), vectorized(view.width, put)]
        return sequence(stmts)

    known = {view.total: of_group(joined.total), view.squares: of_group(joined.squares)}
    stmts = [pixels.fix(known), pixels.each(write, backwards=True)]
    return block("maps", sequence(stmts), [*made, *pixels.buffers])
