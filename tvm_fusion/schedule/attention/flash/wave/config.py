"""Configuration of FlashAttention on AMD's matrix cores, as plain data; the space, and its model.

Clocks are the instruction set guides': no device was there. A tile takes

    products, softmax, LDS of all waves of a compute unit: the longest, and what does not overlap
    of the others, where a SIMD has too few waves
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .....core.tir.loops import constant, product
from .....device import Device
from .....ecg.work import at
from ....gpu.launch import STATIC_SHARED_BYTES
from ....gpu.memory.swizzle import VECTOR, WaveRows
from ....instructions.amd import FAMILIES, HALF_FLOP_PER_CLOCK
from ....instructions.instruction import Instruction
from ....instructions.layout import Layout, layout
from ....instructions.table import find_of_fragments
from ..config import FlashMmaConfig
from ..problem import FlashProblem

RUN = VECTOR  # neighbouring keys, or columns of a value, that a lane has
SLOTS = 2  # of fragments: those that are multiplied, and the next ones
FRAGMENT_REGISTERS = 16  # of a lane, on their way at once
MANY_ACCUMULATORS = 128  # of a lane, with which one fragment at a time has room
MOST_REGISTERS = 256  # of a lane: what vector instructions address
# By lanes: addresses, statistics, conditions.
OTHER_REGISTERS = {64: 40, 32: 68}
WAVES = (1, 2, 4, 8)
ROWS_OF_WAVE = (16, 32)
COLUMN_PARTS = (1, 2)
BLOCK_N = (16, 32, 64, 128)
# Of a compute unit, by lanes of a wave: SIMDs, registers of a lane of each, clocks in which a SIMD
# issues an instruction; LDS bytes a clock.
_SIMDS, _FILE, _ISSUE, _LDS_BYTES = {64: 4, 32: 2}, {64: 512, 32: 1536}, {64: 4, 32: 1}, 128
_SOFTMAX = 10  # instructions of a score, an exponential counts four
_TILE, _AROUND, _LATENCY = 150, 2000, 1000  # clocks of barriers, of first loads, until loads arrive
_MOST_BLOCKS = 8


@dataclass(frozen=True)
class FlashWaveConfig(FlashMmaConfig):
    """Tiles of a block of waves."""

    instruction: Instruction = field(kw_only=True)  # the matrix instruction: MFMA or WMMA
    # Waves that share rows: each computes all of their scores, and a part of the columns of their
    # results, where one has no registers for the whole.
    column_parts: int = 1

    @property
    def block_m(self) -> int:
        """Queries of a block."""
        return self.warps // self.column_parts * self.rows_of_warp

    @property
    def own_columns(self) -> int:
        """Columns of the results of a wave."""
        return self.column16 // self.column_parts

    @property
    def lanes(self) -> int:
        """Threads of a wave."""
        return self.instruction.lanes

    @property
    def cell(self) -> Layout:
        """Where scores of 16 rows lie: each lane has neighbouring columns of one row."""
        rows = self.instruction.m
        return layout([(rows, 1, 0), (self.lanes // rows, 0, RUN)], [(RUN, 0, 1)])

    @property
    def copies(self) -> int:
        """How many lanes hold the same row of a fragment."""
        mma = self.instruction
        return self.lanes * mma.k_per_lane // (mma.m * mma.k)

    @property
    def ahead(self) -> int:
        """Fragments of a tile that are loaded at once."""
        each = RUN * self.copies // 2
        return 1 if self.accumulators > MANY_ACCUMULATORS else FRAGMENT_REGISTERS // each

    @property
    def q_fragments(self) -> int:
        """Steps of the head dimension whose fragments of q are in registers at once."""
        width = self.cell.shape[1]
        if self.q_in_registers:
            return self.depth16 // width
        of_step = self.block_n // width * RUN // self.instruction.c.per_lane
        return SLOTS * max(1, self.ahead // of_step)

    @property
    def accumulators(self) -> int:
        """Accumulators of a lane."""
        return self.rows_of_warp * (self.own_columns + self.block_n) // self.lanes

    @property
    def registers(self) -> int:
        """Registers of a lane, roughly."""
        return min(MOST_REGISTERS, self.registers_needed)

    @property
    def registers_needed(self) -> int:
        """The same, were there more."""
        kept = self.q_fragments * self.cell.shape[1]
        operands = self.rows_of_warp * (kept + self.block_n) * self.copies // self.lanes // 2
        operands += SLOTS * self.ahead * RUN * self.copies // 2
        # Long rows are at more addresses.
        wide = max(0, self.depth16 + self.column16 - 256) // 16 if self.copies > 1 else 0
        others = OTHER_REGISTERS[self.lanes] + wide
        return self.accumulators + operands + self.held_registers + others

    @property
    def q_rows(self) -> WaveRows:
        """The queries in LDS."""
        return WaveRows(0, self.depth16 // VECTOR)

    def k_rows(self) -> WaveRows:
        """Lay out the keys, in the place of queries that lie in registers."""
        first = 0 if self.q_in_registers else self.q_rows.size(self.block_m)
        return WaveRows(first, self.depth16 // VECTOR)

    def v_rows(self) -> WaveRows:
        """Lay out the values behind the keys, a row for each of their columns."""
        k = self.k_rows()
        return WaveRows(k.first + k.size(self.block_n), self.block_n // VECTOR)

    @property
    def staged_lanes(self) -> int:
        """Elements of a vector of the results."""
        return RUN

    @property
    def shared_bytes(self) -> int:
        """LDS of a block."""
        v = self.v_rows()
        vectors = max(v.first + v.size(self.column16), self.q_rows.size(self.block_m))
        return 2 * VECTOR * vectors


def wave_configs(problem: FlashProblem, device: Device) -> Iterator[FlashWaveConfig]:
    """Enumerate the configurations that fit an AMD GPU; none of others."""
    row = find_of_fragments(device, problem.half, problem.half)
    if row is None or row.family not in FAMILIES:
        return
    queries, keys = (constant(a.extent) for a in (problem.query, problem.pattern.key))
    step = RUN * row.lanes // row.m
    depth, column = (-(-x.extent // step) * step for x in (problem.q, problem.v))
    for waves, rows, block_n, in_registers, parts in itertools.product(
        WAVES, ROWS_OF_WAVE, BLOCK_N, (True, False), COLUMN_PARTS
    ):
        config = FlashWaveConfig(
            *(waves, rows, block_n, 1, in_registers, 1, depth, column, 4),
            is_async=False,
            instruction=row,
            column_parts=parts,
        )
        if block_n % step or config.threads > (device.max_threads_per_block or 1024):
            continue
        if waves % parts or column % (step * parts):
            continue
        if queries is not None and config.block_m > 16 and config.block_m >= 2 * queries:
            continue
        if keys is not None and block_n > step and block_n >= 2 * keys:
            continue
        blocks = _resident(config, device)
        if blocks:
            yield replace(config, min_blocks=blocks)


def _resident(config: FlashWaveConfig, device: Device) -> int:
    """Count the blocks that a compute unit holds at once; 0 if a block does not fit."""
    if config.shared_bytes > (device.shared_memory_per_block or STATIC_SHARED_BYTES):
        return 0
    if config.registers_needed > MOST_REGISTERS:
        return 0
    waves = _FILE[config.lanes] // (-(-config.registers // 8) * 8) * _SIMDS[config.lanes]
    shared = (device.shared_memory_per_sm or STATIC_SHARED_BYTES) // config.shared_bytes
    return min(_MOST_BLOCKS, shared, waves // config.warps)


def wave_cycles(
    config: FlashWaveConfig, problem: FlashProblem, device: Device, tiles: float
) -> float:
    """Estimate the time of the whole kernel, in clocks of a compute unit.

    Parameters
    ----------
    tiles
        Tiles of keys that a block visits, on average.
    """
    heads = at(product([a.extent for a in problem.pattern.batch]))
    blocks, units = heads * -(-at(problem.query.extent) // config.block_m), device.sm_count or 1
    at_once = min(config.min_blocks, -(-blocks // units))
    waves, simds = at_once * config.warps, _SIMDS[config.lanes]
    spread = max(1.0, simds / waves)  # some SIMDs have no wave
    width, parts = config.depth16 + config.column16, config.column_parts
    scores, products = config.block_m * config.block_n, parts * config.depth16 + config.column16
    mma = spread * scores * 2 * products / HALF_FLOP_PER_CLOCK[device.arch]
    issued = parts * scores / config.lanes * _SOFTMAX
    softmax = spread * issued * _ISSUE[config.lanes] / simds
    read: float = config.depth16 + config.own_columns
    read += 0 if config.q_in_registers else config.depth16 * config.rows_of_warp / 64
    lds = 2 * config.block_n * (config.warps * read * config.copies + 2 * width) / _LDS_BYTES
    longest = max(mma, softmax, lds)
    left = min(1.0, simds / waves)  # other waves of a SIMD fill the time
    busy = at_once * (longest + left * (mma + softmax + lds - longest))
    tile = max(busy + _TILE, _LATENCY + at_once * longest / 2)
    rounds = blocks / (units * at_once)
    return math.ceil(rounds) * (tiles * tile + _AROUND + at_once * config.block_m * width / 16)
