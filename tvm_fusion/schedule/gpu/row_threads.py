"""The threads of a block that computes rows: some threads for each of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from .warp import each_thread


@dataclass(frozen=True)
class RowThreads:
    """Threads of a block: ``threads`` for each of its ``rows``.

    Attributes
    ----------
    threads, rows : int
        Threads are a power of two up to a warp, whole warps from there on.
    rows_first : bool
        Whether neighbouring threads have neighbouring rows, rather than elements of a row.
    warp_size : int
        Threads that exchange values without shared memory.
    """

    threads: int
    rows: int
    rows_first: bool = False
    warp_size: int = 32

    @property
    def warps(self) -> int:
        """Warps of a row; 1 also where a row has a part of one."""
        return 1 if self.rows_first else max(1, self.threads // self.warp_size)

    @property
    def lanes(self) -> int:
        """Threads of a row in one warp."""
        return self.threads // self.warps

    def each_thread(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, thread)`` in every thread of every row."""
        return self.each_lane(lambda r, w, lane: body(r, w * self.lanes + lane))

    def each_lane(self, body: Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, warp of the row, thread of the warp)`` in every thread of every row."""
        row, warp, lane = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
        if self.warps == 1:
            row = "threadIdx.y"
        if self.rows_first:
            row, lane = "threadIdx.x", "threadIdx.y"
        extents = [(row, self.rows), (warp, self.warps), (lane, self.lanes)]
        return each_thread(extents, body, binds_single=False)
