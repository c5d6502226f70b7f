"""Tiles of attention on a CPU with queries as lanes, and when these are the default.

Heads of few elements are mostly softmax, whose maxima and sums need no reduction within vectors if
queries are lanes; and values of fewer elements than lanes waste none of these. On a Zen 5 core, 16
heads of 256 x 256 x 8 take 268 us by queries, 391 us by keys, 2 of 784 x 49 x 32 64 and 83 us;
heads of 64 elements take as long by either. With AVX2 those of 8 take 567 and 622 us, those of 32
from 0.83 to 1.04 times as long.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import tirx

from ....core.tir.loops import constant
from ....device import Device
from ...cpu.register_tile import VectorUnit
from ...index.design_space import Kernels
from ..problem.pattern import Pattern
from . import config as config_cpu
from . import tile_config
from .config import FIELDS, CpuConfig, block_of, cycles_of_step, heights

VECTORS = {True: 2, False: 1}  # of a row of a tile, by whether there are 32 registers
SCORE_BYTES = 1 << 16  # scores of a tile of queries lie near the first-level cache
WASTED = 4 / 3  # queries that are computed for each one there is, at most


@dataclass(frozen=True)
class QueryLanesConfig(CpuConfig):
    """Tiles of one kernel; ``rows`` are keys, ``width`` is queries, ``columns`` all elements."""

    @property
    def height(self) -> int:
        """Columns of a tile of results."""
        return -(-self.columns // -(-self.columns // self.rows))

    def cycles(self, queries: int, keys: int) -> float:
        """Estimate the cycles of both products of one head."""
        height = self.height
        scores = -(-keys // self.rows) * self.depth * cycles_of_step(self.rows, self.vectors)
        values = -(-self.columns // height) * keys * cycles_of_step(height, self.vectors)
        return -(-queries // self.width) * (scores + values)


KERNELS = Kernels(
    {
        CpuConfig: ("flash cpu", FIELDS),
        QueryLanesConfig: ("flash cpu, queries as lanes", FIELDS),
        tile_config.TileAttentionConfig: ("flash cpu, tile registers", FIELDS),
    }
)


def default(pattern: Pattern, device: Device) -> CpuConfig | None:
    """Choose tiles for a CPU; ``None`` where a head's elements are symbolic."""
    tiles = tile_config.default(pattern, device)
    return tiles or next(_query_lanes(pattern, device), None) or CpuConfig.of(pattern, device)


def configs(pattern: Pattern, device: Device) -> Iterator[CpuConfig]:
    """Enumerate the configurations of all kernels, the default first."""
    yield from tile_config.configs(pattern, device)
    yield from _query_lanes(pattern, device)
    yield from config_cpu.configs(pattern, device)


def _query_lanes(pattern: Pattern, device: Device) -> Iterator[QueryLanesConfig]:
    """Enumerate tiles with queries as lanes, the best first; none where keys are to be lanes."""
    by_keys = CpuConfig.of(pattern, device)
    queries = 0 if pattern.query is None else constant(pattern.query.extent)
    keys = constant(pattern.key.extent)
    columns = constant(pattern.column.extent)
    if by_keys is None or not (queries and keys and columns) or not _is_plain(pattern):
        return
    unit = VectorUnit.of(device)
    vectors = VECTORS[unit.registers >= 32]
    width = unit.lanes * vectors
    is_wasteful = queries < width or -(-queries // width) * width > WASTED * queries
    if max(by_keys.depth, columns) > width or is_wasteful or 4 * keys * width > SCORE_BYTES:
        return
    block = block_of(pattern, queries, width, device)
    tiles = [
        QueryLanesConfig(unit.lanes, vectors, rows, block, keys, True, by_keys.depth, columns)
        for rows in reversed(heights(keys, min(keys, unit.rows(vectors))))
    ]
    yield from sorted(tiles, key=lambda tile: tile.cycles(queries, keys))


def _is_plain(pattern: Pattern) -> bool:
    """Whether weights are exponentials of what depends on nothing but the products."""
    return (
        pattern.masked_weight is None
        and pattern.weight.same_as(pattern.exponential)
        and all(v.same_as(pattern.raw) for v in tirx.analysis.undefined_vars(pattern.score))
    )
