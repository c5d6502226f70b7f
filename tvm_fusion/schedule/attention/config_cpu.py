"""Configuration of attention on a CPU: tiles in registers, keys and values in the caches."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir
from tvm.target import Target

from ...core.loops import constant
from ...device import device_of
from ..cpu import PARALLEL_TASKS
from ..register_tile import VectorUnit
from .pattern import Pattern

L2_BYTES = 1 << 20  # where the device does not say
BUFFER_BYTES = 1 << 18  # of one buffer: a quarter of that cache
VECTORS = {True: 4, False: 3}  # of a row of a tile, by whether there are 32 registers
MAX_ROWS = 16  # of a tile, roughly
MIN_QUERIES_PER_TASK = 64  # queries of a task that make packing the keys cheap


@dataclass(frozen=True)
class CpuConfig:
    """Tiles of one kernel.

    Attributes
    ----------
    lanes, vectors : int
        float32 elements of a vector register; registers in a row of a tile.
    rows : int
        Queries of a tile in registers.
    block : int
        Queries of a task (block_m), a multiple of ``rows``.
    keys : int
        Keys, with their values, that are packed at once.
    single : bool
        Whether these are all keys.
    depth, columns : int
        Elements of a key, and of a value rounded up to whole vectors.
    """

    lanes: int
    vectors: int
    rows: int
    block: int
    keys: int
    single: bool
    depth: int
    columns: int

    @property
    def width(self) -> int:
        """Columns of a tile in registers."""
        return self.lanes * self.vectors

    @classmethod
    def of(cls, pattern: Pattern, target: Target) -> CpuConfig:
        """Choose tiles for a target."""
        unit = VectorUnit.of(target)
        vectors = VECTORS[unit.registers >= 32]
        depth, elements = constant(pattern.depth.extent), constant(pattern.column.extent)
        if depth is None or elements is None:
            raise ValueError("the elements of keys and values are not known at compile time")
        columns = -(-elements // unit.lanes) * unit.lanes
        queries = 1 if pattern.query is None else constant(pattern.query.extent)
        rows = _rows(queries, unit.rows(vectors))
        cache = device_of(target).l2_bytes or L2_BYTES
        keys, single = _keys(pattern.key.extent, unit.lanes * vectors, depth, columns, cache)
        block = _block(pattern, queries, rows)
        return cls(unit.lanes, vectors, rows, block, keys, single, depth, columns)


def _rows(queries: int | None, most: int) -> int:
    """Waste the fewest rows; of equal choices, take the largest tile."""
    if queries is None or queries <= most:
        return queries or most
    return min(range(most, most // 2, -1), key=lambda rows: -(-queries // rows) * (rows + 1))


def _keys(extent: ir.Expr, width: int, depth: int, columns: int, cache: int) -> tuple[int, bool]:
    """Take as many keys as fit with their values into half of the cache, in even tiles."""
    longest = max(depth, columns, MAX_ROWS)  # of keys, values and scores
    most = min(cache // 2 // (4 * (depth + columns)), BUFFER_BYTES // (4 * longest))
    most = max(most // width, 1) * width
    count = constant(extent)
    if count is None:
        return most, False
    tiles = -(-count // most)
    return -(-count // (tiles * width)) * width, tiles == 1


def _block(pattern: Pattern, queries: int | None, rows: int) -> int:
    """Give all queries to one task, unless that makes too few tasks."""
    fitting = BUFFER_BYTES // (4 * (_columns(pattern) + MAX_ROWS))
    if queries is None:
        return max(min(2 * MIN_QUERIES_PER_TASK, fitting) // rows, 1) * rows
    tasks = 1
    for axis in pattern.batch:
        tasks *= constant(axis.extent) or PARALLEL_TASKS
    blocks = max(1, min(-(-PARALLEL_TASKS // tasks), queries // MIN_QUERIES_PER_TASK))
    many = max(blocks, -(-queries // fitting))
    return -(-queries // (many * rows)) * rows


def _columns(pattern: Pattern) -> int:
    """Count the elements of a value."""
    return constant(pattern.column.extent) or 1
