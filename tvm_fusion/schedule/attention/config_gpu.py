"""Configuration of the FlashAttention kernel on CUDA cores: tiles that fit into shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx

from ...core.loops import constant, loop, when
from ..gpu.warp import each_thread
from .pattern import Pattern

THREADS = 256
SHARED_BYTES = 44 * 1024  # of the 48 KB that every device gives
MIN_LANES, MAX_LANES = 16, 64
OTHER_REGISTERS = 30  # of a thread, beside elements of a key
# Of a loop that CUDA's compiler unrolls as a whole, and of what it unrolls of a longer one.
UNROLLED_TRIPS, UNROLLED_PART = 32, 8


@dataclass(frozen=True)
class GpuConfig:
    """Threads and tiles of a block.

    Attributes
    ----------
    rows, lanes : int
        Queries of a block (block_m), and threads of each.
    keys : int
        Keys or values in shared memory at once (block_n).
    depth, columns : int
        Elements of a key and of a value.
    """

    rows: int
    lanes: int
    keys: int
    depth: int
    columns: int

    @classmethod
    def of(cls, pattern: Pattern) -> GpuConfig:
        """Choose the largest tiles that fit."""
        depth, columns = constant(pattern.depth.extent), constant(pattern.column.extent)
        if depth is None or columns is None:
            raise ValueError("the elements of keys and values are not known at compile time")
        queries = 1 if pattern.query is None else constant(pattern.query.extent)
        most = THREADS // MIN_LANES
        rows = most if queries is None else min(most, 1 << (queries - 1).bit_length())
        keys = 32
        while True:
            tiles = cls(rows, min(THREADS // rows, MAX_LANES), keys, depth, columns)
            if tiles.shared_bytes <= SHARED_BYTES:
                return tiles
            rows, keys = (rows, keys // 2) if keys > 8 else (rows // 2, keys)

    @property
    def block_m(self) -> int:
        """Queries of a block."""
        return self.rows

    @property
    def width(self) -> int:
        """Elements of a row of a tile, padded to an odd number: rows start in different banks."""
        return max(self.depth, self.columns) | 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return 4 * (self.rows * (self.depth + self.keys) + self.keys * self.width)

    @property
    def registers(self) -> int:
        """Registers of a thread, within 25 % of ptxas: see test_attention_registers.

        CUDA's compiler unrolls loops of few trips and loads a whole key at once.
        """
        return OTHER_REGISTERS + (self.depth if self.depth <= UNROLLED_TRIPS else UNROLLED_PART)

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
