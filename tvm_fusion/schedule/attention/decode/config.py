"""Flash-decoding configuration: how attention of few rows is split over blocks and threads.

The keys of each KV head are split between blocks, which merge their partial results in a second
launch (Dao et al., "Flash-Decoding for long-context inference", 2023) or, as a cluster, read them
from each other's shared memory: keys and values are loaded once, in vectors, at the bandwidth of
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import DataType, ir, tirx

from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.loops import constant, index, product
from ....device import Device
from ....ecg.work import at
from ...gpu.threads.warp import each_thread
from ..problem.kv_vectors import contiguous_loads, has_uniform_conditions, vector_width
from ..problem.pattern import Pattern
from ..problem.query_group import QueryGroup
from .mma_config import MMA_KEYS, MMA_ROWS, REDUCE_BYTES, fits_mma, stage_bytes, warps_and_stages

MAX_ROWS = 16  # of a query group; more of them fill tiles
# More rows of a group, and keys, where tiles would leave half of the multiprocessors idle. On an
# H100, tiles and split keys, 32 query heads of 8 KV heads, of 128: 8 queries, 8,192 keys 41.3 and
# 19.8 us, eight sequences 407 and 101; 16 queries 40.9 and 30.4, of 512 keys 10.1 and 6.3; sixteen
# sequences of 8 queries and 2,048 keys 49.3 and 65.5.
MANY_ROWS, LEAST_KEYS_OF_MANY = 64, 512
WIDEST_TILE = 256  # elements of a head that tiles on tensor cores take
MANY_WIDE_ROWS = 128  # of wider heads: the heads that share latents, for a token
MIN_KEYS = 256  # below which a second launch costs more than it gives
MAX_LANES_PER_KEY = 16  # each sum over the threads of a key is a chain of shuffles
MAX_ROW_REGISTERS = 128  # elements of queries and accumulators of a thread
THREADS = 256
REGISTER_FILE = 1 << 16
THREADS_PER_SM = 512  # occupancy target: each thread has its rows in registers
KEYS_IN_FLIGHT = 4  # keys that a thread loads before it uses the first
MAX_SPLITS = 128
# Blocks of a cluster that every device with clusters can launch, and what a block of it reads at
# most where more splits would leave fewer multiprocessors idle: by estimate, at 60 bytes a
# nanosecond of one of them, it then takes no longer than a second launch of a microsecond.
MAX_CLUSTER, CLUSTER_BLOCK_BYTES = 8, 128 * 1024
MIN_OCCUPANCY = 0.9  # of the last wave of blocks, from which on a number of splits will do


@dataclass(frozen=True)
class FlashDecodeConfig:
    """The configuration of a split-KV kernel and of its reduction kernel."""

    pattern: Pattern  # the attention
    query_group: QueryGroup  # its rows
    # Loads of keys and values in vectors.
    keys: tuple[ir.TensorLoad, ...]
    values: tuple[ir.TensorLoad, ...]
    width: int  # elements of a vector
    lanes: int  # threads that share a key; vectors of it are interleaved among them
    # Such groups of threads in a block, each with keys of its own; warps on tensor cores.
    groups: int
    keys_in_flight: int  # keys that a group loads before it uses the first
    block_m: int  # rows of a block
    splits: int  # blocks that share the keys of some rows
    warp_size: int  # threads of a warp
    min_blocks: int  # blocks that a multiprocessor holds at once
    reduce_threads: int  # threads that share a column in the reduction kernel
    # Pipeline stages of keys and values in shared memory, on tensor cores; 0 on CUDA cores.
    stages: int
    has_clusters: bool  # whether blocks can read each other's shared memory

    def of(self, pattern: Pattern) -> FlashDecodeConfig:
        """Return the configuration for an equal pattern of another group."""
        keys = contiguous_loads(pattern, pattern.k, pattern.depth)
        values = contiguous_loads(pattern, pattern.v, pattern.column)
        group = QueryGroup.of(pattern) or self.query_group
        return replace(self, pattern=pattern, query_group=group, keys=keys, values=values)

    @property
    def uses_mma(self) -> bool:
        """Whether warps multiply on tensor cores."""
        return self.stages > 0

    @property
    def head_dim(self) -> int:
        """Elements of a key."""
        return int(self.pattern.depth.extent)

    @property
    def head_dim_v(self) -> int:
        """Elements of a value."""
        return int(self.pattern.column.extent)

    @property
    def is_one_kernel(self) -> bool:
        """Whether the blocks of a row merge what they found, as a cluster of all splits."""
        return self.splits == 1 or (self.has_clusters and self.splits <= MAX_CLUSTER)

    @property
    def launches(self) -> int:
        """Kernels: a second one merges splits where the first cannot."""
        return 1 if self.is_one_kernel else 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def registers(self) -> int:
        """Registers of a thread, with which it counts the blocks of a multiprocessor."""
        return REGISTER_FILE // max(THREADS_PER_SM, self.threads * self.min_blocks)

    @property
    def kv_batch(self) -> ir.Expr:
        """Number of different keys and values: batch times KV heads."""
        return product(self.query_group.extents)

    @property
    def row_blocks(self) -> int:
        """Blocks that share all rows of a query group."""
        return -(-self.query_group.size // self.block_m)

    @property
    def blocks(self) -> ir.Expr:
        """Blocks of the split-KV kernel."""
        return product([self.kv_batch, self.row_blocks, self.splits])

    @property
    def block_n(self) -> int:
        """Keys of a block in one step."""
        return self.groups * self.keys_in_flight

    @property
    def step_n(self) -> int:
        """Keys of all splits in one step; those of one split are contiguous."""
        return self.block_n * self.splits

    @property
    def is_even(self) -> bool:
        """Whether all blocks have the same number of keys."""
        count = constant(self.pattern.key.extent)
        return count is not None and count % self.step_n == 0

    @property
    def rows_per_pass(self) -> int:
        """Rows whose accumulators a block merges in shared memory at once."""
        return min(self.block_m, max(1, REDUCE_BYTES // (4 * self.groups * self.pitch)))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block of the split-KV kernel."""
        merged = 4 * self.groups * (self.rows_per_pass * self.pitch + 2 * self.block_m)
        if self.is_one_kernel:
            merged += 4 * (self.rows_per_pass * self.head_dim_v + 2 * self.block_m)
        return merged + self.stages * self.groups * stage_bytes(self.pattern)

    @property
    def pitch(self) -> int:
        """Elements from one row of accumulators to the next in shared memory."""
        return self.head_dim_v // 8 * 9 + 1 if self.uses_mma else self.head_dim_v

    def shared_offset(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        """Return the place of an accumulator in shared memory.

        The threads of a warp with mma accumulators store columns that are eight apart at once, of
        several rows: padding behind every eight, and behind a row, avoids bank conflicts.
        """
        padding = tirx.floordiv(column, index(8)) if self.uses_mma else index(0)
        return row * self.pitch + column + padding

    def each_thread(self, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """Run ``body(group, lane)`` in every thread."""
        return each_thread([("threadIdx.y", self.groups), ("threadIdx.x", self.lanes)], body)


def flash_decode_config(pattern: Pattern, device: Device) -> FlashDecodeConfig | Refusal:
    """Choose a configuration; refused are many rows, few keys, or keys that are not vectors."""
    group, count = QueryGroup.of(pattern), constant(pattern.key.extent)
    if group is None:
        return other_form("The number of rows that read the same keys is symbolic.")
    if count is not None and 0 < count < MIN_KEYS:
        return other_form(f"There are {count} keys; a second launch pays off from {MIN_KEYS}.")
    many = f"{group.size} rows read the same keys, more than {MAX_ROWS}"
    is_wide = max(at(a.extent) for a in (pattern.depth, pattern.column)) > WIDEST_TILE
    is_wide &= group.size <= MANY_WIDE_ROWS
    if group.size > MAX_ROWS and not (is_wide or _leaves_idle(group, count, device)):
        return other_form(f"{many}, and tiles of them leave few multiprocessors idle.")
    keys = contiguous_loads(pattern, pattern.k, pattern.depth)
    values = contiguous_loads(pattern, pattern.v, pattern.column)
    if not keys or not values:
        which = "values" if keys else "keys"
        return other_form(f"Elements of {which} are not contiguous in memory.")
    operands = [(x, pattern.k, pattern.depth) for x in keys]
    operands += [(x, pattern.v, pattern.column) for x in values]
    width = vector_width([(x, axis) for x, _, axis in operands])
    if width is None:
        return other_form("Keys and values are not aligned to vectors.")
    if not all(has_uniform_conditions(*operand, width) for operand in operands):
        return other_form("A condition differs between the elements of a vector.")
    vectors = [int(a.extent) // width for a in (pattern.depth, pattern.column)]
    lanes = MAX_LANES_PER_KEY
    while any(v % lanes for v in vectors):
        lanes //= 2
    registers = sum(v // lanes for v in vectors) * width  # of a row
    in_flight, block_m = KEYS_IN_FLIGHT, min(group.size, MAX_ROW_REGISTERS // registers)
    limit = device.max_threads_per_block or 1024
    groups, stages, min_blocks = min(THREADS, limit) // lanes, 0, THREADS_PER_SM // THREADS
    uses_mma = fits_mma(pattern, keys, values, width, device)
    if uses_mma:
        lanes, in_flight, block_m = device.warp_size or 32, MMA_KEYS, min(group.size, MMA_ROWS)
        min_blocks = 1
    if block_m == 0:
        sentence = (
            f"A row takes {registers} registers of a thread; the limit is {MAX_ROW_REGISTERS}."
        )
        return other_form(sentence)
    if groups == 0:
        return other_form(f"A key takes {lanes} threads; a block has at most {limit}.")
    if group.size > MAX_ROWS and not uses_mma:
        return other_form(f"{many}, and tensor cores cannot multiply them.")
    block_m = -(-group.size // -(-group.size // block_m))
    blocks = at(product(group.extents)) * -(-group.size // block_m)
    splits = _splits(blocks, (device.sm_count or 1) * min_blocks)
    if device.clusters and splits > MAX_CLUSTER and count is not None:
        size = DataType(str(keys[0].ty.dtype)).itemsize
        size *= int(pattern.depth.extent) + int(pattern.column.extent)
        if count * size <= MAX_CLUSTER * CLUSTER_BLOCK_BYTES:
            splits = MAX_CLUSTER
    if uses_mma:
        keys_of_block = None if count is None else count // splits
        groups, stages = warps_and_stages(pattern, block_m, keys_of_block, device)
    if count is not None:
        splits = min(splits, -(-count // (groups * in_flight)))  # each has keys
    reduce_threads = max(1, min(THREADS, limit) // int(pattern.column.extent))
    return FlashDecodeConfig(
        *(pattern, group, keys, values, width, lanes, groups, in_flight, block_m, splits),
        *(device.warp_size or 32, min_blocks, reduce_threads, stages, device.clusters),
    )


def _leaves_idle(group: QueryGroup, keys: int | None, device: Device) -> bool:
    """Whether a block for all rows of each group would leave multiprocessors idle for long."""
    is_long = keys is not None and keys >= LEAST_KEYS_OF_MANY
    blocks, units = at(product(group.extents)), device.sm_count or 1
    return is_long and group.size <= MANY_ROWS and 2 * blocks <= units


def _splits(blocks: int, slots: int) -> int:
    """Choose the fewest splits of the keys that keep the last wave of blocks occupied."""
    first = max(1, min(slots // blocks, MAX_SPLITS))
    for splits in range(first, first + 8):
        total = blocks * splits
        if total >= MIN_OCCUPANCY * slots * -(-total // slots):
            return splits
    return first
