"""Statistics of channel groups on a GPU: parts of an image, of all groups together.

  grid rows * parts blocks; a block has m pixels of an image with all their channels
    thread (line, vector):
      shift[lane] = v at the block's first pixel
      for its pixels: sum[lane] += v - shift; squares[lane] += (v - shift)^2        registers
      sums[line][c], squares[line][c]                                               shared memory
    barrier
    thread c: s, q = sums over lines; mean[c] = v + s / m; deviations[c] = q - s^2 / m
    barrier
    thread g: mean = average of mean[c of g]
      partial_mean[row, part, g] = mean
      partial_squares[row, part, g] = sum of deviations[c] + m (mean[c] - mean)^2

A column is summed about its first pixel, which is at most sqrt(m) standard deviations off its mean:
its sum of squares is off by at most m roundings of float32, if all others are alike.
"""

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
    loop,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    when,
)
from ....program.program import Program
from .channel_groups import ChannelGroups
from .pixel_loop import PixelLoop, PixelTile

MAX_UNROLLED = 16  # terms of a sum: all loads are in flight together


def statistics_kernel(
    view: ChannelGroups, program: Program, tile: PixelTile, partial: Sequence[ir.Var]
) -> tirx.PrimFunc:
    """Make the kernel of the first launch.

    Parameters
    ----------
    program
        Its outputs are the workspaces.
    tile
        Pixels of a part, and threads.
    partial
        Workspaces in float32, ``(*rows, parts, groups)``: means, sums of squared deviations.
    """
    parts = view.pixel_count // tile.pixels
    extents = [*(axis.extent for axis in view.rows), index(parts)]
    shared = [
        scratch(shape, "float32", name, "shared")
        for names, shape in (
            (("sums", "squares"), [tile.lines, view.channels]),
            (("means", "deviations"), [view.channels]),
        )
        for name in names
    ]

    def body(number: ir.Expr) -> tirx.Stmt:
        *rows, part = coordinates(number, extents)
        work = _Statistics(view, tile, shared, rows, part, partial)
        phases = [work.columns, work.channels, work.groups]
        stmts = [threads("threadIdx.x", tile.threads, phase) for phase in phases]
        return block("statistics", sequence(stmts), shared)

    return kernel(program, threads("blockIdx.x", product(extents), body))


class _Statistics:
    """What the threads of a block do."""

    def __init__(
        self,
        view: ChannelGroups,
        tile: PixelTile,
        shared: Sequence[ir.Var],
        rows: Sequence[ir.Expr],
        part: ir.Expr,
        partial: Sequence[ir.Var],
    ) -> None:
        self._view, self._tile, self._rows, self._part = view, tile, rows, part
        self._sums, self._squares, self._means, self._deviations = shared
        self._partial = partial

    def columns(self, thread: ir.Expr) -> tirx.Stmt:
        """Sum the pixels of a thread."""
        view, tile = self._view, self._tile
        first = self._part * tile.pixels
        pixels = PixelLoop(view, tile, [view.term], thread, self._rows, first)
        (term,) = pixels.values
        shift, total, squares = (
            local(name, [view.width], "float32") for name in ("shift", "sum", "square")
        )

        def start(value) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                zero = tirx.const(0, "float32")
                return sequence(
                    [
                        tirx.BufferStore(shift, value(term, lane), [lane]),
                        tirx.BufferStore(total, zero, [lane]),
                        tirx.BufferStore(squares, zero, [lane]),
                    ]
                )

            return unrolled("lane", view.width, one)

        def add(_pixel: ir.Expr, value) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                name = tirx.Var("near", "float32")
                here = [lane]
                return sequence(
                    [
                        tirx.Bind(name, value(term, lane) - load(shift, here)),
                        tirx.BufferStore(total, load(total, here) + name, here),
                        tirx.BufferStore(squares, load(squares, here) + name * name, here),
                    ]
                )

            return unrolled("lane", view.width, one)

        def keep(lane: ir.Expr) -> tirx.Stmt:
            channel = pixels.channel + lane
            kept = [
                tirx.BufferStore(self._sums, load(total, [lane]), [pixels.line, channel]),
                tirx.BufferStore(self._squares, load(squares, [lane]), [pixels.line, channel]),
            ]
            return sequence(kept)

        stmts = [
            pixels.fix(),
            pixels.at_first(start),
            pixels.each(add),
            unrolled("lane", view.width, keep),
        ]
        return block("columns", sequence(stmts), [shift, total, squares, *pixels.buffers])

    def channels(self, thread: ir.Expr) -> tirx.Stmt:
        """Compute means and squared deviations of channels."""
        first = self._part * self._tile.pixels
        count = tirx.const(1 / self._tile.pixels, "float32")

        def one(channel: ir.Expr) -> tirx.Stmt:
            def line(number: ir.Expr) -> list[ir.Expr]:
                places = [number, channel]
                return [load(self._sums, places), load(self._squares, places)]

            total, stmts = sums(2, self._tile.lines, line)
            s, q = (load(total, [index(i)]) for i in range(2))
            shift = substitute(self._view.term, self._view.place(self._rows, first, channel))
            mean = shift + s * count
            deviations = tirx.max(q - s * (s * count), tirx.const(0, "float32"))
            stmts.append(tirx.BufferStore(self._means, mean, [channel]))
            stmts.append(tirx.BufferStore(self._deviations, deviations, [channel]))
            return block("channel", sequence(stmts), [total])

        return each_of(thread, self._view.channels, self._tile.threads, one)

    def groups(self, thread: ir.Expr) -> tirx.Stmt:
        """Compute means and squared deviations of groups."""
        view, pixels = self._view, tirx.const(self._tile.pixels, "float32")
        share = tirx.const(1 / view.size, "float32")

        def one(group: ir.Expr) -> tirx.Stmt:
            def of(buffer: ir.Var, number: ir.Expr) -> ir.Expr:
                return load(buffer, [group * view.size + number])

            means, first = sums(1, view.size, lambda k: [of(self._means, k)])
            mean = load(means, [index(0)]) * share

            def squares(k: ir.Expr) -> list[ir.Expr]:
                near = of(self._means, k) - mean
                return [of(self._deviations, k) + pixels * near * near]

            deviations, second = sums(1, view.size, squares)
            where = [*self._rows, self._part, group]
            stores = [
                tirx.BufferStore(self._partial[0], mean, where),
                tirx.BufferStore(self._partial[1], load(deviations, [index(0)]), where),
            ]
            return block("group", sequence([*first, *second, *stores]), [means, deviations])

        return each_of(thread, view.groups, self._tile.threads, one)


def each_of(
    thread: ir.Expr, count: int, size: int, body: Callable[[ir.Expr], tirx.Stmt]
) -> tirx.Stmt:
    """Loop over a range that the threads of a block share, one index a thread."""

    def one(item: ir.Expr) -> tirx.Stmt:
        number = item * size + thread
        return when(number < count, body(number)) if count % size else body(number)

    return loop("item", -(-count // size), one)


def sums(
    several: int, count: int, terms: Callable[[ir.Expr], list[ir.Expr]]
) -> tuple[ir.Var, list[tirx.Stmt]]:
    """Sum terms in order; return the registers and the statements."""
    total = local("total", [several], "float32")
    zero = tirx.const(0, "float32")
    start = [tirx.BufferStore(total, zero, [index(i)]) for i in range(several)]

    def add(number: ir.Expr) -> tirx.Stmt:
        stmts = []
        for i, term in enumerate(terms(number)):
            stmts.append(tirx.BufferStore(total, load(total, [index(i)]) + term, [index(i)]))
        return sequence(stmts)

    kind = tirx.ForKind.UNROLLED if count <= MAX_UNROLLED else tirx.ForKind.SERIAL
    return total, [*start, loop("term", count, add, kind)]
