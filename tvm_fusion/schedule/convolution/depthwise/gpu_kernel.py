"""Depthwise convolution on a GPU: vectors of channels, strips of pixels of one row.

  grid    batch * ceil(Y / rows) * ceil(strips / block_strips) * (vectors / block_vectors)
  block   rows * block_strips * block_vectors threads, channels innermost: coalesced
  thread  `lanes` channels of `pixels` pixels along x
    acc[pixels][lanes] = 0                                                        registers
    for some rows of the window at a time:                     unrolled, but of large windows
      for row, column of the image that the strip reads:
        taps[row][column] = image vector                                          16 bytes a load
      for row, column:  zeros where that is outside of the image
      for row, column of the window:  weight vector; for pixel, lane:
        acc[pixel][lane] += taps[row][pixel * step + column * dilation][lane] * weight[lane]
    for pixel:  vectors that results read; results by lane; vectors stored

A strip loads each column once for all pixels and taps; rows of a block share lines in L1.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tvm import DataType, ir, tirx

from ....core.tir.expressions import load, variables
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    local,
    over,
    product,
    sequence,
    substitute,
    threads,
    unrolled,
    vectorized,
    when,
)
from ....program.program import Program
from ...contraction.problem.functions.packing import packed_kernel
from ...gpu.launch import VECTOR_BYTES, block_by_address
from ...gpu.registers.moves import keep_words
from ...index.address import same
from .gpu_config import DepthwiseGpuConfig
from .gpu_view import DepthwiseView, vector_loads

WORD_BYTES = 4
BYTES_IN_FLIGHT = 256  # of a thread: 64 registers of columns
MOST_UNROLLED = 64  # taps of a window; of larger ones, rows are a loop


def depthwise_gpu(
    program: Program, view: DepthwiseView, config: DepthwiseGpuConfig, is_cuda: bool
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    view = replace(view, lanes=config.lanes)
    packed = view.packed()
    thread = _Thread(view, config, packed.buffer, is_cuda)
    return packed_kernel(program, thread.grid(), [packed])


class _Thread:
    """The work of a thread, and the grid around it."""

    def __init__(
        self, view: DepthwiseView, config: DepthwiseGpuConfig, packed: ir.Var, is_cuda: bool
    ) -> None:
        self._view, self._config, self._packed, self._is_cuda = view, config, packed, is_cuda
        self._lanes = view.lanes
        self._width = view.x.extent
        spans = [(p * view.step + t * view.dilation, p) for p, t in self._pairs()]
        # Columns of the image by their distance from the first; the first pixel that reads each.
        self._columns = {
            c: min(p for d, p in spans if d == c) for c in sorted({c for c, _ in spans})
        }

    def _pairs(self) -> list[tuple[int, int]]:
        return [(p, t) for t in range(self._view.taps) for p in range(self._config.pixels)]

    def grid(self) -> tirx.Stmt:
        """Write blocks and threads."""
        view, config = self._view, self._config
        blocks = [
            *(a.extent for a in view.batch),
            ceildiv(view.y.extent, config.rows),
            ceildiv(self._width, config.pixels * config.block_strips),
            ceildiv(view.k.extent, self._lanes * config.block_vectors),
        ]

        def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
            *batch, row, strip, vector = coordinates(number, blocks)
            sizes = [config.rows, config.block_strips, config.block_vectors]
            own_row, own_strip, own_vector = coordinates(thread, sizes)
            place = dict(zip((a.var for a in view.batch), batch, strict=True))
            y = row * config.rows + own_row
            x = (strip * config.block_strips + own_strip) * config.pixels
            place |= {view.y.var: y, view.x.var: x}
            stmt = self._strip(place, vector * config.block_vectors + own_vector)
            if _has_rest(view.y.extent, config.rows):
                stmt = when(y < view.y.extent, stmt)
            if _has_rest(self._width, config.pixels * config.block_strips):
                stmt = when(x < self._width, stmt)
            return stmt

        count = config.rows * config.block_strips * config.block_vectors
        return threads(
            "blockIdx.x",
            product(blocks),
            lambda number: threads("threadIdx.x", count, lambda thread: body(number, thread)),
        )

    def _strip(self, place: dict[ir.Var, ir.Expr], vector: ir.Expr) -> tirx.Stmt:
        """Write the sums and the results of a strip."""
        view, pixels, lanes = self._view, self._config.pixels, self._lanes
        dtype = view.contraction.dtype
        columns, group = len(self._columns), self._rows_at_once()
        acc = local("acc", [pixels * lanes], dtype)
        taps = local("taps", [group * columns * lanes], str(view.image.ty.dtype))
        weight = local("weight", [lanes], str(self._packed.dtype))
        number = {c: n for n, c in enumerate(self._columns)}

        def add(row: int, pixel: int, tap: int) -> tirx.Stmt:
            column = number[pixel * view.step + tap * view.dilation]
            first = (row * columns + column) * lanes

            def one(lane: ir.Expr) -> tirx.Stmt:
                at = [pixel * lanes + lane]
                factors = load(taps, [first + lane]), load(weight, [lane])
                wide = [f if str(f.ty.dtype) == dtype else tirx.Cast(dtype, f) for f in factors]
                return tirx.BufferStore(acc, load(acc, at) + wide[0] * wide[1], at)

            return unrolled("lane", lanes, one)

        def rows(windows: Sequence[list[ir.Expr]]) -> tirx.Stmt:
            loaded, zeroed, added = [], [], []
            for row, window in enumerate(windows):
                here = {**place, **dict(zip((a.var for a in view.rows), window, strict=True))}
                for n, column in enumerate(self._columns):
                    first = (row * columns + n) * lanes
                    stmts = self._tap(taps, first, column, here, vector)
                    loaded.append(stmts[0])
                    zeroed += stmts[1:]
                for tap in range(view.taps):
                    where = [*window, *([] if view.column is None else [index(tap)])]
                    added.append(self._copy(weight, 0, self._packed, where, vector))
                    added += [add(row, pixel, tap) for pixel in range(pixels)]
            return sequence([*loaded, *zeroed, *added])

        clear = unrolled(
            "sum",
            pixels * lanes,
            lambda n: tirx.BufferStore(acc, view.contraction.initial, [n]),
        )
        stmts = [clear, self._window(rows, group)]
        for pixel in range(pixels):
            stmt = store_pixel(view, place, vector, acc, pixel)
            exists = place[view.x.var] + pixel < self._width
            is_last = pixel and _has_rest(self._width, pixels)
            stmts.append(when(exists, stmt) if is_last else stmt)
        if not self._is_cuda:
            return block("strip", sequence(stmts), [acc, weight, taps])
        stmt = block_by_address("taps", sequence(stmts), [taps])
        return block("strip", stmt, [acc, weight])

    def _rows_at_once(self) -> int:
        """Choose the rows of the window whose loads are in flight together."""
        view = self._view
        size = DataType(str(view.image.ty.dtype)).itemsize * self._lanes * len(self._columns)
        count = prod(constant(a.extent) or 1 for a in view.rows)
        if count * view.taps > MOST_UNROLLED:
            return 1
        return max(1, min(count, BYTES_IN_FLIGHT // size))

    def _window(
        self, rows: Callable[[Sequence[list[ir.Expr]]], tirx.Stmt], group: int
    ) -> tirx.Stmt:
        """Run through the rows of the window, some at a time."""
        view = self._view
        extents = [range(constant(a.extent) or 1) for a in view.rows]
        places = [[index(n) for n in place] for place in itertools.product(*extents)]
        if len(places) * view.taps > MOST_UNROLLED:
            return over(view.rows, lambda place: rows([place]))
        groups = [places[n : n + group] for n in range(0, len(places), group)]
        return sequence([rows(some) for some in groups])

    def _tap(
        self, taps: ir.Var, first: int, column: int, place: dict[ir.Var, ir.Expr], vector: ir.Expr
    ) -> list[tirx.Stmt]:
        """Load the vector of a column of the image, then make it zeros where there is none.

        What is outside reads an element that exists, and forgets it: branches around loads would
        keep the compiler from asking for all of them at once.
        """
        view, lanes = self._view, self._lanes
        here = {**place, **({} if view.column is None else {view.column.var: index(0)})}
        channel = tirx.Var("channel", "int64")
        where = {
            a.var: substitute(p, {**here, view.k.var: channel})
            for a, p in zip(view.axes, view.place, strict=True)
        }
        where[view.along] = where[view.along] + column
        indices = [substitute(i, where) for i in view.image.indices]
        conditions = []
        if view.inside is not None:
            inside = substitute(view.inside, where)
            conditions.append(substitute(inside, {channel: vector * lanes}))
        if _has_rest(self._width, self._config.pixels) and self._columns[column]:
            conditions.append(place[view.x.var] + self._columns[column] < self._width)
        exists = tirx.all(*conditions) if conditions else None
        if exists is not None:
            indices = [
                i if channel in variables(i) else tirx.Select(exists, i, index(0)) for i in indices
            ]

        def one(lane: ir.Expr) -> tirx.Stmt:
            place = [substitute(i, {channel: vector * lanes + lane}) for i in indices]
            return tirx.BufferStore(taps, load(view.image.source, place), [first + lane])

        stmt = copy_vector(self._lanes, view.image.source, one)
        if exists is None:
            return [stmt]
        dtype = DataType(str(view.image.ty.dtype))
        if self._is_cuda:
            words = dtype.itemsize * lanes // WORD_BYTES
            return [stmt, keep_words(load(taps, [index(first)]), words, exists)]
        zero = tirx.const(0, str(dtype))

        def keep(lane: ir.Expr) -> tirx.Stmt:
            place = [first + lane]
            return tirx.BufferStore(taps, tirx.Select(exists, load(taps, place), zero), place)

        return [stmt, unrolled("lane", lanes, keep)]

    def _copy(
        self, register: ir.Var, first: int, buffer: ir.Var, outer: Sequence, vector: ir.Expr
    ) -> tirx.Stmt:
        """Load the vector of a buffer whose last dimension are the channels."""
        return copy_vector(
            self._lanes,
            buffer,
            lambda lane: tirx.BufferStore(
                register, load(buffer, [*outer, vector * self._lanes + lane]), [first + lane]
            ),
        )


def _has_rest(extent: ir.Expr, size: int) -> bool:
    """Whether pieces of a size may reach beyond an extent."""
    known = constant(extent)
    return size > 1 if known is None else known % size != 0


# Epilogue of a depthwise convolution on a GPU: results of a pixel, by vectors of channels.
#
# for result:
#   for what the result reads besides the sums:   vector of channels       16 bytes a load
#   for lane:                                    out[lane] = result(acc[pixel][lane], vectors[lane])
#   result vector = out                                                   16 bytes a store
def store_pixel(
    view: DepthwiseView,
    place: Mapping[ir.Var, ir.Expr],
    vector: ir.Expr,
    acc: ir.Var,
    pixel: int,
) -> tirx.Stmt:
    """Compute and store the results of a pixel.

    Parameters
    ----------
    place
        The axes of pixels, at the first of the strip.
    vector
        The number of the vector of channels.
    acc
        Sums, ``[pixels * lanes]``.
    pixel
        The pixel's number in the strip.
    """
    lanes, ones = view.lanes, {a.var: index(0) for a in view.contraction.stage.axes}
    here = {**ones, **place, view.x.var: place[view.x.var] + pixel}

    def at(lane: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return {**here, view.k.var: vector * lanes + lane}

    stmts: list[tirx.Stmt] = []
    buffers: list[ir.Var] = []
    for result in view.contraction.results:
        held = []
        for read in vector_loads(view, result.value):
            register = local(f"{read.source.name}_vector", [lanes], str(read.ty.dtype))
            held.append((read, register))

            def fetch(lane: ir.Expr, read=read, register=register) -> tirx.Stmt:
                where = [substitute(i, at(lane)) for i in read.indices]
                return tirx.BufferStore(register, load(read.source, where), [lane])

            stmts.append(copy_vector(lanes, read.source, fetch))
        out = local(f"{result.buffer.name}_vector", [lanes], str(result.buffer.dtype))
        buffers += [*(register for _, register in held), out]

        def compute(lane: ir.Expr, result=result, held=held, out=out) -> tirx.Stmt:
            def swap(found: ir.TensorLoad) -> ir.Expr:
                register = next((r for known, r in held if same(found, known)), None)
                return found if register is None else load(register, [lane])

            total = load(acc, [pixel * lanes + lane])
            value = substitute(result.value, {}, swap) if held else result.value
            value = substitute(value, {**at(lane), view.contraction.total: total})
            return tirx.BufferStore(out, value, [lane])

        def store(lane: ir.Expr, result=result, out=out) -> tirx.Stmt:
            where = [substitute(i, at(lane)) for i in result.indices]
            return tirx.BufferStore(result.buffer, load(out, [lane]), where)

        stmts.append(unrolled("lane", lanes, compute))
        stmts.append(copy_vector(lanes, result.buffer, store))
    return block("pixel", sequence(stmts), buffers)


def copy_vector(lanes: int, buffer: ir.Var, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Copy a vector of channels of a buffer in accesses of at most 16 bytes."""
    at_once = min(lanes, VECTOR_BYTES // DataType(str(buffer.dtype)).itemsize)
    return unrolled(
        "access",
        lanes // at_once,
        lambda number: vectorized(at_once, lambda lane: body(number * at_once + lane)),
    )
