"""The analytical model of two GEMMs back to back, in clocks of a multiprocessor.

    launch + weights + memory beside the longer of: tiles of a multiprocessor * work;
                                                    tiles of a consumer * (work + chunks of H)
    work    products and epilogues of a tile of 64 rows

Beside it, what a launch of each product takes, by the models of their kernels. Fitted on one H200
to 42 configurations of 14 pairs of layers (benchmarks/gpu/FUSED_GEMMS.md), from which it is off by
6 % on the average, the models of two kernels by 14 %. Of six pairs held out one kernel took 0.25 to
0.83 of two; 0.40 to 0.77 were estimated.
"""

from __future__ import annotations

from ...core.expressions import is_expensive
from ...device import Device
from ..gpu.wgmma import K, M
from .back_to_back import BackToBack
from .back_to_back_config import BackToBackConfig
from .gemm_configs_gpu import GpuGemmProblem, clocks
from .tile_gemm_model import RATES, overlapped

PRODUCTS = 1877.0  # multiply-adds in a clock
ELEMENT, EXPENSIVE_ELEMENT = 0.071, 0.152  # clocks of an element of an epilogue
CHUNK = 336.0  # clocks that a consumer alone waits for its products, of each chunk
WEIGHTS = 148.0  # bytes of weights in a clock


def back_to_back_clocks(config: BackToBackConfig, device: Device) -> float:
    """Estimate the time of one kernel."""
    first, second = config.first, config.second
    hidden, columns = config.chunks * config.chunk, second.block_n
    work = M * hidden * (-(-first.k // K) * K + columns) / PRODUCTS
    for product, count in ((first, hidden), (second, columns)):
        is_dear = any(is_expensive(r.value) for r in product.contraction.results)
        work += M * count * (EXPENSIVE_ELEMENT if is_dear else ELEMENT)
    tiles = -(-config.tiles // config.blocks)
    turns = -(-config.tiles // (config.blocks * config.consumers))
    total = max(tiles * work, turns * (work + CHUNK * config.chunks))
    moved = config.tiles * M * first.item_bytes * (first.k + second.n)
    dram = moved / (RATES.dram * (device.sm_count or 1))
    return RATES.launch + config.weight_bytes / WEIGHTS + overlapped(total, dram)


def two_kernels_clocks(pair: BackToBack, device: Device) -> float | None:
    """Estimate the time of a launch of each product; ``None`` where one is no tile."""
    tiles = [GpuGemmProblem(x, device).tile for x in (pair.first, pair.second)]
    if any(tile is None for tile in tiles):
        return None
    return sum(clocks(tile, device) for tile in tiles if tile is not None)
