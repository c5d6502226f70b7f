"""The design space of a tiled GEMM with mma.sync: every configuration that fits the device.

``tile_gemm_config`` chooses the default by a model; ``tile_gemm_configs`` enumerates what a tuner
may measure instead. Each is plain data; the kernel (kernel.py) is made of any of them.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ....device import Device
from ..problem.sum_of_products import SumOfProducts
from ..tile.config import TileGemmConfig
from ..tile.problem import gemm_sizes
from .default import GROUPS_M, WORKSPACE_SPLIT_K, tile_gemm_config, tile_shapes, with_shape

SIZES, WARPS = (16, 32, 64, 128, 256), (1, 2, 4, 8)
BLOCK_K_BYTES, STAGES = (64, 128, 256), (2, 3, 4, 6, 8)
SPLIT_K = (1, 2, 4, 8)  # 8 blocks are the largest portable cluster


def tile_gemm_configs(contraction: SumOfProducts, device: Device) -> Iterator[TileGemmConfig]:
    """Enumerate configurations, the default first; none where the product has no tiled GEMM.

    Parameters
    ----------
    contraction, device
        As in :func:`..tile.read_problem.gemm_problem`.

    Yields
    ------
    TileGemmConfig
        Each one once.
    """
    chosen = tile_gemm_config(contraction, device)
    if chosen is None:
        return
    yield chosen
    start = chosen.tile
    tiles = itertools.product(SIZES, SIZES[1:], WARPS[:3], WARPS, WARPS[:3])
    splits = [*SPLIT_K]
    if not device.clusters:
        splits = [*WORKSPACE_SPLIT_K] if chosen.problem.is_static else [1]
    block_k = [size // chosen.problem.item_bytes for size in BLOCK_K_BYTES]
    spaces = (tiles, block_k, STAGES, splits)
    sizes = gemm_sizes(chosen.problem)
    for shape in tile_shapes(sizes, start.operands, device, *spaces):
        for group_m in GROUPS_M:
            one = replace(shape, group_m=group_m)
            if one != start:
                yield with_shape(chosen.problem, one, sizes, device)
