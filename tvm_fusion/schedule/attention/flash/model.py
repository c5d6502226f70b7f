"""The analytical model that chooses the configuration of FlashAttention on tensor cores.

A kernel's time is estimated in cycles of a multiprocessor as

    waves * (tiles * tile + first loads and results)
    tile    of one step over keys: the longer of what the multiprocessor's blocks do with it (mma,
            fragments and softmax, which overlap in part; rescaling; barriers), and of the latency
            of one block's copies
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from tvm import DataType

from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, index, product
from ....device import Device
from ....ecg.work import at
from ....program.stage import Axis
from ...gpu.launch import STATIC_SHARED_BYTES
from ...gpu.matrix.wgmma import WARPS as WARPS_OF_GROUP
from ...gpu.memory.tma import PANEL
from ...index.design_space import default_first
from ...instructions.table import find, find_half
from .config import MAX_REGISTERS, FlashMmaConfig
from .problem import FlashProblem
from .tma.config import FlashTmaConfig, tma_configs
from .wave.config import FlashWaveConfig, wave_configs, wave_cycles

WARPS = (1, 2, 4, 8)
ROWS_OF_WARP = (16, 32)
BLOCK_N = tuple(range(16, 144, 16))
MAX_BLOCK_N = 256
STAGES = (1, 2, 3)
MAX_BLOCKS_PER_SM = 8
# With q in registers, what ptxas 13.0 made was fast but wrong where block_n is as large as a head
# (measured on an H200). It is loaded again for every tile: 22 cases were right there.
WGMMA_BY_DEFAULT = True
# Warp-specialized kernels are chosen where they were measured against the others' best,
# interleaved, on an H200: head dimensions, padded, and at least so many keys. 2x16x2048, causal: of
# 256 369 us, 144 with TMA; of 192 181, 118; of 96 185.7, 72.7; of 80 125, 69; of 64 78, 60; of 128,
# not causal, 145, 119; 1x12x1500x64 28.1, 21.0. With few keys, a block alone on its multiprocessor
# has nothing to hide its first loads behind: 64x12x197x64 40 us, 60 with TMA; 16x12x512x64 38.0,
# 46.9. Of 512 keys, wide heads are faster: 1x32x512x128 of 8 KV heads, causal, 14.3, 10.8.
TMA_LEAST_KEYS = {48: 1024, 64: 1024, 80: 1024, 96: 512, 128: 512, 192: 512, 256: 512}
MANY_WAVES = 4  # beyond which a partial last wave counts as its fraction
# Of warp-specialized kernels, fitted to 12 configurations of three shapes on an H200, within 11 %:
# operations a cycle of wgmma, cycles from one consumer's products to the next one's, of a score's
# softmax, and of the first loads.
WGMMA_RATE, MMA_ISSUE, CONSUMER_SOFTMAX, TMA_AROUND = 2800, 280, 0.138, 2800
OWN_PACE = 1.08  # how much longer tiles take without turns
# Of each score of one more masked tile, where tiles of keys do not end where blocks of queries do:
# 2x16x4096x128 with a window of 1,024 keys took 142 us with 128 keys, 181 with 160; 2x16x2048x256,
# causal, 153 with 64, 146 with 80.
MASKED = 0.03
# Of a tile whose vectors are copied under conditions, of the one or the other tensor: 4x512x256 of
# one KV head, a window of 256, took 20.6 us with halves side by side, 15.3 of one tensor (16
# queries), and 22.5 and 18.4 (64 queries).
IN_PARTS = 1.35
PACKED_KEYS = 256  # of a packed sequence, whose length is not known at compile time
RESERVED_SHARED_BYTES = 1024  # of each block, by the system
MANY, MANY_STEP = 512, 64  # symbolic lengths for which a second kernel is chosen, and tried from


def flash_mma_config(problem: FlashProblem, device: Device) -> FlashMmaConfig | None:
    """Choose the configuration that is estimated to be the fastest; ``None`` where none fits."""
    found = candidates(problem, device)
    return min(found, key=lambda c: cycles(c, problem, device), default=None)


def candidates(
    problem: FlashProblem, device: Device, sized: FlashProblem | None = None
) -> Iterator[FlashMmaConfig]:
    """Enumerate the configurations among which the default is chosen.

    Parameters
    ----------
    sized
        The problem with the lengths that it is thought to have, by default its own.
    """
    own = sized or problem
    found = (c for c in _all(problem, device) if WGMMA_BY_DEFAULT or not c.uses_wgmma)
    return (c for c in found if not isinstance(c, FlashTmaConfig) or _is_measured(c, own))


def many_queries(
    problem: FlashProblem, device: Device, few: FlashMmaConfig
) -> tuple[int, FlashMmaConfig] | None:
    """Choose a second kernel where the number of queries is symbolic.

    Few queries fill a device in small tiles alone, which read keys and values more often: of 512
    tokens, 32 heads of 64 and 2,048 keys, tiles of 16 queries took 25.6 us on an H200, tiles of 128
    9.2, of a static length.

    Parameters
    ----------
    few
        The kernel for the assumed number.

    Returns
    -------
    tuple of int and FlashMmaConfig, optional
        From how many queries on it is estimated to be faster; ``None`` where it is the same.
    """
    if constant(problem.query.extent) is not None:
        return None
    most = _of_length(problem, MANY)
    found = candidates(problem, device, most)
    best = min(found, key=lambda c: cycles(c, most, device), default=few)
    for length in range(MANY_STEP, MANY + 1, MANY_STEP):
        sized = _of_length(problem, length)
        if best != few and cycles(best, sized, device) < cycles(few, sized, device):
            return at(problem.query.extent, default=length), best
    return None


def _of_length(problem: FlashProblem, length: int) -> FlashProblem:
    """Give symbolic extents a length."""

    def sized(axis: Axis) -> Axis:
        return replace(axis, extent=index(at(axis.extent, default=length)))

    pattern = problem.pattern
    batch, key = tuple(map(sized, pattern.batch)), sized(pattern.key)
    return replace(
        problem, pattern=replace(pattern, batch=batch, key=key), query=sized(problem.query)
    )


def configs(problem: FlashProblem, device: Device) -> Iterator[FlashMmaConfig]:
    """Enumerate configurations that fit a device, the default first."""
    chosen = flash_mma_config(problem, device)
    if chosen is None:
        return
    yield from default_first(chosen, _all(problem, device))


def _is_measured(config: FlashTmaConfig, problem: FlashProblem) -> bool:
    """Whether a warp-specialized kernel is one of those that were found to be faster."""
    queries, keys = (constant(a.extent) for a in (problem.query, problem.pattern.key))
    if queries is None or keys is None or not config.is_ping_pong:
        return False
    is_plain = problem.factor is None and not _reads_scores(problem)
    widths = config.depth16, config.column16
    return is_plain and widths[0] == widths[1] and keys >= TMA_LEAST_KEYS.get(widths[0], keys + 1)


def _reads_scores(problem: FlashProblem) -> bool:
    """Whether scores are changed by what is read for each key; of each head alone is little."""
    key = problem.pattern.key.var
    return any(key in variables(i) for load in loads(problem.score.full) for i in load.indices)


def _all(problem: FlashProblem, device: Device) -> Iterator[FlashMmaConfig]:
    yield from wave_configs(problem, device)
    if find_half(device, problem.half) is None:
        return
    queries, keys = (constant(a.extent) for a in (problem.query, problem.pattern.key))
    sizes = set(BLOCK_N)
    if keys is not None:
        whole = -(-keys // 16) * 16
        sizes = {n for n in sizes if n <= whole} | ({whole} if whole <= MAX_BLOCK_N else set())
    for warps, rows, block_n, stages, in_registers, uses_wgmma in itertools.product(
        WARPS,
        ROWS_OF_WARP,
        sorted(sizes),
        STAGES if device.async_copy else STAGES[:1],  # registers hold what is on its way
        (True, False),
        (False, True),
    ):
        block_m = warps * rows
        if queries is not None and block_m > 16 and block_m >= 2 * queries:
            continue
        if keys is not None and stages > -(-keys // block_n):
            continue
        config = FlashMmaConfig(
            *(warps, rows, block_n, stages, in_registers, 1),
            *(problem.q.extent16, problem.v.extent16),
            *(DataType(problem.staged).itemsize, uses_wgmma),
            is_async=device.async_copy,
        )
        if uses_wgmma and not _fits_wgmma(config, problem, device):
            continue
        blocks = _resident(config, device)
        if blocks:
            yield replace(config, min_blocks=blocks)
        if blocks and uses_wgmma and warps == 2 * WARPS_OF_GROUP and stages == 2:
            yield replace(config, min_blocks=blocks, is_ping_pong=True)
    yield from tma_configs(problem, device)


def _fits_wgmma(config: FlashMmaConfig, problem: FlashProblem, device: Device) -> bool:
    """Whether whole warpgroups multiply whole panels."""
    return (
        config.warps % WARPS_OF_GROUP == 0
        and config.rows_of_warp == 16
        and not config.q_in_registers
        and config.depth16 % PANEL == 0
        and config.column16 % PANEL == 0
        and config.column16 <= MAX_BLOCK_N
        and find(device, "wgmma", problem.half, problem.half) is not None
    )


def _resident(config: FlashMmaConfig, device: Device) -> int:
    """Count the blocks that fit a multiprocessor at once; 0 if a block does not fit."""
    if config.shared_bytes > (device.shared_memory_per_block or STATIC_SHARED_BYTES):
        return 0
    if config.registers_needed > MAX_REGISTERS:
        return 0
    file = device.registers_per_block or 1 << 16
    shared = device.shared_memory_per_sm or 2 * STATIC_SHARED_BYTES
    by_registers = file // (-(-config.registers // 8) * 8 * config.threads)
    by_shared = shared // (config.shared_bytes + RESERVED_SHARED_BYTES)
    return min(MAX_BLOCKS_PER_SM, by_registers, by_shared)


def cycles(config: FlashMmaConfig, problem: FlashProblem, device: Device) -> float:
    """Estimate the time of the whole kernel, in cycles of a multiprocessor.

    The figures were fitted to 87 configurations of five shapes on an H200 (about 10 % rms).
    """
    pattern = problem.pattern
    heads = at(product([a.extent for a in pattern.batch]))
    queries, keys = at(problem.query.extent), at(pattern.key.extent)
    blocks = heads * -(-queries // config.block_m)
    tiles = float(-(-keys // config.block_n))
    if any(b.is_loaded and not b.is_upper for b in problem.loaded_bounds):
        is_causal = any(not b.is_loaded and b.is_upper for b in problem.score.bounds)
        seen = (PACKED_KEYS // 2 if is_causal else PACKED_KEYS) + config.block_m
        tiles = float(-(-min(keys, seen) // config.block_n))
    elif problem.skips:
        tiles = _seen_tiles(config, queries, keys)
    if isinstance(config, FlashWaveConfig):
        return wave_cycles(config, problem, device, tiles)
    width = config.depth16 + config.column16
    if isinstance(config, FlashTmaConfig):
        waves = blocks / (device.sm_count or 1)
        around = TMA_AROUND + config.block_m * width / 16
        if problem.skips and config.block_m % config.block_n:
            around += config.rows_of_warp * WARPS_OF_GROUP * config.block_n * MASKED
        tile = _tile_of_roles(config, width)
        return (waves if waves > MANY_WAVES else math.ceil(waves)) * (tiles * tile + around)
    # Of a score: products, fragments of k and v from shared memory (128 bytes a cycle), exponential
    # (16 a cycle) and arithmetic. What is not the longest of them overlaps in part: better where
    # warps have 16 rows, as they are more.
    mma, fragments = 2 * width / 2560, 2 * width / 128 / config.rows_of_warp
    if not config.q_in_registers:
        fragments += 2 * config.depth16 / 128 / config.block_n
    left = 0.36 if config.rows_of_warp == 16 else 0.68
    if config.uses_wgmma:
        mma, fragments, left = 2 * width / 4096, 0.0, 0.8
    softmax = 1 / 16 + 4.5 / 128
    score = max(mma, fragments) + left * (min(mma, fragments) + softmax)
    copied = config.block_n * width * 2 / 64
    # Statistics of the rows, and accumulators that are rescaled.
    rescale = config.block_m * (2 + config.column16 / 128)
    busy = config.block_m * config.block_n * score + 0.2 * copied + rescale
    sms = device.sm_count or 1
    at_once = min(config.min_blocks, -(-blocks // sms))
    barriers = 400 + (200 if config.stages == 1 and tiles > 1 else 0)
    tile = max(
        busy * (at_once + 0.1) + barriers / min(at_once, 3), 360 + 3 * (config.block_n + width)
    )
    if any(len(x.loads) > 1 for x in (problem.q, problem.k, problem.v)):
        tile *= IN_PARTS
    waves = blocks / (sms * at_once)
    if config.block_n > max(BLOCK_N) and waves > MANY_WAVES:
        # One long tile: no copies overlap with products of the same block (64x12x197x64: 50.0
        # us with a tile of 208 keys, 40.7 with two of 112).
        tile += 0.8 * copied * at_once
    around = 1500 + config.block_m * width / 16 * at_once  # the first loads, and the results
    return (waves if waves > MANY_WAVES else math.ceil(waves)) * (tiles * tile + around)


def _seen_tiles(config: FlashMmaConfig, queries: int, keys: int) -> float:
    """Count the steps over keys of a block of causal attention, on average: whole ones each.

    Rows of several heads that share keys lie one behind the other: each head begins anew.
    """
    queries = min(queries, keys)
    count = -(-queries // config.block_m)
    ends = (keys - queries + (i + 1) * config.block_m for i in range(count))
    return sum(-(-min(max(end, 1), keys) // config.block_n) for end in ends) / count


def _tile_of_roles(config: FlashTmaConfig, width: int) -> float:
    """Estimate a step over keys of consumers that take turns with the tensor cores.

    Either these are always taken, or a consumer comes back to them as soon as it has computed
    softmax.
    """
    scores = config.rows_of_warp * WARPS_OF_GROUP * config.block_n
    mma_clocks = scores * 2 * width / WGMMA_RATE + MMA_ISSUE
    softmax = scores * CONSUMER_SOFTMAX
    tile = max(config.consumers * mma_clocks, mma_clocks + softmax)
    return tile if config.is_ping_pong else OWN_PACE * tile
