"""What unaligned rows and planes of pixels add to a tiled GEMM's time, and tiles for the former.

Tiles of rows that are not aligned are copied in small pieces, or go through registers as shifted
words (tile/operand.py); more splits and other tiles can be faster then (1980x92x2410: 39.0 us with
tiles of 64x128x128, 15.4 with 64x64x32).
"""

import itertools

from ....device import Device
from ...gpu.threads.warp import LANES
from ..tile.config import TileGemmConfig
from ..tile.operand.chunks import OperandChunks
from ..tile.problem import GemmProblem, Sizes, gemm_sizes
from ..tile.shape import TileConfig
from .model import k_tiles, residency

# Clocks of an element, by a thread alone, and where eight warps or more of a multiprocessor take
# turns.
UNALIGNED_ALONE, UNALIGNED_BUSY = 50.0, 12.0
UNALIGNED_TILES = (
    (128, 128, 2, 4, 1),
    (64, 128, 2, 2, 2),
    (64, 64, 1, 2, 2),
    (32, 128, 1, 2, 2),
    (32, 32, 1, 2, 2),
)
UNALIGNED_SPLIT_K = 8
# Few rows, or few terms; of more, the estimate chose 32.4 us where 27.8 can be had (276x1476x6602).
UNALIGNED_ROWS, UNALIGNED_TERMS = 32, 128
# How many times as long as their estimate blocks take whose words threads shift, whatever split-K
# is: 77x7207x4210 of bfloat16 as sm_80 code on an H200 took 154 us with one rank, 144 with 3, 127
# with 4, 122 with 8, of which all but the sum of ranks is 3.9 to 4.0 times what is estimated.
SHIFTED = 3.95
# Copies of 4 or 8 bytes by cp.async that a multiprocessor makes in a clock, once its first stages
# are full: on an H200 4945x2306x46 took 82.6 us and 2317x6074x147 225 us, 0.8 and 1.0 of 4 bytes.
NARROW_COPIES = 1.0
# The same of elements of planes, which neighbouring threads load next to each other: a load, its
# address and condition. Of the issue rates of a multiprocessor; nothing was measured.
PLANAR_ALONE, PLANAR_BUSY = 12.0, 6.0


def planar_operands(problem: GemmProblem) -> tuple[bool, bool]:
    """Tell of A and B whether their channels are planes of pixels."""
    a, b = (OperandChunks(problem, is_a).is_planar for is_a in (True, False))
    return a, b


def planar_clocks(
    shape: TileConfig, sizes: Sizes, device: Device, planar: tuple[bool, ...]
) -> float:
    """Estimate how long tiles of planes take on their way to shared memory."""
    resident, waves = residency(shape, sizes, device)
    elements = shape.block_k * sum(itertools.compress((shape.block_m, shape.block_n), planar))
    alone = PLANAR_ALONE * elements / shape.threads
    busy = PLANAR_BUSY * resident * elements / (4 * LANES)
    return waves * k_tiles(shape, sizes) * max(alone, busy)


def unaligned_operands(problem: GemmProblem, sizes: Sizes) -> tuple[bool, ...]:
    """Tell of A and B whether rows are not aligned; of larger products it makes no difference."""
    if sizes.m > UNALIGNED_ROWS and sizes.k > UNALIGNED_TERMS:
        return ()
    sides = (OperandChunks(problem, is_a) for is_a in (True, False))
    return tuple(
        x.layout.is_shifted or (x.is_copied and x.layout.lanes < problem.chunk) for x in sides
    )


def has_shifted_operands(problem: GemmProblem) -> bool:
    """Whether threads shift the words of A or of B."""
    return any(OperandChunks(problem, is_a).layout.is_shifted for is_a in (True, False))


def narrow_copy_clocks(config: TileGemmConfig, device: Device) -> float:
    """Estimate what copies of less than 16 bytes take once the first stages are full."""
    sizes, copies = gemm_sizes(config.problem), 0
    for is_a, rows in ((True, config.tile.block_m), (False, config.tile.block_n)):
        chunks = OperandChunks(config.problem, is_a)
        if chunks.is_copied and chunks.layout.lanes < config.problem.chunk:
            copies += rows * config.tile.block_k // chunks.layout.lanes
    resident, waves = residency(config.tile, sizes, device)
    steps = max(0, k_tiles(config.tile, sizes) - (config.tile.stages - 1))
    return waves * resident * steps * copies / NARROW_COPIES


def unaligned_clocks(
    shape: TileConfig, sizes: Sizes, device: Device, unaligned: tuple[bool, ...]
) -> float:
    """Estimate how long tiles of unaligned rows take on their way to shared memory."""
    resident, waves = residency(shape, sizes, device)
    return waves * unaligned_block_clocks(shape, sizes, resident, unaligned)


def unaligned_block_clocks(
    shape: TileConfig, sizes: Sizes, resident: int, unaligned: tuple[bool, ...]
) -> float:
    """Estimate the same of one block, among so many of its multiprocessor."""
    rows = (shape.block_m, shape.block_n)
    elements = shape.block_k * sum(itertools.compress(rows, unaligned))
    alone = UNALIGNED_ALONE * elements / shape.threads
    busy = UNALIGNED_BUSY * resident * elements / (4 * LANES)
    return k_tiles(shape, sizes) * max(alone, busy)
