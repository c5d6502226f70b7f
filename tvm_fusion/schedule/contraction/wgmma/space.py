"""Configurations of a Hopper GEMM: the design space, and the default that the model chooses.

block tiles * blocks of a multiprocessor * split-K; stages take what shared memory there is
default     of the tiles in TILES, the one that ``model.py`` estimates to be the fastest

It is taken if it is faster than what ``mma/model.py`` estimates for ``mma.sync``, which has
smaller tiles.

Not in the space: stream-K. By the model, last rounds that all multiprocessors shared would save at
most 1.6 % of 23 products of models and 2.1 % of 78 drawn ones (geometric means; 17 and 18 % of the
best cases), the exchange of sums left out.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ....core.tir.expressions import is_expensive
from ....core.tir.loops import constant
from ....device import Device
from ...gpu.matrix.wgmma import WARPS, M
from ...index.design_space import default_first
from ...instructions.nvidia import FLOAT8_TYPES
from ...instructions.table import find
from ..mma.default import GROUPS_M, MOST_ACCUMULATORS, in_order
from ..mma.model import RESERVED_SHARED
from ..problem.epilogue.pooled_rows import PooledPixels, PooledRows
from ..problem.sum_of_products import SumOfProducts
from ..tile.problem import GemmProblem, gemm_sizes
from ..tile.read_problem import gemm_problem
from ..tile.results.vectors import result_vectors
from ..tile.shape import M16, REGISTER_FILE, TileConfig, TileOperands
from .config import (
    STAGE_K_BYTES,
    WgmmaConfig,
    WgmmaRowsConfig,
    WgmmaWindowConfig,
    staged_bytes,
)
from .direct_epilogue import COLUMNS
from .model import wgmma_clocks
from .operands.computed import computed_operand
from .operands.match_window import tma_window
from .operands.matrix import TmaOperand, tma_operand, whole_periods
from .operands.rows import tma_rows
from .operands.window import FRAGMENTS, TmaWindow

Tile = tuple[int, int, int, bool]
# (block_m, block_n, consumers, is_ping_pong) of the default's candidates.
TILES = (
    (128, 256, 2, False),
    (128, 224, 2, False),
    (256, 128, 2, False),
    (128, 192, 2, False),
    (128, 160, 2, False),
    (128, 128, 2, False),
    (128, 128, 2, True),
    (128, 96, 2, False),
    (128, 64, 2, False),
    (64, 192, 1, False),
    (64, 128, 1, False),
    (64, 96, 1, False),
    (64, 64, 1, False),
    (64, 64, 2, True),
    (64, 256, 2, True),
    (64, 224, 2, True),
    (64, 192, 2, True),
    (64, 128, 2, True),
)
# Of ragged rows: two consumers on a multiprocessor, and 64 rows where groups have few. On an H100,
# 8,192 rows of 64 experts, 2048x1024, took 117 us with two blocks of 64x128 on a multiprocessor;
# 122 to 130 of 128x128 and 123 to 138 of 128x256, by how even experts are; of 64x192 once 162.
RAGGED_COLUMNS = (64, 128, 256)
RAGGED_ROWS = 2 * M
SIMPLE_COLUMNS = (160, 224)  # with cheap epilogues only
FEW_ROWS = M // 2  # most of an instruction's rows would be empty: mma.sync has fewer
STAGED_WIDTH = 2  # elements of vectors that are rather stored through shared memory
RESIDENT = (1, 2)  # blocks of a multiprocessor
SPLIT_K = (1, 2, 4)
# How many of the multiprocessors clusters reach: one of 4 blocks lies within a group (GPC) of 16 or
# 18, or fewer. 32 of them took two rounds on an H200: 256x8192x2048 35.7 us, 22.5 in pairs.
CLUSTERED = {2: 1.0, 4: 0.91}
LEAST_K_TILES = 3  # of a block with split-K
MOST_SPLIT_ACCUMULATORS = 64  # producers keep their registers
LEAST_OTHER_REGISTERS = 48  # besides accumulators: fewer are spilled
MOST_STAGES = 12
MOST_PROMOTED = 192  # sums of a thread, of stages and of all of them
MOST_COLUMNS = 256  # of an instruction
ALL_COLUMNS = range(COLUMNS, MOST_COLUMNS + 1, COLUMNS)  # the design space of tuning


def wgmma_config(contraction: SumOfProducts, device: Device) -> WgmmaConfig | None:
    """Configure a GEMM for TMA and wgmma; ``None`` where the device or the operands have none."""
    problem = gemm_problem(contraction, device)
    return None if problem is None else best_wgmma_tile(problem, device)


def best_wgmma_tile(problem: GemmProblem, device: Device) -> WgmmaConfig | None:
    """Choose the tile of a problem by the model; ``None`` where wgmma or TMA cannot be used."""
    row = find(device, "wgmma", problem.a_dtype, problem.b_dtype)
    if row is None or not device.tma or problem.products > 1:
        return None
    if gemm_sizes(problem).m <= FEW_ROWS or isinstance(problem.contraction.pool, PooledRows):
        return None
    skipped: tuple[int, ...] = ()
    has_expensive = any(is_expensive(r.value) for r in problem.contraction.results)
    if (
        problem.parts > 1 or has_expensive
    ):  # 1576x768x3072 with GELU: 20.4 us with 224 columns, 19.4 128
        skipped = SIMPLE_COLUMNS
    if row.kind == "tfloat32":  # of 192 columns nvcc spills where it unrolls a short loop over K
        skipped = (192, *SIMPLE_COLUMNS)
    tiles = [tile for tile in TILES if tile[1] not in skipped]
    if not any(tile[1] % _period(problem) == 0 for tile in tiles):  # heads of 80 columns
        own = [((128, n, 2, False), (64, n, 1, False)) for n in _whole_periods(problem)]
        tiles += itertools.chain.from_iterable(own)
    found = _space(problem, device, tiles)
    if problem.ragged is not None:
        found = (c for c in found if c.tile.block_n in RAGGED_COLUMNS)
        found = (c for c in found if c.consumers * c.blocks_per_sm == 2)
        if gemm_sizes(problem).m <= RAGGED_ROWS:
            found = (c for c in found if c.tile.block_m == M)
    best = min(found, key=lambda config: wgmma_clocks(config, device), default=None)
    return None if best is None else in_order(best)


def has_wgmma(device: Device) -> bool:
    """Whether a device has wgmma of half types, and TMA."""
    names = {i.name for i in device.matrix_instructions if i.dtype in ("float16", "bfloat16")}
    return "wgmma" in names and device.tma


def wgmma_configs(contraction: SumOfProducts, device: Device) -> Iterator[WgmmaConfig]:
    """Enumerate configurations, the default first; none where the product has none."""
    chosen = wgmma_config(contraction, device)
    if chosen is None:
        return
    columns = sorted({*ALL_COLUMNS, *_whole_periods(chosen.problem)})
    tiles = itertools.product((64, 128, 256), columns, (1, 2), (False, True))
    found = _space(chosen.problem, device, tuple(tiles))
    orders = (config.with_tile(group_m=m) for config in found for m in GROUPS_M)
    yield from default_first(chosen, orders)


def _space(problem: GemmProblem, device: Device, tiles: Sequence[Tile]) -> Iterator[WgmmaConfig]:
    """Combine tiles with blocks of a multiprocessor; stages take what shared memory there is."""
    block_k = STAGE_K_BYTES // problem.item_bytes
    copies = _copies(problem, block_k)
    if copies is None:
        return
    vectors = result_vectors(problem)
    shared = min(
        device.shared_memory_per_block or 0,
        (device.shared_memory_per_sm or 0) - RESERVED_SHARED,
    )
    is_staged = vectors.width <= STAGED_WIDTH and not vectors.is_along_m and problem.parts == 1
    operands = TileOperands.of(problem)
    is_promoted = problem.a_dtype in FLOAT8_TYPES
    if problem.contraction.has_statistics and not _holds_statistics(problem, copies.kind):
        return
    for (block_m, block_n, consumers, is_ping_pong), per_sm in itertools.product(tiles, RESIDENT):
        rows = block_m // (1 if is_ping_pong else consumers)
        if rows % M or (is_ping_pong and consumers != 2):
            continue
        has_periods = copies.periods is not None and block_n % _period(problem) == 0
        if not has_periods and block_n % (COLUMNS * problem.parts):
            continue
        if problem.ragged is not None and is_ping_pong:
            continue  # tiles without products have no stages for the other to skip
        sums = rows // M * block_n // 2 * (2 if is_promoted else 1)
        most = MOST_PROMOTED if is_promoted else MOST_ACCUMULATORS
        if sums > most or (consumers == 2 and per_sm > 1):
            continue
        columns = copies.periods if has_periods else copies.b
        tile_a = copies.a.of_rows(block_m)
        tile_b = None if columns is None else columns.of_rows(block_n)
        if tile_a is None or tile_b is None:
            continue
        room = (shared + RESERVED_SHARED) // per_sm - RESERVED_SHARED
        room -= 256 + (staged_bytes(consumers) if is_staged else 0) + problem.table_bytes
        stages = min(MOST_STAGES, room // (tile_a.bytes + tile_b.bytes))
        if stages < 3:
            continue
        tile = TileConfig(
            operands, block_m, block_n, block_k, WARPS * consumers, warps_n=1, stages=stages
        )
        config = copies.kind(
            problem,
            tile,
            operand_a=tile_a,
            operand_b=tile_b,
            consumers=consumers,
            is_ping_pong=is_ping_pong,
            is_promoted=is_promoted,
            blocks_per_sm=per_sm,
            multiprocessors=device.sm_count or 1,
            is_staged=is_staged,
        )
        most = REGISTER_FILE // (config.threads * per_sm)
        if config.moves_registers or config.accumulators + LEAST_OTHER_REGISTERS <= most:
            yield from (c for c in _splits(config) if _has_whole_groups(c))


@dataclass(frozen=True, eq=False)
class _Copies:
    """Operands as a producer copies them, of tiles of no rows yet."""

    kind: type[WgmmaConfig]  # of configurations with such
    a: TmaOperand
    b: TmaOperand | None  # unless tiles are whole periods of a column split
    periods: TmaOperand | None  # B with its columns in the order of memory


def _copies(problem: GemmProblem, block_k: int) -> _Copies | None:
    """View operands as matrices, else A as rows, else one of them as windows of an image."""
    kind: type[WgmmaConfig] = WgmmaConfig
    a: TmaOperand | None
    b: TmaOperand | None
    a, b = (tma_operand(problem, is_a, block_k) for is_a in (True, False))
    periods = whole_periods(problem, block_k)
    if problem.ragged is not None and (a is None or b is None):
        return None
    if a is not None and b is None and periods is None:
        b = computed_operand(problem, block_k)
    vectors = result_vectors(problem)
    if a is None and b is not None and not vectors.is_along_m:
        a, kind = tma_rows(problem, block_k), WgmmaRowsConfig
    if a is None or (b is None and periods is None):
        found = tma_window(problem, block_k)
        if found is None or vectors.is_along_m:
            return None
        (a, b), kind = found, WgmmaWindowConfig
    if isinstance(pool := problem.contraction.pool, PooledPixels):
        is_whole = vectors.width == problem.mma.n and not vectors.is_along_m
        fragment = FRAGMENTS.get(pool.window(problem.m_axes), ())
        if not (isinstance(a, TmaWindow) and is_whole and fragment):
            return None
        a = replace(a, pooled=fragment)
    return _Copies(kind, a, b, periods)


def _period(problem: GemmProblem) -> int:
    """Count the columns of a period of a column split, such as a head's; 1 without one."""
    split = problem.contraction.column_split
    return 1 if split is None else split.count * split.width


def _whole_periods(problem: GemmProblem) -> list[int]:
    """List how many columns tiles of whole periods may have."""
    period = _period(problem)
    return [n for n in range(period, MOST_COLUMNS + 1, period) if n % M16 == 0 and period > 1]


def _holds_statistics(problem: GemmProblem, kind: type[WgmmaConfig]) -> bool:
    """Whether threads store whole vectors of 8 columns, of which groups and rows are made up."""
    vectors = result_vectors(problem)
    return kind is WgmmaConfig and vectors.width == problem.mma.n and not vectors.is_along_m


def _has_whole_groups(config: WgmmaConfig) -> bool:
    """Whether the columns that threads hold at once are whole groups, where groups are added up."""
    sums = config.problem.contraction.group_sums
    if sums is None:
        return True
    columns = config.tile.staged[1] if config.tile.split_k > 1 else config.tile.block_n
    return config.problem.parts == 1 and columns % sums.width == 0


def _splits(config: WgmmaConfig) -> Iterator[WgmmaConfig]:
    """Split K among the blocks of clusters, as far as all of them run at once."""
    yield config
    tiles = constant(config.grid.tiles)
    is_fit = config.blocks_per_sm == config.problem.parts == 1 and not config.is_ping_pong
    is_fit = is_fit and config.problem.ragged is None and config.problem.contraction.pool is None
    if tiles is None or not is_fit or config.accumulators > MOST_SPLIT_ACCUMULATORS:
        return
    for split_k in SPLIT_K[1:]:
        k_tiles = -(-config.grid.k_tiles // split_k)
        if isinstance(config, WgmmaWindowConfig) and config.grid.k_tiles % split_k:
            continue  # a window has no taps beyond the last, of which boxes are zeros
        resident = CLUSTERED[split_k] * config.multiprocessors
        if tiles * split_k <= resident and k_tiles >= LEAST_K_TILES:
            stages = min(config.tile.stages, k_tiles)
            yield config.with_tile(split_k=split_k, stages=stages)
