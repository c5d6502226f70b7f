"""Tiles of attention on a CPU's tile registers (AMX), and when these are the default.

Softmax takes several times as long as both products there, so sizes are simple: two tiles of
queries if there are as many, a tile of keys whose scores stay in the level-2 cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....core.tir.loops import constant
from ....device import Device
from ...index.design_space import default_first
from ...instructions.table import find
from ...instructions.tiles import TILE_ROWS
from ...math.half_math import HALF_TYPES
from ..problem.pattern import Pattern
from .config import CpuConfig, block_of

KEYS = 512  # of a tile, at most
CHOICES = (128, 256, KEYS, 1024)  # for the design space
ROWS = 2 * TILE_ROWS
LEAST_QUERIES = 4
LEAST_ELEMENTS = 16  # of a head: smaller ones are softmax, for which queries are better lanes
LEAST = 1 << 15  # multiplications of a head: of fewer, shaping the tiles takes longer
COLUMNS = {True: 2, False: 4}  # of tiles of a block, by whether it has two rows of them


@dataclass(frozen=True)
class TileAttentionConfig(CpuConfig):
    """Tiles of one kernel; a vector is the 16 columns of a tile register."""


def default(pattern: Pattern, device: Device) -> TileAttentionConfig | None:
    """Choose tiles; ``None`` where a CPU has none for the operands, or they do not pay."""
    dtype, *others = pattern.operand_dtypes
    if dtype not in HALF_TYPES or find(device, "amx", dtype, dtype) is None:
        return None
    if any(other != dtype for other in others):
        return None
    depth, elements = constant(pattern.depth.extent), constant(pattern.column.extent)
    queries = 1 if pattern.query is None else constant(pattern.query.extent)
    count = constant(pattern.key.extent)
    if not depth or not elements or (queries is not None and queries < LEAST_QUERIES):
        return None
    if max(depth, elements) < LEAST_ELEMENTS:
        return None
    if queries is not None and count is not None and queries * count * depth < LEAST:
        return None
    rows = ROWS if queries is None else -(-queries // -(-queries // ROWS))
    vectors = COLUMNS[rows > TILE_ROWS]
    keys, is_single = _keys(count, KEYS, vectors * TILE_ROWS)
    columns = -(-elements // TILE_ROWS) * TILE_ROWS
    block = block_of(pattern, queries, rows, device)
    return TileAttentionConfig(TILE_ROWS, vectors, rows, block, keys, is_single, depth, columns)


def configs(pattern: Pattern, device: Device) -> Iterator[TileAttentionConfig]:
    """Enumerate tiles of keys, and queries of a tile, each once, the default first."""
    chosen = default(pattern, device)
    queries = 1 if pattern.query is None else constant(pattern.query.extent)
    count = constant(pattern.key.extent)
    if chosen is None or queries is None or count is None:
        return
    found: dict[TileAttentionConfig, None] = {}
    for most in dict.fromkeys((chosen.rows, min(chosen.rows, TILE_ROWS))):
        rows = -(-queries // -(-queries // most))
        vectors = COLUMNS[rows > TILE_ROWS]
        block = block_of(pattern, queries, rows, device)
        for keys in CHOICES:
            number, is_single = _keys(count, keys, vectors * TILE_ROWS)
            sizes = {"vectors": vectors, "rows": rows, "block": block, "keys": number}
            found[replace(chosen, single=is_single, **sizes)] = None
    yield from default_first(chosen, found)


def _keys(count: int | None, most: int, width: int) -> tuple[int, bool]:
    """Divide keys evenly among tiles; tell whether one has them all."""
    if count is None:
        return most, False
    tiles = -(-count // most)
    return -(-count // (tiles * width)) * width, tiles == 1
