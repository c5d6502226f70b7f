"""The analytical model that chooses a tiled GEMM's configuration.

A configuration's time is estimated in clocks of a multiprocessor as the longer, and an eighth of
the shorter, of

    memory   launch + bytes of A, B and C / what memory delivers
    tiles    launch + waves * (k_tiles * step + epilogue)
    step     the longer of: the blocks of a multiprocessor, each with the slowest of mma, shared
             memory and L2; one block alone, by the latency of its copies and of its k16

Fitted to 117 measured times of 19 products, it is off by 9 % (root mean square of logarithms), and
what it picks is 2 % slower than the best measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tvm import tirx

from ...core.expressions import variables
from ...core.loops import constant, product
from ...device import Device
from ...ecg.work import at
from ...program.stage import Axis
from ..gpu.launch import STATIC_SHARED_BYTES
from ..gpu.mma import FLOAT8_TYPES, GROUPS, HALF_TYPES, SUM_TYPES, WARP, find_atom
from .gemm_view import GemmView, gemm_view
from .operands import SumOfProducts
from .tile_gemm_config import TileGemmConfig, narrow_operand, narrowed
from .tile_operand import OperandTile
from .tile_shape import M16, REGISTER_FILE, TileShape

LEAST_ROWS, LEAST_COLUMNS, LEAST_K = 9, 8, 16  # of a tile that is worth its instructions
ROWS_OF_SYMBOLIC_M = 512

Tile = tuple[int, int, int, int, int]
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
STAGES = (3, 4, 6, 8)
SPLIT_K = (1, 2, 4)
GROUPS_M = (1, 8)
LEAST_THREADS, MOST_THREADS, MOST_ACCUMULATORS = 64, 512, 128
MOST_WANTED = 250  # registers of a thread
RESERVED_SHARED = 1024  # of every block, by the device
# Tiles of rows that are not aligned are copied in small pieces, or go through registers as shifted
# words: clocks of an element, by a thread alone, and where eight warps or more of a multiprocessor
# take turns. Other tiles and more splits are considered then (1980x92x2410: 39.0 us with tiles of
# 64x128x128, 15.4 with 64x64x32).
UNALIGNED_ALONE, UNALIGNED_BUSY = 50.0, 25.0
UNALIGNED_TILES = (
    (64, 128, 2, 2, 2),
    (64, 64, 1, 2, 2),
    (32, 128, 1, 2, 2),
    (32, 32, 1, 2, 2),
)
UNALIGNED_BLOCK_K_BYTES, UNALIGNED_SPLIT_K = 64, 8
# Few rows, or few terms; of more, the estimate chose 32.4 us where 27.8 can be had (276x1476x6602).
UNALIGNED_ROWS, UNALIGNED_TERMS = 32, 128


@dataclass(frozen=True)
class Rates:
    """What a multiprocessor does, as fitted to measured times on an H200.

    Attributes
    ----------
    mma : float
        Multiply-adds of half types on tensor cores by ``mma.sync``, in a clock; twice as many of
        bytes, half as many of float32.
    shared : float
        Bytes from and to shared memory in a clock.
    l2 : float
        Bytes from L2 in a clock.
    dram : float
        Bytes from memory in a clock, all multiprocessors busy.
    latency : float
        Clocks from the issue of a copy to its arrival.
    step : float
        Clocks of a k16 that no other warp hides: ldmatrix, mma, a share of a barrier.
    split : float
        The same of float32 that is split, beside its products: 24 instructions for each four.
    of_split, of_float8 : float
        How much longer products take of split float32, and of float8 where ``mma.sync`` converts
        it: from compute capability 9.0 on.
    epilogue, element : float
        Clocks of an epilogue, and of each of a block's elements beside.
    cluster : float
        Clocks of barriers between the blocks of a cluster, and of their launch, of each doubling.
    launch : float
        Clocks of a launch until the first copies arrive.
    """

    mma: float = 1025.0
    shared: float = 128.0
    l2: float = 45.0
    dram: float = 18.4
    latency: float = 1465.0
    step: float = 30.0
    split: float = 200.0
    of_split: float = 1.16
    of_float8: float = 2.8
    epilogue: float = 55.0
    element: float = 0.38
    cluster: float = 2300.0
    launch: float = 3600.0


RATES = Rates()


class Sizes(NamedTuple):
    """How large a product is: matrices, and rows, columns and terms of each."""

    batch: int
    m: int
    n: int
    k: int


def tile_gemm_config(
    contraction: SumOfProducts, device: Device, rows: int = ROWS_OF_SYMBOLIC_M
) -> TileGemmConfig | None:
    """Configure a tiled GEMM for tensor cores; ``None`` where the device or the product has none.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    device : Device
        A GPU.
    rows : int
        A guess of M where it is symbolic.
    """
    problem = gemm_problem(contraction, device)
    return None if problem is None else best_tile(problem, device, rows)


def best_tile(
    problem: TileGemmConfig, device: Device, rows: int = ROWS_OF_SYMBOLIC_M
) -> TileGemmConfig | None:
    """Choose the tiles of a problem by the model; ``None`` where no tile fits the device."""
    sizes = gemm_sizes(problem, rows)
    unaligned = _unaligned(problem, sizes)
    shape = _best_shape(sizes, TileShape.of(problem), device, unaligned)
    return None if shape is None else replace(problem, **asdict(shape))


def _unaligned(problem: TileGemmConfig, sizes: Sizes) -> tuple[bool, ...]:
    """Tell of A and B whether rows are not aligned; of larger products it makes no difference."""
    if sizes.m > UNALIGNED_ROWS and sizes.k > UNALIGNED_TERMS:
        return ()
    tiles = (OperandTile(problem, is_a) for is_a in (True, False))
    return tuple(t.is_shifted or (t.is_copied and t.lanes < problem.chunk) for t in tiles)


@lru_cache(maxsize=1024)
def _best_shape(
    sizes: Sizes, start: TileShape, device: Device, unaligned: tuple[bool, ...]
) -> TileShape | None:
    tiles, sizes_of_k, splits = [*TILES], [*BLOCK_K_BYTES], [*SPLIT_K]
    if any(unaligned):
        tiles += UNALIGNED_TILES
        sizes_of_k.append(UNALIGNED_BLOCK_K_BYTES)
        splits.append(UNALIGNED_SPLIT_K)
    block_k = [size // start.item_bytes for size in sizes_of_k]
    spaces = (tiles, block_k, STAGES, splits if device.clusters else SPLIT_K[:1])
    found = tile_shapes(sizes, start, device, *spaces)

    def clocks(shape: TileShape) -> float:
        pieces = _unaligned_clocks(shape, sizes, device, unaligned)
        return estimated_clocks(shape, sizes, device) + pieces

    return min(found, key=clocks, default=None)


def _unaligned_clocks(
    shape: TileShape, sizes: Sizes, device: Device, unaligned: tuple[bool, ...]
) -> float:
    """Estimate how long tiles of unaligned rows take on their way to shared memory."""
    resident, waves = _residency(shape, sizes, device)
    rows = (shape.block_m, shape.block_n)
    elements = shape.block_k * sum(itertools.compress(rows, unaligned))
    alone = UNALIGNED_ALONE * elements / shape.threads
    busy = UNALIGNED_BUSY * resident * elements / (4 * WARP)
    return waves * _k_tiles(shape, sizes) * max(alone, busy)


def tile_shapes(
    sizes: Sizes,
    start: TileShape,
    device: Device,
    tiles: Iterable[Tile],
    block_k: Sequence[int],
    stages: Sequence[int],
    splits: Sequence[int],
) -> Iterator[TileShape]:
    """Combine block tiles with pipelines and split-K, as far as they fit."""
    for block_m, block_n, warps_m, warps_n, warps_k in tiles:
        for deep in block_k:
            least = replace(
                start,
                block_m=block_m,
                block_n=block_n,
                block_k=deep,
                warps_m=warps_m,
                warps_n=warps_n,
                warps_k=warps_k,
            )
            if not _has_whole_fragments(least):
                continue
            for depth, split_k in itertools.product(stages, splits):
                shape = replace(least, stages=depth, split_k=split_k)
                if fits(shape, sizes, device):
                    yield shape


def gemm_problem(
    contraction: SumOfProducts, device: Device, least_rows: int = LEAST_ROWS
) -> TileGemmConfig | None:
    """Read a product of types that tensor cores multiply as a tiled GEMM, of any tile.

    Parameters
    ----------
    contraction : SumOfProducts
        The product.
    device : Device
        A GPU.
    least_rows : int
        With fewer there is none.
    """
    if contraction.dtype not in SUM_TYPES:
        return None
    if device.kind != "cuda" or not device.async_copy:
        return None
    initial = contraction.initial
    if not isinstance(initial, tirx.FloatImm | tirx.IntImm) or float(initial.value) != 0:
        return None
    view = gemm_view(contraction, allows_conditions=True)
    if view is None or not view.m_axes:
        return None
    if any(constant(a.extent) is None for a in (*view.n_axes, *view.k_axes)):
        return None
    sizes = gemm_sizes(view)
    if sizes.m < least_rows or sizes.n < LEAST_COLUMNS or sizes.k < LEAST_K:
        return None
    own = {a.var for a in (*view.batch, *view.m_axes, *view.n_axes, *view.k_axes)}
    symbols = [v for x in (view.a, view.b) for v in variables(x) - own]
    if symbols:
        return None
    found = (_typed(view, contraction, types, device) for types in _types(view))
    return next((start for start in found if start is not None), None)


def _types(view: GemmView) -> Iterator[tuple[str, str]]:
    """List types of A and B that hold their values, the narrowest first.

    float8 is exact in float16, whose tensor cores transpose a tile, and which every device has.
    """
    a, b = (str(narrow_operand(x).ty.dtype) for x in (view.a, view.b))
    yield a, b
    halves = {x for x in (a, b) if x in HALF_TYPES}
    if {a, b} <= {*FLOAT8_TYPES, *halves} and len(halves) < 2:
        half = halves.pop() if halves else "float16"
        if (half, half) != (a, b):
            yield half, half


def _typed(
    view: GemmView, contraction: SumOfProducts, types: tuple[str, str], device: Device
) -> TileGemmConfig | None:
    """Read a product in types of A and B; ``None`` where no instruction multiplies them."""
    atom = find_atom(device, "mma.sync", *types)
    a, b = (narrowed(x, dtype) for x, dtype in zip((view.a, view.b), types, strict=True))
    if atom is None or atom.sums != contraction.dtype or a is None or b is None:
        return None
    n_axes, parts = _without_parts(view, contraction)
    if not n_axes or (parts > 1 and atom.dtype not in HALF_TYPES):
        return None
    given = (view.batch, view.m_axes, n_axes, view.k_axes, a, b)
    block_k = BLOCK_K_BYTES[0] // atom.item_bytes
    shape = TileShape(*types, 64, 64, block_k, 2, 2, parts=parts)
    start = TileGemmConfig(*given, **asdict(shape), contraction=contraction)
    tiles = [OperandTile(start, is_a) for is_a in (True, False)]
    staged_a, staged_b = (not tile.is_copied for tile in tiles)
    if atom.dtype == "tfloat32":
        if any(tile.is_gathered for tile in tiles):
            return None  # most convolutions: CUDA cores
        start = replace(start, staged_a=staged_a, staged_b=staged_b)
        return start if device.rounds_to_tf32 else replace(start, products=3)
    if atom.dtype == "float8" and (staged_a or staged_b):
        return None  # float16 has vector loads, and transposes tiles
    return replace(start, staged_a=staged_a, staged_b=staged_b)


def _without_parts(view: GemmView, contraction: SumOfProducts) -> tuple[tuple[Axis, ...], int]:
    """Give the axes of N without that of the parts of a column split, and how many parts it has.

    No axes where the split is not one of the last axis of N, or has panels across its periods.
    """
    split = contraction.column_split
    if split is None:
        return view.n_axes, 1
    if split.position is not view.n_axes[-1] or split.part not in view.n_axes:
        return (), 1
    left = tuple(a for a in view.n_axes if a is not split.part)
    return () if len(left) > 1 and split.width % GROUPS else left, split.count


def _has_whole_fragments(shape: TileShape) -> bool:
    """Whether warps have whole fragments, of each part of a column split, which fit registers."""
    return (
        min(shape.warp_m, shape.warp_n) >= M16
        and shape.warp_n % (GROUPS * shape.parts) == 0
        and shape.block_k // shape.k_step % shape.warps_k == 0
        and LEAST_THREADS <= shape.threads <= MOST_THREADS
        and shape.accumulators <= MOST_ACCUMULATORS
        and shape.wanted_registers <= MOST_WANTED
        and shape.registers * shape.threads <= REGISTER_FILE
    )


def fits(shape: TileShape, sizes: Sizes, device: Device) -> bool:
    """Whether a block is launched, and its pipeline and the blocks of a cluster have tiles of K."""
    shared = device.shared_memory_per_block or STATIC_SHARED_BYTES
    k_tiles = _k_tiles(shape, sizes)
    return (
        shape.shared_bytes <= shared
        and shape.stages <= max(3, k_tiles + 1)
        and (shape.stages <= 3 or not (shape.staged_a or shape.staged_b))
        and (shape.split_k == 1 or k_tiles >= 2)
    )


def _k_tiles(shape: TileShape, sizes: Sizes) -> int:
    return -(-sizes.k // (shape.block_k * shape.split_k))


def blocks_per_sm(shape: TileShape, device: Device) -> int:
    """Count the blocks that a multiprocessor holds at once."""
    shared = device.shared_memory_per_sm or STATIC_SHARED_BYTES
    threads = (device.max_threads_per_sm or 1024) // shape.threads
    registers = REGISTER_FILE // (shape.registers * shape.threads)
    memory = shared // (shape.shared_bytes + RESERVED_SHARED)
    return max(1, min(threads, registers, memory))


def _residency(shape: TileShape, sizes: Sizes, device: Device) -> tuple[int, int]:
    """Count blocks that share the busiest multiprocessor, and how many rounds of them there are."""
    sms = device.sm_count or 1
    tiles = -(-sizes.m // shape.block_m) * -(-sizes.n // shape.block_n)
    blocks = sizes.batch * tiles * shape.split_k
    resident = min(blocks_per_sm(shape, device), -(-blocks // sms))
    return resident, -(-blocks // (sms * resident))


def estimated_clocks(shape: TileShape, sizes: Sizes, device: Device, rates: Rates = RATES) -> float:
    """Estimate the time of a product, in clocks of a multiprocessor."""
    sms = device.sm_count or 1
    batch, m, n, k = sizes
    resident, waves = _residency(shape, sizes, device)
    stage, steps = shape.stage_bytes, shape.block_k // shape.k_step
    warps = shape.warps_m * shape.warps_n
    mma = shape.block_m * shape.block_n * steps * 16 * shape.products / rates.mma
    if shape.products > 1:
        mma *= rates.of_split
    elif shape.a_dtype in FLOAT8_TYPES and device.tma:
        mma *= rates.of_float8
    read = warps * (shape.warp_m + shape.warp_n) * shape.block_k * shape.item_bytes
    busy = resident * max(mma, (read + stage) / rates.shared, stage / rates.l2)
    step = rates.step
    if shape.products > 1:
        step = rates.split + mma / steps / (shape.warps_m * shape.warps_n) * 4
    alone = max(step * steps / shape.warps_k, rates.latency / (shape.stages - 1))
    epilogue = rates.epilogue
    epilogue += rates.element * resident * shape.block_m * shape.block_n / shape.split_k
    if shape.split_k > 1:
        epilogue += rates.cluster * math.log2(shape.split_k)
    total = waves * (_k_tiles(shape, sizes) * max(busy, alone) + epilogue) + rates.launch
    read = shape.item_bytes * (m * k + k * n)
    dram = batch * (read + 4 * m * n) / (rates.dram * sms) + rates.launch
    # They overlap, not quite: the shorter counts a little, too.
    return max(total, dram) + min(total, dram) / 8


def gemm_sizes(view: GemmView, rows: int = ROWS_OF_SYMBOLIC_M) -> Sizes:
    """Count; a symbolic M is guessed."""
    m = constant(product([a.extent for a in view.m_axes]))
    batch = math.prod(at(a.extent) for a in view.batch)
    n, k = (int(product([a.extent for a in axes])) for axes in (view.n_axes, view.k_axes))
    if isinstance(view, TileGemmConfig):
        n *= view.parts
    return Sizes(batch, rows if m is None else m, n, k)
