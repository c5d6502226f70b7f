"""The design space of a skinny GEMM on a GPU: every configuration that fits the device.

``skinny_gemm_config`` chooses the default by rules; ``skinny_configs`` enumerates what a tuner may
measure instead. Each is plain data; the kernel (kernel.py) is made of any of them.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ....core.tir.loops import ceildiv, constant
from ....device import Device
from ...gpu.launch import STATIC_SHARED_BYTES
from ...index.design_space import varied
from ..problem.norm_scale import NormScale
from ..problem.sum_of_products import SumOfProducts
from .gemv.config import GemvConfig
from .gemv.default import CP_ASYNC_STAGES, gemv_config
from .gemv.thread_tile import fewer_columns
from .mma.config import SkinnyMmaConfig, skinny_gemm_config

THREADS_N = (1, 2, 4, 8, 16)
SLICES_K = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STAGES = (1, 2, 4, 8, 16)  # tiles in flight of a thread, in registers
BLOCKS_PER_SM = (1, 2, 3, 4, 5, 6, 7, 8)
LEAST_THREADS = 64  # a block of fewer hides no latency


def skinny_configs(
    contraction: SumOfProducts, device: Device, norm_scale: NormScale | None = None
) -> Iterator[GemvConfig]:
    """Enumerate configurations, the default too; none where the product is no skinny GEMM.

    Parameters
    ----------
    norm_scale
        The scale of an RMS norm prologue.

    Yields
    ------
    GemvConfig
        For CUDA cores, or a :class:`SkinnyMmaConfig` for tensor cores.
    """
    chosen = skinny_gemm_config(contraction, device, norm_scale)
    if chosen is None:
        return
    on_cuda_cores = gemv_config(contraction, device, norm_scale)
    spaces = [] if on_cuda_cores is None else [_cuda_cores(on_cuda_cores)]
    if isinstance(chosen, SkinnyMmaConfig):
        spaces.append(_tensor_cores(chosen))
    for config in itertools.chain(*spaces):
        if _fits(config, device):
            yield config


def _cuda_cores(start: GemvConfig) -> Iterator[GemvConfig]:
    """Vary the shape of a block, the loads in flight and the cp.async pipeline."""
    pipelines = (0, CP_ASYNC_STAGES) if start.cp_async_stages else (0,)
    steps = constant(start.k_tiles)
    tiles = fewer_columns(start.tile)
    for tile, threads_n, slices_k in itertools.product(tiles, THREADS_N, SLICES_K):
        if steps is not None and slices_k > steps:
            continue
        of_slice = constant(ceildiv(start.k_tiles, slices_k))
        shape = replace(start, tile=tile, threads_n=threads_n, slices_k=slices_k)
        for cp_async_stages in pipelines:
            if cp_async_stages and (of_slice is None or of_slice < cp_async_stages):
                continue
            # A pipeline stages tiles in shared memory, one at a time.
            for stages in (start.stages,) if cp_async_stages else STAGES:
                if of_slice is None or stages <= of_slice:
                    yield replace(shape, stages=stages, cp_async_stages=cp_async_stages)


def _tensor_cores(start: SkinnyMmaConfig) -> Iterator[SkinnyMmaConfig]:
    """Vary the warps of a block, its loads in flight and the occupancy target."""
    steps = int(start.k_tiles) // start.mma.c.lanes_per_row
    every = varied(start, slices_k=SLICES_K, stages=STAGES[:2], min_blocks_per_sm=BLOCKS_PER_SM)
    for config in every:
        if steps % config.slices_k == 0 and config.stages <= steps // config.slices_k:
            yield config


def _fits(config: GemvConfig, device: Device) -> bool:
    """Whether a block is launched and its registers do not spill."""
    most = device.max_threads_per_block or 1024
    file = device.registers_per_block or 1 << 16
    blocks = max(1, config.min_blocks_per_sm)
    return (
        LEAST_THREADS <= config.threads <= most
        and config.holds_heads(device.clusters)
        and config.shared_bytes <= STATIC_SHARED_BYTES
        and config.accumulators < config.registers
        and blocks * config.threads * config.registers <= file
    )
