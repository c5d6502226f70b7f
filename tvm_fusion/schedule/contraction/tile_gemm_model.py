"""The analytical model that chooses a tiled GEMM's configuration, and its design space.

A configuration's time is estimated in clocks of a multiprocessor as

    DRAM     bytes of A, B and C / what memory delivers
    tiles    waves * k_tiles * the slowest of: mma, ldmatrix + copies, L2; of the blocks of a wave
    latency  waves * (k_tiles * latency of a step + pipeline fill + epilogue)

and the least one wins. Constants are of an H200, and of one clock each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import tirx

from ...core.expressions import variables
from ...core.loops import constant, product
from ...device import Device
from ...ecg.work import at
from ..gpu.mma import ATOMS, mma_atom
from .gemm_view import GemmView, gemm_view
from .operands import SumOfProducts
from .tile_gemm_config import K16, M16, REGISTER_FILE, TileGemmConfig, half_operand

LEAST_ROWS, LEAST_COLUMNS, LEAST_K = 9, 8, 16  # of a tile that is worth its instructions
ROWS_OF_SYMBOLIC_M = 512

# (block_m, block_n, warps_m, warps_n, warps_k) of the default's candidates, the largest first.
TILES = (
    (128, 256, 2, 4, 1),
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (64, 256, 1, 4, 1),
    (64, 128, 2, 2, 1),
    (128, 64, 2, 2, 1),
    (64, 64, 2, 2, 1),
    (32, 128, 1, 4, 1),
    (32, 64, 1, 2, 2),
    (32, 32, 1, 1, 4),
    (16, 128, 1, 4, 1),
    (16, 64, 1, 2, 2),
)
BLOCK_K = (64, 32)
STAGES = (3, 4, 6, 8)
SPLIT_K = (1, 2, 4, 8)  # 8 blocks are the largest portable cluster
GROUPS_M = (1, 4, 8, 16)
RESERVED_SHARED = 1024  # of every block, by the device


@dataclass(frozen=True)
class Rates:
    """What a multiprocessor does in a clock.

    Attributes
    ----------
    mma : float
        Multiply-adds of half types on tensor cores by ``mma.sync``.
    shared : float
        Bytes from and to shared memory.
    l2, dram : float
        Bytes from L2 and from memory, all multiprocessors busy.
    """

    mma: float = 620.0
    shared: float = 128.0
    l2: float = 28.0
    dram: float = 16.0


STEP_CLOCKS = 90.0  # of a k16 that no other warp hides: ldmatrix, mma, a share of a barrier
FILL_CLOCKS = 1500.0  # of the first tile's copies
EPILOGUE_CLOCKS = 800.0
CLUSTER_CLOCKS = 1200.0  # of barriers between the blocks of a cluster, and of their launch


def tile_gemm_config(contraction: SumOfProducts, device: Device) -> TileGemmConfig | None:
    """Configure a tiled GEMM for tensor cores; ``None`` where the device or the product has none.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    device : Device
        A GPU.
    """
    start = _problem(contraction, device)
    if start is None:
        return None
    found = [c for c in _space(start, device, TILES, STAGES) if fits(c, device)]
    return min(found, key=lambda c: estimated_clocks(c, device), default=None)


def tile_gemm_configs(contraction: SumOfProducts, device: Device) -> Iterator[TileGemmConfig]:
    """Enumerate configurations, the default first; none where the product has no tiled GEMM."""
    chosen = tile_gemm_config(contraction, device)
    if chosen is None:
        return
    yield chosen
    sizes = (16, 32, 64, 128, 256)
    warps = (1, 2, 4)
    tiles = itertools.product(sizes, sizes[1:], warps, (1, 2, 4, 8), warps)
    for config in _space(chosen, device, tiles, (2, 3, 4, 5, 6, 8)):
        for group_m in GROUPS_M:
            one = replace(config, group_m=group_m)
            if one != chosen and fits(one, device):
                yield one


def _space(start, device, tiles, stages) -> Iterator[TileGemmConfig]:
    """Combine block tiles with pipelines and split-K."""
    splits = SPLIT_K if device.clusters else SPLIT_K[:1]
    for tile, block_k, depth, split_k in itertools.product(tiles, BLOCK_K, stages, splits):
        block_m, block_n, warps_m, warps_n, warps_k = tile
        yield replace(
            start,
            block_m=block_m,
            block_n=block_n,
            block_k=block_k,
            warps_m=warps_m,
            warps_n=warps_n,
            warps_k=warps_k,
            stages=depth,
            split_k=split_k,
        )


def _problem(contraction: SumOfProducts, device: Device) -> TileGemmConfig | None:
    """Read a product of half types as a tiled GEMM, of any tile."""
    if contraction.column_split is not None or contraction.dtype != "float32":
        return None
    if device.kind != "cuda" or not device.async_copy:
        return None
    initial = contraction.initial
    if not isinstance(initial, tirx.FloatImm) or float(initial.value) != 0:
        return None
    view = gemm_view(contraction, allows_conditions=True)
    if view is None or not view.m_axes:
        return None
    types = {str(half_operand(x).ty.dtype) for x in (view.a, view.b)}
    half = types.pop()
    if types or half not in {a.dtype for a in ATOMS} or mma_atom(device, half) is None:
        return None
    if any(constant(a.extent) is None for a in (*view.n_axes, *view.k_axes)):
        return None
    m, n, k = (_rows(view), _extent(view.n_axes), _extent(view.k_axes))
    if m < LEAST_ROWS or n < LEAST_COLUMNS or k < LEAST_K:
        return None
    own = {a.var for a in (*view.batch, *view.m_axes, *view.n_axes, *view.k_axes)}
    symbols = [v for x in (view.a, view.b) for v in variables(x) - own]
    if symbols:
        return None
    given = (view.batch, view.m_axes, view.n_axes, view.k_axes, view.a, view.b)
    return TileGemmConfig(*given, contraction, half, 64, 64, 64, 2, 2)


def fits(config: TileGemmConfig, device: Device) -> bool:
    """Whether a block is launched without spilling, and its warps have whole fragments."""
    shared = device.shared_memory_per_block or 48 * 1024
    steps = config.block_k // K16
    return (
        config.warp_m % M16 == 0
        and config.warp_n % M16 == 0
        and config.warp_m > 0
        and config.warp_n > 0
        and steps % config.warps_k == 0
        and 64 <= config.threads <= 512
        and config.accumulators <= 128
        and config.shared_bytes <= shared
        and config.registers * config.threads <= REGISTER_FILE
        and (config.split_k == 1 or config.k >= config.split_k * config.block_k * 2)
        and (config.stages - 1) * config.block_k * config.split_k < config.k + config.block_k
    )


def blocks_per_sm(config: TileGemmConfig, device: Device) -> int:
    """Count the blocks that a multiprocessor holds at once."""
    shared = device.shared_memory_per_sm or 64 * 1024
    threads = (device.max_threads_per_sm or 1024) // config.threads
    registers = REGISTER_FILE // (config.registers * config.threads)
    memory = shared // (config.shared_bytes + RESERVED_SHARED)
    return max(1, min(threads, registers, memory))


def estimated_clocks(config: TileGemmConfig, device: Device) -> float:
    """Estimate the time of a product, in clocks of a multiprocessor."""
    rates, sms = Rates(), device.sm_count or 1
    m, n, k = _rows(config), config.n, config.k
    batch = math.prod(at(a.extent) for a in config.batch)
    blocks = batch * -(-m // config.block_m) * config.tiles_n * config.split_k
    per_sm = blocks_per_sm(config, device)
    busy = min(per_sm, -(-blocks // sms))  # blocks that share a multiprocessor
    waves = -(-blocks // (sms * busy))
    k_tiles = config.k_tiles
    steps = config.block_k // K16
    stage = config.stage_bytes
    warps = config.warps_m * config.warps_n
    mma = config.block_m * config.block_n * config.block_k / rates.mma
    read = warps * (config.warp_m + config.warp_n) * config.block_k * 2
    tile = max(mma, (read + stage) / rates.shared, stage / rates.l2)
    latency = STEP_CLOCKS * steps / config.warps_k
    flight = (config.stages - 1) * stage * busy  # bytes in flight
    starved = 1000.0 * stage * busy / flight if flight else 1000.0
    step = max(tile * busy, latency, starved)
    epilogue = EPILOGUE_CLOCKS + busy * config.block_m * config.block_n / config.split_k / 16
    if config.split_k > 1:
        epilogue += CLUSTER_CLOCKS
    total = waves * (k_tiles * step + epilogue) + FILL_CLOCKS
    dram = 2 * batch * (m * k + k * n + 2 * m * n) / (rates.dram * sms)
    return max(total, dram + FILL_CLOCKS) + total / 8


def _rows(view: GemmView) -> int:
    """Rows, or a guess of them."""
    static = constant(product([a.extent for a in view.m_axes]))
    return ROWS_OF_SYMBOLIC_M if static is None else static


def _extent(axes) -> int:
    return int(product([a.extent for a in axes]))
