"""Configurations of attention on a CPU: tiles in registers, keys and values in the caches.

The default is what takes the fewest cycles of a core that starts two multiplications and two loads
in each. Of tiles of R queries and V vectors, with C vectors in a row of values:

    scores   ceil(keys / (V * lanes)) tiles of depth steps
    values   ceil(C / V) tiles of min(V, C) vectors, of keys steps
    a step   max(R * vectors, R + vectors, LATENCY * 2) / 2 cycles; of equals, fewer loads

So heads of few elements get tall tiles: one vector of values for 6 queries are 6 sums, which wait
for each other (8 heads of 256 x 256 x 8 on a Zen 5 core: 173 us by 8 queries, 188 us by 6).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import ir

from ....core.tir.loops import constant
from ....device import Device
from ...cpu.register_tile import VectorUnit
from ...cpu.schedule import PARALLEL_TASKS
from ..problem.pattern import Pattern

LATENCY = 4  # cycles of a multiplication, of which two start at a time
TASKS_PER_CORE = 4
L2_BYTES = 1 << 20  # where the device does not say
BUFFER_BYTES = 1 << 18  # of one buffer: a quarter of that cache
VECTORS = {True: 4, False: 3}  # of a row of a tile, by whether there are 32 registers
MAX_ROWS = 16  # of a tile, roughly
MIN_QUERIES_PER_TASK = 64  # queries of a task that make packing the keys cheap
MOST_BLOCKS = 16  # of the queries of one head, for the design space
KEY_TILES = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the default


@dataclass(frozen=True)
class CpuConfig:
    """Tiles of one kernel."""

    # float32 elements of a vector register; registers in a row of a tile.
    lanes: int
    vectors: int
    rows: int  # queries of a tile in registers
    block: int  # queries of a task (block_m), a multiple of ``rows``
    keys: int  # keys, with their values, that are packed at once
    single: bool  # whether these are all keys
    # Elements of a key, and of a value rounded up to whole vectors.
    depth: int
    columns: int

    @property
    def width(self) -> int:
        """Columns of a tile in registers."""
        return self.lanes * self.vectors

    def fits(self, cache: int) -> bool:
        """Whether keys and values of a tile and what a task keeps fit into the cache."""
        panels = self.keys * (self.depth + self.columns)
        kept = (self.rows if self.single else self.block) * self.columns
        scores = self.rows * (self.keys + self.lanes + self.depth)
        largest = max(self.keys * max(self.depth, self.columns), kept, scores)
        return 4 * (panels + kept + scores) <= cache and 4 * largest <= BUFFER_BYTES

    @classmethod
    def of(cls, pattern: Pattern, device: Device) -> CpuConfig | None:
        """Choose tiles for a CPU; ``None`` where a head's elements are symbolic."""
        unit = VectorUnit.of(device)
        depth, elements = constant(pattern.depth.extent), constant(pattern.column.extent)
        if depth is None or elements is None:
            return None
        columns = -(-elements // unit.lanes) * unit.lanes
        queries = 1 if pattern.query is None else constant(pattern.query.extent)
        cache = device.l2_bytes or L2_BYTES

        def tiled(vectors: int, rows: int) -> CpuConfig:
            width = unit.lanes * vectors
            keys, single = _keys(pattern.key.extent, width, depth, columns, cache)
            block = block_of(pattern, queries, rows, device)
            return cls(unit.lanes, vectors, rows, block, keys, single, depth, columns)

        count = constant(pattern.key.extent)
        if queries is None or count is None:
            vectors = VECTORS[unit.registers >= 32]
            return tiled(vectors, _rows(queries, unit.rows(vectors)))
        tiles = [
            tiled(vectors, rows)
            for vectors in range(VECTORS[unit.registers >= 32], 0, -1)
            for rows in reversed(heights(queries, min(queries, unit.rows(vectors))))
        ]
        return min(tiles, key=lambda tile: tile.cycles(queries, count))

    def cycles(self, queries: int, keys: int) -> float:
        """Estimate the cycles of both products of one head."""
        wide = self.columns // self.lanes
        padded = -(-keys // self.keys) * self.keys
        scores = padded // self.width * self.depth * self._step(self.vectors)
        values = -(-wide // self.vectors) * keys * self._step(min(self.vectors, wide))
        return -(-queries // self.rows) * (scores + values)

    def _step(self, vectors: int) -> float:
        return cycles_of_step(self.rows, vectors)


FIELDS = ("vectors", "rows", "block", "keys")  # that a tuner may vary


def cycles_of_step(rows: int, vectors: int) -> float:
    """Estimate the cycles of one step of a tile."""
    loads = rows + vectors
    return (max(rows * vectors, loads, 2 * LATENCY) + loads / 8) / 2


def configs(pattern: Pattern, device: Device) -> Iterator[CpuConfig]:
    """Enumerate tiles and tasks that fit the registers and caches, each once, the default first."""
    chosen = CpuConfig.of(pattern, device)
    queries = 1 if pattern.query is None else constant(pattern.query.extent)
    count = constant(pattern.key.extent)
    if chosen is None or queries is None or count is None:
        return
    unit = VectorUnit.of(device)
    found = {chosen: None}
    for vectors in range(1, VECTORS[True] + 1):
        width = unit.lanes * vectors
        tiles = {_even(count, max(1, round(chosen.keys * n / width)), width) for n in KEY_TILES}
        most = min(queries, unit.rows(vectors))
        for rows, keys in itertools.product(heights(queries, most), sorted(tiles)):
            for blocks in range(1, min(MOST_BLOCKS, -(-queries // rows)) + 1):
                block = -(-queries // (blocks * rows)) * rows
                sizes = {"vectors": vectors, "rows": rows, "block": block, "keys": keys}
                config = replace(chosen, single=keys >= count, **sizes)
                if config.fits(device.l2_bytes or L2_BYTES):
                    found[config] = None
    yield from found


def heights(queries: int, most: int) -> list[int]:
    """List heights of tiles: the tallest that waste no tile, for each number of tiles."""
    heights = {-(-queries // -(-queries // rows)) for rows in range(max(1, most // 3), most + 1)}
    return sorted(heights)


def _even(count: int, tiles: int, width: int) -> int:
    """Return the keys of a tile, in whole vectors, so that all tiles are about as long."""
    number = -(-count // min(tiles * width, -(-count // width) * width))
    return -(-count // (number * width)) * width


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


def block_of(pattern: Pattern, queries: int | None, rows: int, device: Device) -> int:
    """Return a task's queries: all of a head, whose keys it packs, unless tasks are too few."""
    fitting = BUFFER_BYTES // (4 * (_columns(pattern) + MAX_ROWS))
    if queries is None:
        return max(min(2 * MIN_QUERIES_PER_TASK, fitting) // rows, 1) * rows
    tasks = 1
    for axis in pattern.batch:
        tasks *= constant(axis.extent) or PARALLEL_TASKS
    wanted = TASKS_PER_CORE * device.cores if device.cores else PARALLEL_TASKS
    blocks = max(1, min(-(-wanted // tasks), queries // MIN_QUERIES_PER_TASK))
    many = max(blocks, -(-queries // fitting))
    return -(-queries // (many * rows)) * rows


def _columns(pattern: Pattern) -> int:
    """Count the elements of a value."""
    return constant(pattern.column.extent) or 1
