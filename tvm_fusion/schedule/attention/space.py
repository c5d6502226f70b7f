"""The design space of attention on a GPU: every configuration that fits the device.

The template chooses the first by rules and estimates; ``configs`` enumerates what a tuner may
measure instead. Each is plain data; kernels are made of any of them. The space of FlashAttention on
tensor cores is in :mod:`.flash.model`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ...core.tir.loops import constant
from ...device import Device
from ..gpu.launch import STATIC_SHARED_BYTES
from ..index.design_space import Kernels, default_first, varied
from .cuda_cores.config import MAX_LANES, MIN_LANES, SHARED_BYTES, THREADS, GpuConfig
from .decode.config import FlashDecodeConfig, flash_decode_config
from .decode.mma_config import MAX_WARPS
from .flash import model as flash_mma_model
from .flash.config import FlashMmaConfig
from .flash.problem import flash_problem
from .flash.tma.config import FlashTmaConfig
from .flash.wave.config import FlashWaveConfig
from .problem.pattern import Pattern

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
GROUPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4)
KEYS = (8, 16, 32, 64)
ROWS = (1, 2, 4, 8, 16)
ROWS_OF_THREAD = (1, 2, 4)

Config = FlashDecodeConfig | FlashMmaConfig | GpuConfig
KERNELS = Kernels(
    {
        FlashDecodeConfig: ("flash decoding", ("splits", "groups", "stages")),
        FlashMmaConfig: (
            "flash mma",
            (
                *("warps", "rows_of_warp", "block_n", "stages", "q_in_registers"),
                *("uses_wgmma", "is_ping_pong"),
            ),
        ),
        FlashWaveConfig: (
            "flash wave",
            ("warps", "rows_of_warp", "block_n", "q_in_registers", "column_parts"),
        ),
        FlashTmaConfig: ("flash tma", ("warps", "block_n", "stages", "is_ping_pong")),
        GpuConfig: ("CUDA cores", ("rows", "lanes", "rows_of_thread", "keys")),
    }
)


def configs(pattern: Pattern, device: Device) -> Iterator[Config]:
    """Enumerate configurations, the one that the template chooses first.

    Parameters
    ----------
    pattern
        The attention, constants written into it.

    Yields
    ------
    FlashDecodeConfig, FlashMmaConfig or GpuConfig
        Each one once.
    """
    decode = flash_decode_config(pattern, device)
    if isinstance(decode, FlashDecodeConfig):
        yield decode
        yield from (c for c in _split_kv(decode, device) if not _same(c, decode))
    problem = flash_problem(pattern)
    if problem is not None:
        yield from flash_mma_model.configs(problem, device)
    start = GpuConfig.of(pattern, device)
    yield from default_first(start, _cuda_cores(start))


def estimates(pattern: Pattern, device: Device) -> Iterator[tuple[FlashMmaConfig, float]]:
    """Enumerate the configurations that have a model, with their clocks: FlashAttention's."""
    problem = flash_problem(pattern)
    if problem is not None:
        for config in flash_mma_model.configs(problem, device):
            yield config, flash_mma_model.cycles(config, problem, device)


def _split_kv(start: FlashDecodeConfig, device: Device) -> Iterator[FlashDecodeConfig]:
    """Vary the splits of the keys, the groups of a block and, on tensor cores, the ring."""
    count = constant(start.pattern.key.extent)
    limit = device.shared_memory_per_block if start.uses_mma else STATIC_SHARED_BYTES
    stages = STAGES if start.uses_mma else (0,)
    for config in varied(start, splits=SPLITS, groups=GROUPS, stages=stages):
        if start.uses_mma and config.groups > MAX_WARPS:
            continue
        if count is not None and config.splits > -(-count // config.block_n):
            continue
        if not config.warp_size <= config.threads <= (device.max_threads_per_block or 1024):
            continue
        if config.shared_bytes <= (limit or STATIC_SHARED_BYTES):
            yield config


def _cuda_cores(start: GpuConfig) -> Iterator[GpuConfig]:
    """Vary the queries of a block, the threads of each and the keys of a tile."""
    for rows, own, keys in itertools.product(ROWS, ROWS_OF_THREAD, KEYS):
        lanes = MIN_LANES
        while lanes <= MAX_LANES and rows * lanes <= THREADS:
            config = replace(start, rows=rows, lanes=lanes, rows_of_thread=own, keys=keys)
            if config.shared_bytes <= SHARED_BYTES:
                yield config
            lanes *= 2


def _same(a: FlashDecodeConfig, b: FlashDecodeConfig) -> bool:
    return (a.splits, a.groups, a.stages) == (b.splits, b.groups, b.stages)
