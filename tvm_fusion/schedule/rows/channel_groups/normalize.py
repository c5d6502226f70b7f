"""The maps of a norm of channel groups on a GPU, in vectors of channels.

  grid    rows * tiles blocks: some pixels of an image with all their channels
  join the statistics of all groups                                            shared memory
  thread (line, vector):
    invariants[lane] = such as scale[c] / deviation[g of c], shift[c] - mean[g of c] * ..
    for its pixels, the last first: out[pixel][c] = f(v, invariants)

What the first launch has read last is in the cache: pixels are read in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import (
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
from .pixel_loop import PixelLoop, PixelTile, Value
from .statistics import each_of, sums


def normalize_kernel(
    view: ChannelGroups, program: Program, tile: PixelTile, partial: Sequence[ir.Var]
) -> tirx.PrimFunc:
    """Make the kernel of the second launch.

    Parameters
    ----------
    program
        Its inputs end with the workspaces.
    tile
        Pixels of a block, and threads.
    partial
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


# Statistics of channel groups on a GPU: every block of the second launch joins their parts.
#
#     n: elements of a part of a group
#     thread (strip, g): near = partial_mean - partial_mean of part 0
#       s, q = sums over every strips-th part of near, partial_squares + n near^2     shared memory
#     barrier
#     thread g: total[g] = size * (mean of part 0 + sum of s / parts)
#       squares[g] = sum of q - n (sum of s)^2 / parts
#     barrier
#
# The parts are joined about the mean of the first one, with at most as many roundings as there are
# parts.
class JoinedParts:
    """Joins the parts of all groups of a row, in every block."""

    def __init__(self, view: ChannelGroups, partial: Sequence[ir.Var], size: int) -> None:
        self._view, self._partial, self._threads = view, partial, size
        self._parts = int(partial[0].shape[-2])
        self._strips = max(1, min(self._parts, size // view.groups))
        shape = [self._strips, view.groups]
        self._strip = [scratch(shape, "float32", f"{n}_strips", "shared") for n in ("near", "dev")]
        self.total, self.squares = (
            scratch([view.groups], "float32", f"{name}_shared", "shared")
            for name in ("total", "squares")
        )
        elements = view.pixel_count // self._parts * view.size
        self._elements = tirx.const(elements, "float32")

    @property
    def buffers(self) -> list[ir.Var]:
        """List the shared memory."""
        return [*self._strip, self.total, self.squares]

    def phases(self, rows: Sequence[ir.Expr]) -> list[Callable[[ir.Expr], tirx.Stmt]]:
        """Write what threads do, with a barrier between."""
        return [lambda t: self._sum(rows, t), lambda t: self._total(rows, t)]

    def _sum(self, rows: Sequence[ir.Expr], thread: ir.Expr) -> tirx.Stmt:
        view, strips = self._view, self._strips
        steps = -(-self._parts // strips)

        def one(number: ir.Expr) -> tirx.Stmt:
            strip, group = coordinates(number, [strips, view.groups])
            first = load(self._partial[0], [*rows, index(0), group])

            def part(step: ir.Expr) -> list[ir.Expr]:
                own = step * strips + strip
                is_whole = steps * strips == self._parts
                where = own if is_whole else tirx.min(own, index(self._parts - 1))
                at = [*rows, where, group]
                near = load(self._partial[0], at) - first
                terms = [near, load(self._partial[1], at) + self._elements * near * near]
                zero = tirx.const(0, "float32")
                if is_whole:
                    return terms
                return [tirx.Select(own < self._parts, term, zero) for term in terms]

            total, stmts = sums(2, steps, part)
            stmts += [
                tirx.BufferStore(target, load(total, [index(i)]), [strip, group])
                for i, target in enumerate(self._strip)
            ]
            return block("strip", sequence(stmts), [total])

        return each_of(thread, strips * view.groups, self._threads, one)

    def _total(self, rows: Sequence[ir.Expr], thread: ir.Expr) -> tirx.Stmt:
        share = tirx.const(1 / self._parts, "float32")
        size = tirx.const(self._view.pixel_count * self._view.size, "float32")

        def one(group: ir.Expr) -> tirx.Stmt:
            first = load(self._partial[0], [*rows, index(0), group])
            total, stmts = sums(
                2, self._strips, lambda n: [load(b, [n, group]) for b in self._strip]
            )
            s, q = (load(total, [index(i)]) for i in range(2))
            squares = q - self._elements * (s * (s * share))
            zero = tirx.const(0, "float32")
            stmts.append(tirx.BufferStore(self.total, size * (first + s * share), [group]))
            stmts.append(tirx.BufferStore(self.squares, tirx.max(squares, zero), [group]))
            return block("total", sequence(stmts), [total])

        return each_of(thread, self._view.groups, self._threads, one)
