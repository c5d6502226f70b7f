"""Statistics of channel groups on a GPU: parts of an image are reduced, then parts are joined.

  statistics: grid rows * parts blocks; a block has m pixels of an image with all their channels
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

  join: in each block of the second launch; n: elements of a part of a group
    thread (strip, g): near = partial_mean - partial_mean of part 0
      s, q = sums over every strips-th part of near, partial_squares + n near^2     shared memory
    barrier
    thread g: total[g] = size * (mean of part 0 + sum of s / parts)
      squares[g] = sum of q - n (sum of s)^2 / parts
    barrier

A column is summed about its first pixel, which is at most sqrt(m) standard deviations off its mean:
its sum of squares is off by at most m roundings of float32, if all others are alike. The parts are
joined about the mean of the first one, with at most as many roundings as there are parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import (
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
from ...program.program import Program
from .channel_groups import ChannelGroups
from .pixel_loop import PixelLoop, PixelTile

MAX_UNROLLED = 16  # terms of a sum: all loads are in flight together


def statistics_kernel(
    view: ChannelGroups, program: Program, tile: PixelTile, partial: Sequence[ir.Var]
) -> tirx.PrimFunc:
    """Make the kernel of the first launch.

    Parameters
    ----------
    view : ChannelGroups
        The norm.
    program : Program
        Its outputs are the workspaces.
    tile : PixelTile
        Pixels of a part, and threads.
    partial : sequence of Var
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
        shift, sums, squares = (
            local(name, [view.width], "float32") for name in ("shift", "sum", "square")
        )

        def start(value) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                zero = tirx.const(0, "float32")
                return sequence(
                    [
                        tirx.BufferStore(shift, value(term, lane), [lane]),
                        tirx.BufferStore(sums, zero, [lane]),
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
                        tirx.BufferStore(sums, load(sums, here) + name, here),
                        tirx.BufferStore(squares, load(squares, here) + name * name, here),
                    ]
                )

            return unrolled("lane", view.width, one)

        def keep(lane: ir.Expr) -> tirx.Stmt:
            channel = pixels.channel + lane
            kept = [
                tirx.BufferStore(self._sums, load(sums, [lane]), [pixels.line, channel]),
                tirx.BufferStore(self._squares, load(squares, [lane]), [pixels.line, channel]),
            ]
            return sequence(kept)

        stmts = [
            pixels.fix(),
            pixels.at_first(start),
            pixels.each(add),
            unrolled("lane", view.width, keep),
        ]
        return block("columns", sequence(stmts), [shift, sums, squares, *pixels.buffers])

    def channels(self, thread: ir.Expr) -> tirx.Stmt:
        """Give means and squared deviations of channels."""
        first = self._part * self._tile.pixels
        count = tirx.const(1 / self._tile.pixels, "float32")

        def one(channel: ir.Expr) -> tirx.Stmt:
            def line(number: ir.Expr) -> list[ir.Expr]:
                places = [number, channel]
                return [load(self._sums, places), load(self._squares, places)]

            total, stmts = _sums(2, self._tile.lines, line)
            s, q = (load(total, [index(i)]) for i in range(2))
            shift = substitute(self._view.term, self._view.place(self._rows, first, channel))
            mean = shift + s * count
            deviations = tirx.max(q - s * (s * count), tirx.const(0, "float32"))
            stmts.append(tirx.BufferStore(self._means, mean, [channel]))
            stmts.append(tirx.BufferStore(self._deviations, deviations, [channel]))
            return block("channel", sequence(stmts), [total])

        return each_of(thread, self._view.channels, self._tile.threads, one)

    def groups(self, thread: ir.Expr) -> tirx.Stmt:
        """Give means and squared deviations of groups."""
        view, pixels = self._view, tirx.const(self._tile.pixels, "float32")
        share = tirx.const(1 / view.size, "float32")

        def one(group: ir.Expr) -> tirx.Stmt:
            def of(buffer: ir.Var, number: ir.Expr) -> ir.Expr:
                return load(buffer, [group * view.size + number])

            means, first = _sums(1, view.size, lambda k: [of(self._means, k)])
            mean = load(means, [index(0)]) * share

            def squares(k: ir.Expr) -> list[ir.Expr]:
                near = of(self._means, k) - mean
                return [of(self._deviations, k) + pixels * near * near]

            deviations, second = _sums(1, view.size, squares)
            where = [*self._rows, self._part, group]
            stores = [
                tirx.BufferStore(self._partial[0], mean, where),
                tirx.BufferStore(self._partial[1], load(deviations, [index(0)]), where),
            ]
            return block("group", sequence([*first, *second, *stores]), [means, deviations])

        return each_of(thread, view.groups, self._tile.threads, one)


class JoinedParts:
    """Joins the parts of all groups of a row, in every block.

    Parameters
    ----------
    view : ChannelGroups
        The norm.
    partial : sequence of Var
        Of the first launch.
    size : int
        Threads of a block.
    """

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

            total, stmts = _sums(2, steps, part)
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
            total, stmts = _sums(
                2, self._strips, lambda n: [load(b, [n, group]) for b in self._strip]
            )
            s, q = (load(total, [index(i)]) for i in range(2))
            squares = q - self._elements * (s * (s * share))
            zero = tirx.const(0, "float32")
            stmts.append(tirx.BufferStore(self.total, size * (first + s * share), [group]))
            stmts.append(tirx.BufferStore(self.squares, tirx.max(squares, zero), [group]))
            return block("total", sequence(stmts), [total])

        return each_of(thread, self._view.groups, self._threads, one)


def each_of(
    thread: ir.Expr, count: int, size: int, body: Callable[[ir.Expr], tirx.Stmt]
) -> tirx.Stmt:
    """Give numbers below a count to the threads of a block, one after the other."""

    def one(item: ir.Expr) -> tirx.Stmt:
        number = item * size + thread
        return when(number < count, body(number)) if count % size else body(number)

    return loop("item", -(-count // size), one)


def _sums(
    several: int, count: int, terms: Callable[[ir.Expr], list[ir.Expr]]
) -> tuple[ir.Var, list[tirx.Stmt]]:
    """Sum terms in order; gives the registers and the statements."""
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
