"""Configuration of the FlashAttention kernel on CUDA cores: tiles that fit into shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.loops import constant, loop, when
from ....device import Device
from ....ecg.work import at
from ...gpu.threads.warp import each_thread
from ..problem.pattern import Pattern

THREADS = 256
SHARED_BYTES = 44 * 1024  # of the 48 KB that every device gives
MIN_LANES, MAX_LANES = 16, 64
MAX_ROWS_OF_THREAD = 4
# Threads along the queries, and rows of each. Half as many threads come before fewer rows: on an
# H200, 16 heads of 512 keys and 128 elements took 97 us, not 118 (16 threads of two rows), 12 of 64
# elements 59 and 65.
SHAPES = ((16, 4), (8, 4), (16, 1))
OTHER_REGISTERS, ROW_REGISTERS = 26, 13  # of a thread, and of each of its rows
WIDE, WIDE_REGISTERS = 64, 4  # elements of rows beyond which results take more, for each row


def _pitch(elements: int) -> int:
    """Pad rows to an odd number of vectors of 16 bytes, which begin in different banks."""
    return 4 * (-(-elements // 4) | 1)


@dataclass(frozen=True)
class GpuConfig:
    """Threads and tiles of a block."""

    # Threads along the queries of a block, and threads that share a query.
    rows: int
    lanes: int
    # Neighbouring queries of a thread, which it multiplies with each element of a key at once.
    rows_of_thread: int
    keys: int  # keys or values in shared memory at once (block_n)
    # Elements of a key and of a value.
    depth: int
    columns: int

    @classmethod
    def of(cls, pattern: Pattern, device: Device) -> GpuConfig:
        """Choose the largest tiles that fit, of blocks enough for all multiprocessors."""
        depth, columns = constant(pattern.depth.extent), constant(pattern.column.extent)
        if depth is None or columns is None:
            raise ValueError("the elements of keys and values are not known at compile time")
        heads = math.prod(at(a.extent) for a in pattern.batch)
        queries = 1 if pattern.query is None else at(pattern.query.extent)
        most, keys = min(THREADS // MIN_LANES, 1 << (queries - 1).bit_length()), 32
        shapes = [(min(rows, most), own) for rows, own in SHAPES]
        rows, own = next(
            (s for s in shapes if heads * -(-queries // math.prod(s)) >= (device.sm_count or 1)),
            shapes[-1],
        )
        while True:
            lanes = min(THREADS // rows, MAX_LANES)
            if own == MAX_ROWS_OF_THREAD:
                lanes = MIN_LANES
            tiles = cls(rows, lanes, own, keys, depth, columns)
            if tiles.shared_bytes <= SHARED_BYTES:
                return tiles
            if (rows, own) == SHAPES[0]:
                rows, own = SHAPES[1]
            elif own > 1:
                own //= 2
            else:
                rows, keys = (rows, keys // 2) if keys > 8 else (rows // 2, keys)

    @property
    def block_m(self) -> int:
        """Queries of a block."""
        return self.rows * self.rows_of_thread

    @property
    def q_pitch(self) -> int:
        """Elements from one query to the next in shared memory."""
        return _pitch(self.depth)

    @property
    def tile_pitch(self) -> int:
        """Elements from one key or value to the next."""
        return _pitch(max(self.depth, self.columns))

    @property
    def p_pitch(self) -> int:
        """Elements from the exponentials of one query to those of the next."""
        return _pitch(self.keys)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return 4 * (self.block_m * (self.q_pitch + self.p_pitch) + self.keys * self.tile_pitch)

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_claims_against_ptxas."""
        of_row = ROW_REGISTERS
        if max(self.depth, self.columns) > WIDE:
            of_row += WIDE_REGISTERS
        return OTHER_REGISTERS + of_row * self.rows_of_thread

    def each_thread(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(row, lane)`` in every thread."""
        extents = [("threadIdx.y", self.rows), ("threadIdx.x", self.lanes)]
        return each_thread(extents, body, binds_single=False)

    def fill(self, count: int, store: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Let all threads run ``store`` over a flat range, contiguous across threads."""
        size = self.rows * self.lanes

        def items(r: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            def item(number: ir.Expr) -> tirx.Stmt:
                flat = number * size + r * self.lanes + t
                return store(flat) if count % size == 0 else when(flat < count, store(flat))

            return loop("item", -(-count // size), item)

        return self.each_thread(items)
