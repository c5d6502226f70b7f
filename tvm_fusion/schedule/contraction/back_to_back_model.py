"""The analytical model of two GEMMs back to back, in clocks of a multiprocessor.

    launch + weights + the longer of: memory; rounds * tile
    rounds   tiles that the busiest consumer computes
    tile     the longer of: products of all consumers; one consumer alone, which waits for each

Beside it, what a launch of each product takes, by the models of their kernels.
"""

from __future__ import annotations

from ...core.expressions import is_expensive
from ...device import Device
from ..gpu.wgmma import K, M
from .back_to_back import BackToBack
from .back_to_back_config import BackToBackConfig
from .gemm_configs_gpu import GpuGemmProblem, clocks
from .tile_gemm_model import RATES

PRODUCTS = 1100.0  # multiply-adds in a clock
WEIGHTS = 60.0  # bytes of weights in a clock
ROUND, CHUNK = 700.0, 500.0  # clocks of a tile, of a chunk
ELEMENT, EXPENSIVE_ELEMENT = 0.12, 0.30  # clocks of an element of an epilogue, by one consumer
FIXED = 3600.0  # clocks of a launch until the weights are asked for


def back_to_back_clocks(config: BackToBackConfig, device: Device) -> float:
    """Estimate the time of one kernel."""
    first, second, sms = config.first, config.second, device.sm_count or 1
    rounds = -(-config.tiles // (config.blocks * config.consumers))
    busy = min(config.consumers, -(-config.tiles // config.blocks))  # consumers of a block
    k, hidden = -(-first.k // K) * K, config.chunks * config.chunk
    products = M * hidden * (k + second.block_n) / PRODUCTS
    elements = sum(
        M
        * columns
        * (EXPENSIVE_ELEMENT if is_expensive(x.contraction.results[0].value) else ELEMENT)
        for x, columns in ((first, hidden), (second, second.block_n))
    )
    alone = ROUND + CHUNK * config.chunks + products + elements
    tile = max(busy * products, busy * elements, alone)
    moved = config.tiles * M * first.item_bytes * (first.k + RATES.result / 2 * second.n)
    dram = moved / (RATES.dram * sms)
    return FIXED + config.weight_bytes / WEIGHTS + max(dram, rounds * tile)


def two_kernels_clocks(pair: BackToBack, device: Device) -> float | None:
    """Estimate the time of a launch of each product; ``None`` where one is no tile."""
    tiles = [GpuGemmProblem(x, device).tile for x in (pair.first, pair.second)]
    if any(tile is None for tile in tiles):
        return None
    return sum(clocks(tile, device) for tile in tiles if tile is not None)
