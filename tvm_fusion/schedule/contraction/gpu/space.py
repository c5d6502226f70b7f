"""GEMM on a GPU as one design space: the problem, every configuration for it, and the default.

problem    a contraction on a device, read as one of few rows and as one of tiles
configs    few rows: GEMV on CUDA cores, skinny mma.sync; others: tiles of mma.sync and of wgmma
default    the skinny GEMM of few rows, or else the tile that the models estimate to be fastest

What the models estimate to take more than twice as long as the best is not in the space.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ....device import Device
from ...index.design_space import Kernels, distinct
from ..mma.default import best_tile
from ..mma.model import estimated_clocks, rates_of
from ..mma.space import tile_gemm_configs
from ..problem.epilogue.pooled_rows import PooledPixels
from ..problem.norm_scale import NormScale
from ..problem.sum_of_products import SumOfProducts
from ..skinny.gemv.config import GemvConfig
from ..skinny.mma.config import SkinnyMmaConfig, skinny_gemm_config
from ..skinny.space import skinny_configs
from ..tile.config import TileGemmConfig
from ..tile.problem import assumed_rows, gemm_sizes
from ..tile.read_problem import LEAST_ROWS, gemm_problem
from ..wgmma.config import WgmmaConfig, WgmmaRowsConfig, WgmmaWindowConfig
from ..wgmma.model import wgmma_clocks
from ..wgmma.space import best_wgmma_tile, wgmma_configs

HOPELESS = 2.0  # times the least estimate
_TILE = tuple(
    f"tile.{x}" for x in ("block_m", "block_n", "block_k", "stages", "split_k", "group_m")
)
_WARPS = ("tile.warps_m", "tile.warps_n", "tile.warps_k")
_WGMMA = (*_TILE, "consumers", "is_ping_pong", "blocks_per_sm")
_SKINNY = ("slices_k", "stages", "min_blocks_per_sm")
KERNELS = Kernels(
    {
        TileGemmConfig: ("mma.sync", (*_TILE, *_WARPS)),
        WgmmaConfig: ("wgmma", _WGMMA),
        WgmmaWindowConfig: ("wgmma of windows", _WGMMA),
        WgmmaRowsConfig: ("wgmma of boxes of rows", _WGMMA),
        GemvConfig: ("gemv", (*_SKINNY, "threads_n", "tile_n", "cp_async_stages")),
        SkinnyMmaConfig: ("skinny mma.sync", _SKINNY),
    }
)

GemmConfig = GemvConfig | TileGemmConfig


@dataclass(frozen=True, eq=False)
class GpuGemmProblem:
    """A contraction as a GEMM of a GPU."""

    contraction: SumOfProducts  # what is computed
    device: Device
    # The scale of an RMS norm prologue, which skinny GEMM alone has.
    norm_scale: NormScale | None = None
    least_rows: int = LEAST_ROWS  # of tiles; with fewer they are not worth their instructions

    @cached_property
    def skinny(self) -> GemvConfig | None:
        """The default of few rows, on CUDA cores or tensor cores; ``None`` if there are many."""
        split = self.contraction.column_split
        if self.contraction.has_statistics or self.contraction.pool is not None:
            return None
        if split is not None and split.is_of_pairs:
            return None
        return skinny_gemm_config(self.contraction, self.device, self.norm_scale)

    @cached_property
    def tile(self) -> TileGemmConfig | None:
        """The default of tiles, by the models of mma.sync and wgmma; ``None`` if there is none.

        Statistics of rows and windows of pixels are wgmma's alone.
        """
        problem = gemm_problem(self.contraction, self.device, self.least_rows)
        if problem is None:
            return None
        large = best_wgmma_tile(problem, self.device)
        if self.contraction.has_statistics or isinstance(self.contraction.pool, PooledPixels):
            return large
        rows = assumed_rows(problem)
        small = best_tile(problem, self.device, rows)
        if small is None or large is None:
            return small or large
        sizes = gemm_sizes(problem, rows)
        small_clocks = estimated_clocks(
            small.tile, sizes, self.device, rates_of(problem, self.device)
        )
        return large if wgmma_clocks(large, self.device) < small_clocks else small


def default(problem: GpuGemmProblem) -> GemmConfig | None:
    """Choose a configuration: a tile, unless a skinny GEMM serves the rows better.

    On an H200, of 9 to 16 rows of float16 (N 14336, K 4096) the one takes 29 us, the other 34;
    operands that threads compute are computed once for all rows by a skinny GEMM.
    """
    skinny = problem.skinny
    if problem.norm_scale is not None or (skinny is not None and skinny.m < LEAST_ROWS):
        return skinny
    tile = problem.tile
    if tile is None:
        return skinny
    read = tile.problem
    is_computed = read.staged_a or read.staged_b or read.products > 1
    return skinny if skinny is not None and is_computed else tile


def described(config: GemmConfig | None) -> str:
    """Name a kernel and its tile for a reader."""
    if config is None:
        return "CUDA cores"
    name, _ = KERNELS.fields[type(config)]
    if not isinstance(config, TileGemmConfig):
        return name
    if config.problem.is_amd:
        name = config.problem.mma.family
    split = f", {config.tile.split_k} ranks of K" if config.tile.split_k > 1 else ""
    return f"{name}, {config.tile.block_m} x {config.tile.block_n} x {config.tile.block_k}{split}"


def configs(problem: GpuGemmProblem, chosen: GemmConfig | None = None) -> Iterator[GemmConfig]:
    """Enumerate configurations, each once, the default first; none where there is no default.

    Parameters
    ----------
    chosen
        Another one that comes first.
    """
    chosen = chosen or default(problem)
    if chosen is None:
        return
    found: Iterator[GemmConfig]
    if isinstance(chosen, TileGemmConfig):
        found = _tiles(problem)
    else:
        found = skinny_configs(problem.contraction, problem.device, problem.norm_scale)
    yield from distinct(chain([chosen], found), KERNELS.plain)


def _tiles(problem: GpuGemmProblem) -> Iterator[TileGemmConfig]:
    given = (problem.contraction, problem.device)
    is_large = isinstance(problem.contraction.pool, PooledPixels)
    is_large |= problem.contraction.has_statistics
    small = () if is_large else tile_gemm_configs(*given)
    every = chain(small, wgmma_configs(*given))
    found = [(config, clocks(config, problem.device)) for config in every]
    least = min((estimate for _, estimate in found), default=0.0)
    yield from (config for config, estimate in found if estimate <= HOPELESS * least)


def clocks(config: TileGemmConfig, device: Device) -> float:
    """Estimate the time of a tiled GEMM, in clocks of a multiprocessor."""
    if isinstance(config, WgmmaConfig):
        return wgmma_clocks(config, device)
    return estimated_clocks(
        config.tile, gemm_sizes(config.problem), device, rates_of(config.problem, device)
    )
