"""The analytical model that chooses a Hopper GEMM's configuration, and its design space.

A configuration's time is estimated in clocks of a multiprocessor as

    launch + trips * (k_tiles * step + epilogue)
    trips    tiles that the busiest block computes
    step     the longer of: wgmma of the blocks of a multiprocessor; one block alone, by the latency
             of its copies
    where two consumers take turns, one's epilogue runs beside the other's products

The least one wins, if it is less than what tile_gemm_model estimates for ``mma.sync``, which has
smaller tiles and split-K.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from ...core.expressions import is_expensive
from ...device import Device
from ..gpu.wgmma import WARPS, M
from .direct_epilogue import COLUMNS
from .operands import SumOfProducts
from .tile_gemm_config import TileGemmConfig
from .tile_gemm_model import (
    GROUPS_M,
    MOST_ACCUMULATORS,
    RATES,
    RESERVED_SHARED,
    gemm_problem,
    gemm_sizes,
)
from .tile_results import result_vectors
from .tile_shape import REGISTER_FILE
from .tma_operand import tma_operand
from .wgmma_config import BLOCK_K, WgmmaConfig, staged_bytes

# (block_m, block_n, consumers, is_ping_pong) of the default's candidates.
TILES = (
    (128, 256, 2, False),
    (256, 128, 2, False),
    (128, 192, 2, False),
    (128, 128, 2, False),
    (128, 128, 2, True),
    (64, 256, 2, True),
    (64, 128, 2, True),
    (128, 64, 2, False),
    (64, 128, 1, False),
    (64, 64, 1, False),
)
FEW_ROWS = M // 2  # most of an instruction's rows would be empty: mma.sync has fewer
RESIDENT = (1, 2)  # blocks of a multiprocessor
MOST_STAGES = 12
ALL_COLUMNS = range(COLUMNS, 257, COLUMNS)  # the design space of tuning
# Multiply-adds in a clock, and clocks of an epilogue: fitted to measured times on an H200.
WGMMA, NARROW_WGMMA = 1700.0, 1500.0
L2 = 55.0  # bytes of copies in a clock, all multiprocessors busy
EPILOGUE, ELEMENT, DEAR_ELEMENT = 600.0, 0.12, 0.28


def wgmma_config(contraction: SumOfProducts, device: Device) -> WgmmaConfig | None:
    """Configure a GEMM for TMA and wgmma; ``None`` where the device or the operands have none.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    device : Device
        A GPU.
    """
    problem = gemm_problem(contraction, device)
    return None if problem is None else best_wgmma_tile(problem, device)


def best_wgmma_tile(problem: TileGemmConfig, device: Device) -> WgmmaConfig | None:
    """Choose the tile of a problem by the model; ``None`` where wgmma or TMA cannot be used."""
    if not has_wgmma(device) or gemm_sizes(problem).m <= FEW_ROWS:
        return None
    found = _space(problem, device, TILES)
    return min(found, key=lambda config: wgmma_clocks(config, device), default=None)


def has_wgmma(device: Device) -> bool:
    """Whether a device has wgmma of half types, and TMA."""
    names = {i.name for i in device.matrix_instructions if i.dtype in ("float16", "bfloat16")}
    return "wgmma" in names and device.tma


def wgmma_configs(contraction: SumOfProducts, device: Device) -> Iterator[WgmmaConfig]:
    """Enumerate configurations, the default first; none where the product has none."""
    chosen = wgmma_config(contraction, device)
    if chosen is None:
        return
    yield chosen
    tiles = itertools.product((64, 128, 256), ALL_COLUMNS, (1, 2), (False, True))
    for config in _space(chosen, device, tuple(tiles)):
        for group_m in GROUPS_M:
            one = replace(config, group_m=group_m)
            if one != chosen:
                yield one


def _space(
    start: TileGemmConfig, device: Device, tiles: Sequence[tuple[int, int, int, bool]]
) -> Iterator[WgmmaConfig]:
    """Combine tiles with blocks of a multiprocessor; stages take what shared memory there is."""
    a, b = (tma_operand(start, is_a, BLOCK_K) for is_a in (True, False))
    if a is None or b is None:
        return
    shared = min(
        device.shared_memory_per_block or 0,
        (device.shared_memory_per_sm or 0) - RESERVED_SHARED,
    )
    is_staged = result_vectors(start).width == 1 and start.parts == 1
    given = {f.name: getattr(start, f.name) for f in fields(TileGemmConfig)}
    for (block_m, block_n, consumers, is_ping_pong), per_sm in itertools.product(tiles, RESIDENT):
        rows = block_m // (1 if is_ping_pong else consumers)
        if rows % M or (is_ping_pong and consumers != 2) or block_n % (COLUMNS * start.parts):
            continue
        if rows // M * block_n // 2 > MOST_ACCUMULATORS or (consumers == 2 and per_sm > 1):
            continue
        stage = (block_m + block_n) * BLOCK_K * 2
        room = (shared + RESERVED_SHARED) // per_sm - RESERVED_SHARED
        room -= 256 + (staged_bytes(consumers) if is_staged else 0)
        stages = min(MOST_STAGES, room // stage)
        tile_a, tile_b = a.of_rows(block_m), b.of_rows(block_n)
        if stages < 3 or tile_a is None or tile_b is None:
            continue
        changed = {
            "block_m": block_m,
            "block_n": block_n,
            "block_k": BLOCK_K,
            "warps_m": WARPS * consumers,
            "warps_n": 1,
            "warps_k": 1,
            "stages": stages,
            "split_k": 1,
            "group_m": 8,
        }
        config = WgmmaConfig(
            **{**given, **changed},
            operand_a=tile_a,
            operand_b=tile_b,
            consumers=consumers,
            is_ping_pong=is_ping_pong,
            blocks_per_sm=per_sm,
            multiprocessors=device.sm_count or 1,
            is_staged=is_staged,
        )
        if config.registers * config.threads * per_sm <= REGISTER_FILE:
            yield config


def wgmma_clocks(config: WgmmaConfig, device: Device) -> float:
    """Estimate the time of a product, in clocks of a multiprocessor."""
    sms, sizes = device.sm_count or 1, gemm_sizes(config)
    batch, m, n, k = sizes
    tiles = batch * -(-m // config.block_m) * -(-n // config.block_n)
    resident = min(config.blocks_per_sm, -(-tiles // sms))
    trips = -(-tiles // (sms * resident))
    elements = config.block_m * config.block_n
    rate = WGMMA if config.block_n >= 2 * M else NARROW_WGMMA
    products = resident * max(elements * config.block_k / rate, config.stage_bytes / L2)
    stage = max(products, RATES.latency / (config.stages - 1))
    main = -(-k // config.block_k) * stage
    is_dear = any(is_expensive(r.value) for r in config.contraction.results)
    epilogue = EPILOGUE + (DEAR_ELEMENT if is_dear else ELEMENT) * elements * resident
    if config.is_ping_pong:
        epilogue *= 2  # of half the threads
        total = max(trips * main + epilogue, -(-trips // 2) * (main + epilogue))
    else:
        total = trips * (main + epilogue)
    dram = 2 * batch * (m * k + k * n + 2 * m * n) / (RATES.dram * sms)
    return max(total, dram) + RATES.launch + min(total, dram) / 8
