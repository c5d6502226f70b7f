"""The design space of a claimed contraction on a GPU: all kernels that can compute it.

Tiles of ``mma.sync`` and of wgmma are one space; so are skinny GEMM on CUDA cores and on tensor
cores. What the models estimate to take more than twice as long as the best is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from ...core.template import Claim
from ...device import Device
from ...ecg.work import at
from ..design_space import Kernels
from .gemv_config import GemvConfig
from .gpu import GpuContractionConfig
from .skinny_configs import configs as skinny_configs
from .skinny_mma_config import SkinnyMmaConfig
from .tile_gemm_config import TileGemmConfig
from .tile_gemm_configs import tile_gemm_configs
from .tile_gemm_model import estimated_clocks
from .tile_gemm_problem import gemm_sizes
from .wgmma_config import WgmmaConfig, WgmmaWindowConfig
from .wgmma_configs import wgmma_configs
from .wgmma_model import wgmma_clocks

HOPELESS = 2.0  # times the least estimate
_TILE = ("block_m", "block_n", "block_k", "stages", "split_k", "group_m")
_WGMMA = (*_TILE, "consumers", "is_ping_pong", "blocks_per_sm")
_SKINNY = ("slices_k", "stages", "min_blocks_per_sm")
KERNELS = Kernels(
    {
        TileGemmConfig: ("mma.sync", (*_TILE, "warps_m", "warps_n", "warps_k")),
        WgmmaConfig: ("wgmma", _WGMMA),
        WgmmaWindowConfig: ("wgmma of windows", _WGMMA),
        GemvConfig: ("gemv", (*_SKINNY, "threads_n", "cp_async_stages")),
        SkinnyMmaConfig: ("skinny mma.sync", _SKINNY),
    }
)


def designs(claim: Claim, device: Device) -> Iterator[TileGemmConfig | GemvConfig]:
    """Enumerate configurations, the claimed one first; none where the kernel has no choices."""
    claimed: GpuContractionConfig = claim.details["config"]
    if claimed.skinny is not None:
        yield from skinny_configs(claimed.contraction, device, claimed.skinny.norm_scale)
    elif claimed.tile is not None and "convolution" in claim.details:  # dual GEMMs have no choices
        yield claimed.tile
        first = KERNELS.plain(claimed.tile)
        found = [(config, tile_clocks(config, device)) for config in _tiles(claimed, device)]
        least = min((clocks for _, clocks in found), default=0.0)
        for config, clocks in found:
            if clocks <= HOPELESS * least and KERNELS.plain(config) != first:
                yield config


def configured(claim: Claim, config: TileGemmConfig | GemvConfig) -> Claim:
    """Give a claim another configuration."""
    after = config if isinstance(config, TileGemmConfig) else None
    kernel = replace(
        claim.details["config"],
        tile=after,
        skinny=None if isinstance(config, TileGemmConfig) else config,
    )
    before = claim.details["config"].tile
    return replace(
        claim,
        launches=claim.launches - tile_launches(before) + tile_launches(after),
        bytes=claim.bytes - tile_workspace_bytes(before) + tile_workspace_bytes(after),
        parallelism=at(config.blocks),
        shared_bytes=config.shared_bytes,
        registers=config.registers,
        details={**claim.details, "config": kernel},
    )


def tile_launches(tile: TileGemmConfig | None) -> int:
    """Count the kernels of a product: a second one adds up the sums of split-K in memory."""
    return 2 if tile is not None and tile.has_workspace else 1


def tile_workspace_bytes(tile: TileGemmConfig | None) -> int:
    """Count the bytes of sums of split-K that are written to memory and read again."""
    return 0 if tile is None else 2 * 4 * tile.workspace_elements


def _tiles(claimed: GpuContractionConfig, device: Device) -> Iterator[TileGemmConfig]:
    is_wgmma = claimed.contraction.has_statistics
    small = () if is_wgmma else tile_gemm_configs(claimed.contraction, device)
    large = wgmma_configs(claimed.contraction, device)
    return chain(small, large)


def tile_clocks(config: TileGemmConfig, device: Device) -> float:
    """Estimate the time of a tiled GEMM, in clocks of a multiprocessor."""
    if isinstance(config, WgmmaConfig):
        return wgmma_clocks(config, device)
    return estimated_clocks(config, gemm_sizes(config), device)
