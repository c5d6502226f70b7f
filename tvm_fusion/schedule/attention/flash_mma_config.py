"""Configuration of FlashAttention on tensor cores, as plain data, and its cost on a device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.loops import constant, product
from ...device import Device
from ...ecg.work import at
from ..gpu.launch import STATIC_SHARED_BYTES
from ..gpu.mma import WARP, mma_atom
from ..gpu.swizzle import SwizzledRows
from .flash_problem import FlashProblem

WARPS = (1, 2, 3, 4, 5, 6, 7, 8)
ROWS_OF_WARP = (16, 32)
BLOCK_N = (16, 32, 64, 128)
STAGES = (1, 2, 3)
MAX_BLOCKS_PER_SM = 8
MAX_REGISTERS = 255  # of a thread
RESERVED_SHARED_BYTES = 1024  # of each block, by the system
ADDRESS_REGISTERS = 56  # of a thread: addresses, statistics, loop counters, fragments in flight


@dataclass(frozen=True)
class FlashMmaConfig:
    """Tiles of a block, and what it keeps where.

    Attributes
    ----------
    warps : int
        Of a block.
    rows_of_warp : int
        Queries of a warp: 16 or 32.
    block_n : int
        Keys of a tile.
    stages : int
        Tiles of the ring in shared memory.
    q_in_registers : bool
        Whether fragments of q are loaded once, not for every tile.
    min_blocks : int
        Blocks that a multiprocessor holds at once: the launch bound.
    depth16, column16 : int
        Elements of a key and of a value, padded to whole fragments.
    staged_bytes : int
        Of an element of the result in shared memory.
    """

    warps: int
    rows_of_warp: int
    block_n: int
    stages: int
    q_in_registers: bool
    min_blocks: int
    depth16: int
    column16: int
    staged_bytes: int

    @property
    def block_m(self) -> int:
        """Queries of a block."""
        return self.warps * self.rows_of_warp

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    @property
    def m16(self) -> int:
        """Fragments of 16 rows of a warp."""
        return self.rows_of_warp // 16

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread: of its rows of the result, and of the scores of a tile."""
        return self.m16 * (self.column16 + self.block_n) // 2

    @property
    def registers(self) -> int:
        """Registers of a thread, roughly."""
        q = self.m16 * self.depth16 // 4 if self.q_in_registers else 4 * self.m16
        return min(MAX_REGISTERS, self.accumulators + q + ADDRESS_REGISTERS)

    @property
    def q_rows(self) -> SwizzledRows:
        """The queries in shared memory."""
        return SwizzledRows(0, self.depth16 // 8)

    def k_rows(self) -> SwizzledRows:
        """The keys of all stages, behind the queries."""
        return SwizzledRows(self.q_rows.size(self.block_m), self.depth16 // 8)

    def v_rows(self) -> SwizzledRows:
        """The values of all stages, behind the keys."""
        k = self.k_rows()
        return SwizzledRows(k.first + k.size(self.stages * self.block_n), self.column16 // 8)

    @property
    def staged_pitch(self) -> int:
        """Vectors from one row of the result to the next in shared memory: an odd number."""
        return self.column16 * self.staged_bytes // 16 | 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; results are staged where operands were."""
        v = self.v_rows()
        operands = 16 * (v.first + v.size(self.stages * self.block_n))
        return max(operands, 16 * self.block_m * self.staged_pitch)


def flash_mma_config(problem: FlashProblem, device: Device) -> FlashMmaConfig | None:
    """Choose the configuration that is estimated to be the fastest; ``None`` where none fits."""
    return min(_all(problem, device), key=lambda c: _cycles(c, problem, device), default=None)


def configs(problem: FlashProblem, device: Device) -> Iterator[FlashMmaConfig]:
    """Enumerate configurations that fit a device, the default first.

    Parameters
    ----------
    problem : FlashProblem
        What the kernel computes.
    device : Device
        An NVIDIA GPU.
    """
    chosen = flash_mma_config(problem, device)
    if chosen is None:
        return
    yield chosen
    yield from (c for c in _all(problem, device) if c != chosen)


def _all(problem: FlashProblem, device: Device) -> Iterator[FlashMmaConfig]:
    if not device.async_copy or mma_atom(device, problem.half) is None:
        return
    queries, keys = (constant(a.extent) for a in (problem.pattern.query, problem.pattern.key))
    depth, column = problem.q.extent16, problem.v.extent16
    staged_bytes = 4 if problem.staged == "float32" else 2
    for warps, rows, block_n, stages, in_registers in itertools.product(
        WARPS, ROWS_OF_WARP, BLOCK_N, STAGES, (True, False)
    ):
        if queries is not None and (warps > 1 or rows > 16) and warps * rows >= 2 * max(queries, 8):
            continue
        if keys is not None and block_n > 16 and block_n >= 2 * keys:
            continue
        if keys is not None and stages > 1 and (stages - 1) * block_n >= keys:
            continue
        config = FlashMmaConfig(
            warps, rows, block_n, stages, in_registers, 1, depth, column, staged_bytes
        )
        blocks = _resident(config, device)
        if blocks:
            yield FlashMmaConfig(
                warps, rows, block_n, stages, in_registers, blocks, depth, column, staged_bytes
            )


def _resident(config: FlashMmaConfig, device: Device) -> int:
    """Count the blocks that fit a multiprocessor at once; 0 if a block does not fit."""
    if config.shared_bytes > (device.shared_memory_per_block or STATIC_SHARED_BYTES):
        return 0
    needed = config.registers
    if needed > MAX_REGISTERS or (needed == MAX_REGISTERS and _overflows(config)):
        return 0
    file = device.registers_per_block or 1 << 16
    shared = device.shared_memory_per_sm or 2 * STATIC_SHARED_BYTES
    by_registers = file // (-(-needed // 8) * 8 * config.threads)
    by_shared = shared // (config.shared_bytes + RESERVED_SHARED_BYTES)
    return min(MAX_BLOCKS_PER_SM, by_registers, by_shared)


def _overflows(config: FlashMmaConfig) -> bool:
    q = config.m16 * config.depth16 // 4 if config.q_in_registers else 4 * config.m16
    return config.accumulators + q + ADDRESS_REGISTERS > MAX_REGISTERS


def _cycles(config: FlashMmaConfig, problem: FlashProblem, device: Device) -> float:
    """Estimate the time of the whole kernel, in cycles of a multiprocessor.

    The figures were fitted to 51 configurations of five shapes on an H200 (within 25 %).
    """
    pattern = problem.pattern
    heads = at(product([a.extent for a in pattern.batch]))
    queries, keys = at(pattern.query.extent), at(pattern.key.extent)
    blocks = heads * -(-queries // config.block_m)
    tiles = float(-(-keys // config.block_n))
    if problem.skips:
        tiles = (tiles + config.block_m / config.block_n) / 2
    width = config.depth16 + config.column16
    # Of a score: mma.sync, fragments of k and v from shared memory (128 bytes a cycle), exponential
    # (16 a cycle) and arithmetic.
    mma = 2 * width / 2560
    fragments = 2 * width / 128 / config.rows_of_warp
    if not config.q_in_registers:
        fragments += 2 * config.depth16 / 128 / config.block_n
    softmax = 1 / 16 + 4.5 / 128
    # Warps of 16 rows are more, and overlap better.
    overlap = 0.55 if config.rows_of_warp == 16 else 0.95
    score = max(mma, fragments) + overlap * (min(mma, fragments) + softmax)
    loads = config.block_n * width * 2 / 64
    busy = 0.85 * config.block_m * config.block_n * score + 0.35 * loads
    sms = device.sm_count or 1
    at_once = min(config.min_blocks, -(-blocks // sms))
    barriers = 1000 if config.stages == 1 and tiles > 1 else 500
    tile = max(busy * at_once + barriers / at_once, 700 + 3 * (config.block_n + width))
    waves = blocks / (sms * at_once)
    around = 2500 + config.block_m * width / 16 * at_once  # the first loads, and the results
    return (waves if waves > 4 else math.ceil(waves)) * (tiles * tile + around)
