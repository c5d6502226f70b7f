"""The analytical model of a Hopper GEMM's time, in clocks of a multiprocessor.

    launch + trips * (k_tiles * step + epilogue) + split
    trips    tiles that the busiest block computes
    step     the longer of: wgmma of the blocks of a multiprocessor; their copies from L2, of which
             few blocks get more each; one block alone, by the latency of its copies
    split    clusters and the exchange of sums between their blocks, with split-K
    where two consumers take turns, one's epilogue runs during the other's products

Fitted on one H200 to 21 products of 128 to 4,096 rows, half types and bytes.
"""

import math
from dataclasses import dataclass

from ....core.tir.expressions import is_expensive
from ....core.tir.loops import constant
from ....device import Device
from ....ecg.work import at
from ...gpu.matrix.wgmma import THREADS, K, M
from ..mma.model import RATES, result_bytes
from ..tile.problem import assumed_rows, gemm_sizes
from ..tile.results.vectors import result_vectors
from .config import WgmmaConfig, WgmmaWindowConfig
from .operands.computed import STAGE, ComputedOperand
from .operands.rows import TmaRows

WIDE_ITEM = 4  # bytes of float32
# How much faster two warpgroups compute B than one. On an H200 128x4096x14336 of int4 took 41.0 us,
# 47.8 with one, of int8 39.1 and 53.7; 512 rows of int4 134.7 with two and tiles of 128x160, 109.8
# with one and 256x128.
TWO_PRODUCERS = 1.2
TF32_COLUMNS = 0.88  # of the rate: 256 columns take 364 us where 128 take 425 (4096^3)
# How much longer products take of consumers that share no columns: 434 us in turns, 359 shared
# (4096^3), 193 and 178 (512x4096x14336).
TF32_ALONE = 1.1
# How much longer products of float8 take where no other consumer multiplies while one adds up the
# sums of a stage: 78 us in turns, 56 shared (512x4096x14336).
PROMOTED_ALONE = 1.62
CLUSTER_BLOCK = 26.0  # of split-K, of each block of the grid: four take as long as two
# Clocks of an element that is stored alone, by one consumer: 3241x24x2273 with GELU took 24.4 us,
# 12.5 by mma.sync; 2964x100x1905 with it 21.1, 16.5; 3307x68x995 9.5, 6.9.
STAGED_ELEMENT, STAGED_EXPENSIVE = 0.8, 1.1
# Clocks of a multiprocessor's element that is stored in vectors of less than 16 bytes, two of which
# write a sector in parts: 5546x24x3108 took 44 to 55 us with any tile, 18 by mma.sync (H100).
PIECE, VECTOR_ELEMENTS = 0.62, 8
# A block of two consumers of which one has a tile is faster than one of a single consumer, of 64
# columns alone: 128x768x2304 3.72 and 3.94 us, 784x768x192 3.83 and 4.23, 128x768x3072 4.21 and
# 4.36; but 64x96: 197x768x2304 4.80 and 4.54.
SINGLE_TURN, SINGLE_COLUMNS = 0.95, 64

# Of each box of few rows, in a stage: 1764x768x2304 with 9 boxes of 7 rows took 19.9 us of 64x256,
# 13.9 with 9 boxes of 14 of 128x256.
BOX = 140.0


@dataclass(frozen=True)
class WgmmaRates:
    """How fast a multiprocessor is, fitted to measured times on an H200."""

    # Multiply-adds of half types in a clock, of tiles of 128 columns or more, and of fewer.
    wide: float
    narrow: float
    # Bytes of copies in a clock, half or all multiprocessors busy.
    l2_half: float
    l2_all: float
    # Clocks of an epilogue, and of each element of a tile, by one consumer.
    epilogue: float
    element: float
    expensive_element: float
    # Clocks of clusters, with split-K. 128x3072x768 without, by 2 and by 4: 7.50, 6.76 and 6.33 us;
    # 197x3072x768: 7.71 and 8.24; 3x3 over 8x7x7x512: 13.57, 11.49 and 9.56, over 14x14x256 5.92
    # and by 4 4.92.
    cluster: float


GEMM = WgmmaRates(1395.0, 1350.0, 84.0, 56.0, 405.0, 0.106, 0.266, 1950.0)
# Beside mma.sync's estimates, which know neither gathered nor shifted operands well: convolutions
# of 2x640x32 took 32 us with windows and 53 with the tile that the rates of GEMMs prefer.
BESIDE_MMA = WgmmaRates(1700.0, 1500.0, 80.0, 62.0, 450.0, 0.21, 0.47, 1300.0)


def wgmma_clocks(config: WgmmaConfig, device: Device, rates: WgmmaRates | None = None) -> float:
    """Estimate the time of a product, in clocks of a multiprocessor."""
    is_window = isinstance(config, WgmmaWindowConfig)
    rates = rates or (BESIDE_MMA if is_window else GEMM)
    sms, sizes = device.sm_count or 1, gemm_sizes(config.problem, assumed_rows(config.problem))
    batch, m, n, k = sizes
    tiles = sizes.row_tiles(config.tile_rows) * -(-n // config.tile.block_n)
    read = float(m * k + k * n)
    if isinstance(config, WgmmaWindowConfig):
        others = config.grid.tiles_n if config.is_of_rows else constant(config.grid.tiles_m) or 1
        tiles = batch * config.window.tile_count * others
        pixels = m if config.is_of_rows else n  # read once, not for every tap
        image = math.prod(at(d) for d in config.window.maps[0].buffer.ty.shape)
        read -= pixels * k - min(pixels * k / math.prod(config.window.taps), image)
    blocks = tiles * config.tile.split_k
    resident = min(config.blocks_per_sm, -(-blocks // sms))
    trips: float = -(-blocks // (sms * resident))
    if config.problem.ragged is not None:  # how full the last wave is, offsets tell
        trips = max(1.0, blocks / (sms * resident) + 0.5)
    elements = config.tile.block_m * config.tile.block_n
    rate = rates.wide if config.tile.block_n >= 2 * M else rates.narrow
    is_alone = config.consumers_of_tile == resident == 1
    if config.problem.item_bytes == WIDE_ITEM:
        rate *= TF32_COLUMNS if config.tile.block_n < 4 * M else 1
        rate /= TF32_ALONE if is_alone else 1
    if config.is_promoted and is_alone:
        rate /= PROMOTED_ALONE
    busy = min(max(2 * blocks / sms - 1, 0), 1)
    copies = config.stage_bytes / (rates.l2_half + (rates.l2_all - rates.l2_half) * busy)
    if isinstance(config.operand_a, TmaRows):
        copies = max(copies, BOX * config.operand_a.count)
    steps = config.tile.block_k // config.problem.k_step
    if isinstance(config.operand_b, ComputedOperand):
        each = config.operand_b.clocks / THREADS
        computed = STAGE + each * config.tile.block_n * config.tile.block_k
        copies = max(copies, computed / (TWO_PRODUCERS if config.producers > 1 else 1))
    products = resident * max(elements * steps * K / rate, copies)
    stage = max(products, RATES.latency / (config.tile.stages - 1))
    main = config.grid.k_tiles * stage
    has_expensive = any(is_expensive(r.value) for r in config.problem.contraction.results)
    if config.is_staged:
        each = STAGED_EXPENSIVE if has_expensive else STAGED_ELEMENT
    else:
        each = rates.expensive_element if has_expensive else rates.element
    each *= elements * resident
    # With split-K, sums that are exchanged take the time that a second consumer saves; two that
    # compute dear epilogues share the units: 197x768x3072 with GELU takes 5.71 us with tiles of
    # 128x64, 5.19 of 64x96; 1024x768x3072 12.21 of 128x192, 11.13 in turns.
    shared = (
        1.0
        if config.tile.split_k > 1
        else config.consumers_of_tile ** (0.5 if has_expensive else 1.0)
    )
    epilogue = rates.epilogue + each / shared
    if config.tile.split_k > 1:
        epilogue += rates.cluster + CLUSTER_BLOCK * blocks
    if config.is_ping_pong and trips == 1 and config.tile.block_n == SINGLE_COLUMNS:
        main *= SINGLE_TURN
    if config.is_ping_pong:
        total = max(trips * main + epilogue, -(-trips // 2) * (main + epilogue))
    else:
        total = trips * (main + epilogue)
    if not config.is_staged and result_vectors(config.problem).width < VECTOR_ELEMENTS:
        total = max(total, trips * resident * elements * PIECE)
    result = result_bytes(config.problem)
    dram = batch * (config.problem.item_bytes * read + result * m * n) / (RATES.dram * sms)
    return max(total, dram) + RATES.launch + min(total, dram) / 8
