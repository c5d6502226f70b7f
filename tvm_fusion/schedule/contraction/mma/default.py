"""Choice of a tiled GEMM's tile with mma.sync: the least of the estimated times."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from ....core.tir.loops import constant
from ....device import Device
from ...gpu.launch import STATIC_SHARED_BYTES
from ..problem.sum_of_products import SumOfProducts
from ..tile.config import TileGemmConfig
from ..tile.problem import ROWS_OF_SYMBOLIC_M, GemmProblem, Sizes, gemm_sizes
from ..tile.read_problem import gemm_problem
from ..tile.shape import M16, REGISTER_FILE, WAVE64, TileConfig, TileOperands
from .model import Rates, estimated_clocks, fits, rates_of, reduction_clocks, residency
from .unaligned_tiles import (
    SHIFTED,
    UNALIGNED_SPLIT_K,
    UNALIGNED_TILES,
    has_shifted_operands,
    planar_clocks,
    planar_operands,
    unaligned_clocks,
    unaligned_operands,
)
from .wave_tiles import WAVE_BLOCK_K_BYTES, WAVE_STAGES, Tile, wave_tiles

C = TypeVar("C", bound=TileGemmConfig)
# (block_m, block_n, warps_m, warps_n, warps_k) of the default's candidates, the largest first.
TILES = (
    (128, 256, 2, 4, 1),
    (256, 128, 4, 2, 1),
    (128, 128, 2, 2, 1),
    (64, 256, 1, 4, 1),
    (64, 128, 2, 2, 1),
    (64, 128, 2, 4, 1),
    (128, 64, 2, 2, 1),
    (64, 64, 2, 2, 1),
    (64, 64, 2, 2, 2),
    (32, 128, 2, 4, 1),
    (32, 64, 1, 2, 2),
    (32, 32, 1, 1, 4),
    (16, 128, 1, 4, 1),
    (16, 64, 1, 4, 1),
)
BLOCK_K_BYTES = (128, 256)
# Of unaligned operands, and of so few terms that longer tiles would be half empty: 3241x24x2273
# with GELU took 24.3 us with tiles of 64x64x64 and two slices, 12.2 with 128x128x32.
SHORT_BLOCK_K_BYTES, FEW_K_BYTES = 64, 192
STAGES = (3, 4, 6, 8)
# Through registers one tile is on its way whatever the stages; 64 KiB of shared memory have two of
# 128 x 128 x 64.
REGISTER_STAGES, REGISTER_BLOCK_K_BYTES = (2, 3), (64, 128)
SPLIT_K = (1, 2, 4)
WORKSPACE_SPLIT_K = (1, 2, 3, 4, 6, 8)  # without clusters any blocks may share K
GROUPS_M = (1, 8)
OUTPUT = 4  # times as many results as elements of operands: rows of tiles one by one
LEAST_THREADS, MOST_THREADS, MOST_ACCUMULATORS = 64, 512, 128
MOST_WANTED = 250  # registers of a thread
ALIKE = 1.02  # times the least estimate: what no model tells apart


def tile_gemm_config(
    contraction: SumOfProducts, device: Device, rows: int = ROWS_OF_SYMBOLIC_M
) -> TileGemmConfig | None:
    """Configure a tiled GEMM for tensor cores; ``None`` where the device or the product has none.

    Parameters
    ----------
    contraction, device
        As in :func:`..tile.read_problem.gemm_problem`.
    rows
        A guess of M where it is symbolic.
    """
    problem = gemm_problem(contraction, device)
    return None if problem is None else best_tile(problem, device, rows)


def best_tile(
    problem: GemmProblem, device: Device, rows: int = ROWS_OF_SYMBOLIC_M
) -> TileGemmConfig | None:
    """Choose the tiles of a problem by the model; ``None`` where no tile fits the device."""
    sizes = gemm_sizes(problem, rows)
    unaligned = unaligned_operands(problem, sizes)
    splits = [1]
    if device.clusters:
        splits = [*SPLIT_K, *([UNALIGNED_SPLIT_K] if any(unaligned) else [])]
    elif problem.is_static and problem.ragged is None:
        splits = [*WORKSPACE_SPLIT_K]
    if problem.ragged is not None:  # there is a table next to the stages
        room = (device.shared_memory_per_block or STATIC_SHARED_BYTES) - problem.table_bytes
        device = replace(device, shared_memory_per_block=room)
    is_slow = not device.clusters and not any(unaligned) and has_shifted_operands(problem)
    shape = _best_shape(
        sizes,
        TileOperands.of(problem),
        device,
        unaligned,
        planar_operands(problem),
        tuple(splits),
        SHIFTED if is_slow else 1.0,
        rates_of(problem, device),
    )
    return None if shape is None else in_order(with_shape(problem, shape, sizes, device))


def with_shape(
    problem: GemmProblem, shape: TileConfig, sizes: Sizes, device: Device
) -> TileGemmConfig:
    """Configure a problem with a shape, and the blocks per SM that the model assumes."""
    resident, _ = residency(shape, sizes, device)
    return TileGemmConfig(problem, shape, min_blocks_per_sm=resident)


def in_order(config: C) -> C:
    """Order the tiles of a configuration: in groups along M, or rows of tiles one by one.

    Where few tiles lie along N and more along M, blocks that start together read the same rows of
    A. Measured on an H200, groups of 8 against 1: convolutions of 8x14x14x256 3x3 7.04 us, 5.92;
    8x7x7x512, split-K 4, 11.04, 9.56; 8x28x28x128 6.27, 5.30; products of 128 to 197 rows, which
    have more tiles along N, 4.54, 4.96 (197x768x2304); of 4096^3 188, 209. Where results are far
    more than operands, blocks that start together write adjacent pieces of rows: on an H100
    6772x82x6824 79.0 us, with a residual and GELU 127; 90.4 and 147 in groups of 8.
    """
    sizes = gemm_sizes(config.problem)
    tiles_m, tiles_n = constant(config.grid.tiles_m), config.grid.tiles_n
    is_tall = tiles_m is not None and tiles_m > tiles_n and tiles_n <= GROUPS_M[-1]
    is_wide = tiles_m is not None and sizes.m * sizes.n >= OUTPUT * sizes.k * (sizes.m + sizes.n)
    is_tall &= config.problem.ragged is None  # groups of rows have few tiles each
    return config.with_tile(group_m=GROUPS_M[0] if is_tall or is_wide else GROUPS_M[-1])


@lru_cache(maxsize=1024, typed=True)
def _best_shape(
    sizes: Sizes,
    start: TileOperands,
    device: Device,
    unaligned: tuple[bool, ...],
    planar: tuple[bool, ...],
    splits: tuple[int, ...],
    slowdown: float,
    rates: Rates,
) -> TileConfig | None:
    has_few_k = sizes.k * start.item_bytes <= FEW_K_BYTES
    spaces = (*candidates(start, any(unaligned), has_few_k), splits)
    found = tile_shapes(sizes, start, device, *spaces)

    def clocks(shape: TileConfig) -> float:
        pieces = unaligned_clocks(shape, sizes, device, unaligned) if any(unaligned) else 0.0
        pieces += planar_clocks(shape, sizes, device, planar) if any(planar) else 0.0
        pieces *= rates.own
        reduction = reduction_clocks(shape, sizes, device, rates)
        whole = estimated_clocks(shape, sizes, device, rates) - reduction + pieces
        return slowdown * whole + reduction

    estimates = [(clocks(shape), shape) for shape in found]
    least, best = min(estimates, key=lambda one: one[0], default=(0.0, None))
    if best is None or not start.is_amd or start.mma.lanes == WAVE64:
        return best
    # Of 256 registers LLVM may want more than are estimated, and spill: as fast waves with fewer.
    close = (shape for estimate, shape in estimates if estimate <= ALIKE * least)
    alike = (shape for shape in close if _block(shape) == _block(best))
    return min(alike, key=lambda shape: shape.registers_at_most)


def _block(shape: TileConfig) -> tuple[int, ...]:
    return shape.block_m, shape.block_n, shape.block_k, shape.split_k


def candidates(
    start: TileOperands, is_unaligned: bool, has_few_k: bool = False
) -> tuple[list[Tile], list[int], list[int]]:
    """List block tiles, their terms and their stages, of which the default is chosen.

    Parameters
    ----------
    is_unaligned
        Whether rows of an operand are not aligned.
    has_few_k
        Whether longer tiles would be half empty.
    """
    if start.is_amd:
        tiles, sizes_of_k = [*wave_tiles(start.mma.lanes)], [*WAVE_BLOCK_K_BYTES]
        stages = [*WAVE_STAGES]
    else:
        tiles = [*TILES, *(UNALIGNED_TILES if is_unaligned else ())]
        sizes_of_k = [*(BLOCK_K_BYTES if start.is_async else REGISTER_BLOCK_K_BYTES)]
        stages = [*(STAGES if start.is_async else REGISTER_STAGES)]
        sizes_of_k += [SHORT_BLOCK_K_BYTES] if is_unaligned or has_few_k else []
    return tiles, [size // start.item_bytes for size in sizes_of_k], stages


def tile_shapes(
    sizes: Sizes,
    start: TileOperands,
    device: Device,
    tiles: Iterable[Tile],
    block_k: Sequence[int],
    stages: Sequence[int],
    splits: Sequence[int],
) -> Iterator[TileConfig]:
    """Combine block tiles with pipelines and split-K, as far as they fit."""
    for block_m, block_n, warps_m, warps_n, warps_k in tiles:
        for deep in block_k:
            least = TileConfig(
                start,
                block_m=block_m,
                block_n=block_n,
                block_k=deep,
                warps_m=warps_m,
                warps_n=warps_n,
                warps_k=warps_k,
            )
            if not _has_whole_fragments(least, device):
                continue
            for depth, split_k in itertools.product(stages, splits):
                shape = replace(least, stages=depth, split_k=split_k)
                if fits(shape, sizes, device):
                    yield shape


def _has_whole_fragments(shape: TileConfig, device: Device) -> bool:
    """Whether warps have whole fragments, of each part of a column split, which fit registers."""
    return (
        min(shape.warp_m, shape.warp_n) >= M16
        and shape.warp_n % (shape.operands.mma.n * shape.operands.parts) == 0
        and shape.block_n % (shape.operands.panel * shape.operands.parts) == 0
        and shape.block_k // shape.operands.k_step % shape.warps_k == 0
        and LEAST_THREADS <= shape.threads <= min(MOST_THREADS, device.max_threads_per_block or 0)
        and shape.accumulators <= MOST_ACCUMULATORS
        and shape.wanted_registers <= MOST_WANTED
        and shape.registers_at_most * shape.threads <= REGISTER_FILE
    )
