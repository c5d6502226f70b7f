"""Configuration of FlashAttention with TMA and warp specialization, as plain data."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import DataType

from .....core.tir.loops import constant
from .....device import Device
from ....gpu.launch import STATIC_SHARED_BYTES
from ....gpu.matrix.wgmma import MOVED_REGISTERS, THREADS, WARPS, M
from ....gpu.memory import mbarrier
from ....gpu.memory.swizzle import BANKS, PanelRows
from ....gpu.memory.tma import PANEL
from ....instructions.table import find
from ..config import ADDRESS_REGISTERS, FlashMmaConfig
from ..problem import FlashProblem
from .operand import tma_operands

# By the number of consumers: registers of a thread as a block starts, and what a producer's and a
# consumer's threads have afterwards, of the 65,536 of a multiprocessor.
# Not in the space: one consumer, and two blocks on a multiprocessor (128, 40 and 216). On an H200,
# causal, 8x32x512x128 of 8 KV heads took 58.7 us, not 60.4; 2x16x2048x128 140, not 120.
REGISTERS = {n: (start, *MOVED_REGISTERS[n]) for n, start in ((2, 168), (3, 128))}
HALF_BYTES = 2  # of an element
# Elements of a key and of a value from which on turns are handed on early. On an H200, early and
# late: 4x32x4096x128, causal, 1,008 and 1,043 us; 2x16x2048x96, causal, 72.6 and 75.5; 1x16x1024x64
# 13.7 and 12.6.
LONG_PRODUCTS = 192
BLOCK_N = (64, 80, 96, 112, 128, 160, 176)
STAGES = (2, 3)


@dataclass(frozen=True)
class FlashTmaConfig(FlashMmaConfig):
    """Tiles of a block of a producer warp and of consumers, warpgroups of 64 queries each.

    ``warps`` are those of the consumers.
    """

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.warps // WARPS

    @property
    def threads(self) -> int:
        """Threads of a block: one warpgroup more, of which one thread copies."""
        return THREADS * (1 + self.consumers)

    @property
    def registers(self) -> int:
        """Registers of a thread at the start of a block."""
        return REGISTERS[self.consumers][0]

    @property
    def registers_needed(self) -> int:
        """Registers of a consumer's thread, roughly."""
        return self.accumulators + ADDRESS_REGISTERS

    @property
    def passes_early(self) -> bool:
        """Whether a consumer hands its turn on as its products are issued, not as scores are there.

        Long products queue, which takes less time than turns do; short ones of both consumers would
        end together, and so would their softmax begin.
        """
        return self.depth16 + self.column16 >= LONG_PRODUCTS

    @property
    def q_rows(self) -> PanelRows:
        """The queries in shared memory."""
        return PanelRows(0, self._vectors(self.depth16), self.block_m)

    def k_rows(self) -> PanelRows:
        """Lay out the keys of all stages, behind the queries."""
        first = self.q_rows.size(self.block_m)
        return PanelRows(first, self._vectors(self.depth16), self.block_n)

    def v_rows(self) -> PanelRows:
        """Lay out the values of all stages, behind the keys."""
        k = self.k_rows()
        first = k.first + k.size(self.stages * self.block_n)
        return PanelRows(first, self._vectors(self.column16), self.block_n)

    @staticmethod
    def _vectors(elements: int) -> int:
        """Count the vectors of a row, in whole panels."""
        return -(-elements // PANEL) * BANKS

    @property
    def is_staged_in_queries(self) -> bool:
        """Whether results take the place of the warp's queries: they are no longer rows."""
        return self.column16 * self.staged_bytes <= 16 * self.q_rows.vectors

    @property
    def staging_offset(self) -> int:
        """Where longer results are staged, in bytes of shared memory: behind the values."""
        v = self.v_rows()
        return 16 * (v.first + v.size(self.stages * self.block_n))

    @property
    def barrier_offset(self) -> int:
        """Where the barriers lie, in bytes: of q, of k and v two of each stage, of turns."""
        staged = 0 if self.is_staged_in_queries else 16 * self.block_m * self.staged_pitch
        return self.staging_offset + staged

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, a multiple of 16."""
        count = 1 + 4 * self.stages + self.consumers
        return self.barrier_offset + -(-count * mbarrier.BYTES // 16) * 16


def tma_configs(problem: FlashProblem, device: Device) -> Iterator[FlashTmaConfig]:
    """Enumerate the configurations that fit a device."""
    if find(device, "wgmma", problem.half, problem.half) is None:
        return
    queries, keys = (constant(a.extent) for a in (problem.query, problem.pattern.key))
    if queries is not None and queries <= M:
        return
    if tma_operands(problem) is None:
        return
    for consumers, block_n, stages in itertools.product(REGISTERS, BLOCK_N, STAGES):
        config = FlashTmaConfig(
            *(consumers * WARPS, 16, block_n, stages, False, 1),
            *(problem.q.extent16, problem.v.extent16, DataType(problem.staged).itemsize, True),
        )
        if queries is not None and config.block_m >= 2 * queries:
            continue
        if keys is not None and (stages > -(-keys // block_n) or block_n >= 2 * keys):
            continue
        if config.registers_needed > REGISTERS[consumers][2]:
            continue
        limit = device.shared_memory_per_block or STATIC_SHARED_BYTES
        if config.shared_bytes <= limit and config.column16 <= 256:
            yield config
            yield replace(config, is_ping_pong=True)
