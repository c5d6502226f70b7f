"""Choice of the tiles of a grouped GEMM: those of which one launch takes the least estimated time.

The model is that of a tiled GEMM (model.py), with blocks of several shapes in one grid:

    tiles    launch + waves * the slowest block
    memory   launch + bytes of all products / what memory delivers

All blocks of a launch have as many threads and ranks of split-K. Under each such pair, products
choose in turns, every one the best tile given those of the others, until none changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from ....device import Device
from ....program.stage import Stage
from ...index.estimate import points
from ..tile.config import TileGemmConfig
from ..tile.problem import GemmProblem, Sizes, gemm_sizes
from ..tile.shape import TileConfig, TileOperands
from .default import SPLIT_K, candidates, tile_shapes
from .model import RATES, block_clocks, blocks_per_sm, estimated_clocks, memory_clocks, overlapped
from .unaligned_tiles import unaligned_block_clocks, unaligned_operands

THREADS, WAVE_THREADS = (128, 256), (64, 128, 256)
ROUNDS = 3  # in which products choose again
# Sums of all products of a launch, of each multiprocessor: two waves of tiles of 64 by 128.
MOST_SUMS = 2 * 64 * 128


@dataclass(frozen=True)
class GroupedProduct:
    """A product of a grouped GEMM: its sizes, its operands' types, and how these are copied."""

    sizes: Sizes
    start: TileOperands  # before tiles are chosen
    unaligned: tuple[bool, ...]  # see :func:`.unaligned_tiles.unaligned_operands`

    @classmethod
    def of(cls, problem: GemmProblem) -> GroupedProduct:
        """Read a problem."""
        sizes = gemm_sizes(problem)
        return cls(sizes, TileOperands.of(problem), unaligned_operands(problem, sizes))

    def blocks(self, shape: TileConfig) -> int:
        """Count blocks."""
        batch, m, n, _ = self.sizes
        return batch * -(-m // shape.block_m) * -(-n // shape.block_n) * shape.split_k

    def clocks(self, shape: TileConfig, resident: int, device: Device) -> float:
        """Estimate the time of a block among ``resident`` ones of its multiprocessor."""
        copies = unaligned_block_clocks(shape, self.sizes, resident, self.unaligned)
        return block_clocks(shape, self.sizes, device, resident) + copies

    def shapes(self, threads: int, split_k: int, device: Device) -> list[TileConfig]:
        """List tiles of so many threads and ranks, the best alone first."""
        tiles, block_k, stages = candidates(self.start, any(self.unaligned))
        tiles = [t for t in tiles if t[2] * t[3] * t[4] * self.start.mma.lanes == threads]
        found = tile_shapes(self.sizes, self.start, device, tiles, block_k, stages, (split_k,))
        return sorted(found, key=lambda shape: estimated_clocks(shape, self.sizes, device))


def has_few_sums(stages: Sequence[Stage], device: Device) -> bool:
    """Whether products, and maps next to them, are so small that a launch of each is idle."""
    return sum(map(points, stages)) <= MOST_SUMS * (device.sm_count or 1)


def grouped_tiles(
    problems: Sequence[GemmProblem], device: Device
) -> tuple[tuple[TileGemmConfig, ...], float] | None:
    """Choose tiles of products that share a launch, and estimate its clocks.

    Returns
    -------
    (tuple of TileGemmConfig, float) or None
        The tiles, of one number of threads and one ``split_k``; ``None`` where none fit.
    """
    found = _grouped_shapes(tuple(GroupedProduct.of(problem) for problem in problems), device)
    if found is None:
        return None
    shapes, clocks = found
    tiles = [TileGemmConfig(p, s) for p, s in zip(problems, shapes, strict=True)]
    return tuple(tiles), clocks


@lru_cache(maxsize=256)
def _grouped_shapes(
    parts: tuple[GroupedProduct, ...], device: Device
) -> tuple[tuple[TileConfig, ...], float] | None:
    found = []
    for threads in WAVE_THREADS if parts[0].start.is_amd else THREADS:
        for split_k in SPLIT_K if device.clusters else SPLIT_K[:1]:
            spaces = {part: part.shapes(threads, split_k, device) for part in dict.fromkeys(parts)}
            if all(spaces.values()):
                found.append(_by_coordinate_descent(parts, spaces, device))
    return min(found, key=lambda pair: pair[1], default=None)


def _by_coordinate_descent(
    parts: tuple[GroupedProduct, ...],
    spaces: dict[GroupedProduct, list[TileConfig]],
    device: Device,
) -> tuple[tuple[TileConfig, ...], float]:
    """Let products choose among tiles of one number of threads; equal ones have equal tiles."""
    chosen = {part: shapes[0] for part, shapes in spaces.items()}

    def clocks(part: GroupedProduct, shape: TileConfig) -> float:
        tried = {**chosen, part: shape}
        return launch_clocks(parts, [tried[p] for p in parts], device)

    for _ in range(ROUNDS):
        before = dict(chosen)
        for part, shapes in spaces.items():
            chosen[part] = min(shapes, key=partial(clocks, part))
        if chosen == before:
            break
    found = tuple(chosen[part] for part in parts)
    return found, launch_clocks(parts, found, device)


def launch_clocks(
    parts: Sequence[GroupedProduct], shapes: Sequence[TileConfig], device: Device
) -> float:
    """Estimate the clocks of one launch of the blocks of several products."""
    sms = device.sm_count or 1
    pairs = list(zip(parts, shapes, strict=True))
    blocks = sum(part.blocks(shape) for part, shape in pairs)
    fit = min(blocks_per_sm(shape, device) for shape in shapes)
    resident = min(fit, -(-blocks // sms))
    waves = -(-blocks // (sms * resident))
    slowest = max(part.clocks(shape, resident, device) for part, shape in pairs)
    dram = sum(memory_clocks(shape, part.sizes, device) for part, shape in pairs)
    return overlapped(waves * slowest + RATES.launch, dram + RATES.launch)
