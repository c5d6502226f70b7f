"""How many threads a row gets on a GPU, and how many rows a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from .cpu import lanes_are_rows
from .emit import integer, static_volume, threads_of
from .stages import RowStages
from .vectors import order_of, streams_of

BLOCK = 128  # threads of a block of short rows
LANE_ROWS = 32  # neighbouring rows of a block whose threads lie along rows
ITEMS = 8  # single elements of a row that a thread should have before more threads pay
SYMBOLIC_ROW = 2048  # what an unknown row is taken for
SYMBOLIC_COUNT = 1024  # what an unknown number of rows is taken for
# Vectors of a row that a thread should have before more threads pay. All are asked for at once: 64
# bytes a thread keep memory busy with a quarter to a half of the threads a multiprocessor holds,
# as many as find room with a row in their registers.
VECTORS = 4
FILL = 1 << 17  # threads below which a device has room for more of them, with less to do each
# Warps whose results each thread takes in one after the other; of more, each warp combines them
# like the terms of its own threads, which takes twice as long. Rows have more to fill a device.
IN_TURN = 8
VECTOR_ELEMENTS = 64  # of a row that a thread keeps: the loops over them are unrolled
LEAST_THREADS = 8  # whose vectors fill a cache line


@dataclass(frozen=True)
class Geometry:
    """Threads of a block: ``threads`` for each of its ``rows``.

    Attributes
    ----------
    threads, rows : int
        Threads are a power of two up to a warp, whole warps from there on.
    rows_first : bool
        Whether neighbouring threads take neighbouring rows, rather than elements of a row.
    warp : int
        Threads that exchange values without shared memory.
    """

    threads: int
    rows: int
    rows_first: bool = False
    warp: int = 32

    @property
    def warps(self) -> int:
        """Warps of a row; 1 also where a row has a part of one."""
        return 1 if self.rows_first else max(1, self.threads // self.warp)

    def every(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, thread)`` in every thread of every row."""
        return self.every_lane(lambda r, w, lane: body(r, w * self.lanes + lane))

    @property
    def lanes(self) -> int:
        """Threads of a row in one warp."""
        return self.threads // self.warps

    def every_lane(self, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, warp of the row, thread of the warp)`` in every thread of every row."""
        rows, warps, lanes = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
        if self.warps == 1:
            rows = "threadIdx.y"
        if self.rows_first:
            rows, lanes = "threadIdx.x", "threadIdx.y"

        def row(r: ir.Expr) -> tirx.Stmt:
            return _threads("w", self.warps, warps, lambda w: warp(r, w))

        def warp(r: ir.Expr, w: ir.Expr) -> tirx.Stmt:
            return _threads("t", self.lanes, lanes, lambda lane: body(r, w, lane))

        return _threads("r", self.rows, rows, row)


def _threads(name: str, extent: int, axis: str, body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Bind a thread axis, if there is more than one thread.

    TVM places barriers by whether an index depends on the innermost axis; none does on a single
    thread.
    """
    return body(integer(0)) if extent == 1 else threads_of(name, extent, axis, body)


def choose_geometry(program: RowStages, most: int, warp: int, whole_warps: bool) -> Geometry:
    """Choose the threads of a row and the rows of a block.

    Parameters
    ----------
    program : RowStages
        The stages.
    most : int
        Threads that a block may have.
    warp : int
        Threads of a warp.
    whole_warps : bool
        Whether parts of a warp cannot exchange values among themselves.
    """
    work = max(static_volume(s.domain, SYMBOLIC_ROW) for s in program.stages)
    if not all(s.combine is None or s.combine.threads_can_share for s in program.stages):
        return Geometry(1, BLOCK, rows_first=True, warp=warp)
    if lanes_are_rows(program):
        if work <= 2 * ITEMS:
            return Geometry(1, 2 * BLOCK, rows_first=True, warp=warp)
        threads = min(_power_of_two(-(-work // ITEMS)), most // LANE_ROWS, 16)
        return Geometry(threads, LANE_ROWS, rows_first=True, warp=warp)
    walks = [stage.inner or stage.reduce for stage in program.stages]
    longest = max(walks, key=lambda axes: static_volume(axes, SYMBOLIC_ROW))
    size = static_volume(longest, SYMBOLIC_ROW)
    order = order_of(program, longest)
    if order.is_ahead:
        count = static_volume(program.rows, SYMBOLIC_COUNT)
        is_single = streams_of(program, longest) == 1
        # Narrow accesses of several streams are too many for a thread to have on their way.
        each = VECTORS * order.parts if is_single else VECTORS
        threads = _threads_ahead(order.vectors(size), each, count, warp)
        enough = _whole_warps(max(IN_TURN * warp, -(-size // VECTOR_ELEMENTS)), warp)
        if is_single and order.width > 1 and count * enough >= FILL:
            threads = min(threads, enough)
        least = min(LEAST_THREADS * order.parts, warp)
    else:
        threads = _power_of_two(-(-size // ITEMS))
        if size <= warp * 4 * ITEMS:
            # A warp needs no barrier to combine its results.
            threads = min(_power_of_two(size), warp)
        least = 1
    least = warp if whole_warps else min(least, _power_of_two(size))
    threads = min(max(threads, least), most // warp * warp)
    rows = min(max(1, BLOCK // threads), _power_of_two(static_volume(program.rows, BLOCK)))
    return Geometry(threads, _floor_power(rows), warp=warp)


def _threads_ahead(vectors: int, each: int, rows: int, warp: int) -> int:
    """Threads for a row of vectors: as few as keep memory busy, as many as there is room for."""
    while each > 1 and rows * -(-vectors // each) < FILL:
        each //= 2
    threads = -(-vectors // each)
    return _power_of_two(threads) if threads < warp else _whole_warps(threads, warp)


def _whole_warps(threads: int, warp: int) -> int:
    return -(-threads // warp) * warp


def _power_of_two(count: int) -> int:
    """Least power of two from a count on."""
    return 1 << (max(count, 1) - 1).bit_length()


def _floor_power(count: int) -> int:
    """Greatest power of two up to a count."""
    return 1 << (count.bit_length() - 1)
