"""Several groups of rows for a block: what rows share is converted once, and unaligned rows align.

grid: `stride` blocks; block b takes the groups b, b + stride, b + 2 * stride, ..
    before the first: what rows share (scale, shift) -> float32 in shared memory
    each group:       passes over its rows; vectors of 16 bytes, what rows share from shared memory

A layer norm with GELU of half types issues some 24 instructions an element, which take as long as
its bytes do; conversions and loads of a scale and a shift are 4 of them. Rows whose distance is a
whole number of vectors begin at the same offset in one, so that aligned vectors of each of them
have the same elements of what rows share.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import DataType, ir

from ...core.expressions import has_load
from ...core.loops import constant
from ...device import Device
from ..gpu.launch import STATIC_SHARED_BYTES
from ..half_math import HALF_TYPES
from .config_gpu import MAX_LANES, REGISTERS_PER_SM, RowConfig, longest_loop
from .emit import static_volume
from .register_budget import RegisterBudget, items_per_thread
from .row_program import RowProgram
from .storage import RESERVED_SHARED, copy_inputs
from .vectorize import is_streamed, is_vector, streams_of, vectorize

STAGED = "float32"  # what rows share, in shared memory
STAGED_TYPES = HALF_TYPES | {STAGED}
MAX_VECTORS = 3  # of a row that a thread computes: their sums, scale and shift leave registers
REGISTERS = 64  # of a thread, which hold those: 32 warps of a multiprocessor
LEAST_GROUPS = 4  # of a block, which pay for what it does before the first


def group_stride(groups: ir.Expr, config: RowConfig) -> int | None:
    """Count the blocks of a grid each of which takes several groups of rows.

    A multiple of a vector's elements, so that all rows of a block have one offset in a vector.

    Returns
    -------
    int or None
        ``None`` where each block has one group, or their number is unknown.
    """
    count = constant(groups)
    if not config.keeps_shared or count is None:
        return None
    stride = -(-count // (config.groups_per_block * MAX_LANES)) * MAX_LANES
    return stride if stride < count else None


def staged_bytes(program: RowProgram, config: RowConfig) -> int:
    """Count the bytes of shared memory of what rows share, of a block of several groups."""
    if not config.keeps_shared:
        return 0
    loop = longest_loop(program)
    vectors = vectorize(program, loop, keeps_shared=True)
    steps = items_per_thread(loop, config.threads, vectors) or 1
    elements = steps * vectors.width * config.threads * config.rows
    return len(shared_inputs(program)) * elements * DataType(STAGED).itemsize


def shared_inputs(program: RowProgram) -> list[ir.Var]:
    """List the inputs of which all rows read the same vectors."""
    found: list[ir.Var] = []
    for stage in program.stages:
        for load in stage.loads:
            is_shared = (
                stage.loop_axes
                and is_vector(program, load, stage.loop_axes[-1])
                and not is_streamed(load, stage.rows)
                and str(load.source.dtype) in STAGED_TYPES
                and not any(map(has_load, load.indices))
            )
            if is_shared and load.source not in found:
                found.append(load.source)
    return found


def grouped_config(program: RowProgram, config: RowConfig, device: Device) -> RowConfig | None:
    """Choose a block of several groups of rows instead of one, where instructions bound a kernel.

    Parameters
    ----------
    program : RowProgram
        The stages.
    config : RowConfig
        Of one group a block.
    device : Device
        A GPU.

    Returns
    -------
    RowConfig or None
        ``None`` where rows share nothing or have several streams of their own, whose bytes take
        longer than instructions; where registers do not hold them; or where there are few.
    """
    loop = longest_loop(program)
    rows, size = static_volume(program.rows, 0), static_volume(loop, 0)
    is_bound = streams_of(program, loop) == 1 and shared_inputs(program)
    if device.kind != "cuda" or config.rows_first or not rows or not size or not is_bound:
        return None
    vectors = vectorize(program, loop, keeps_shared=True)
    if not vectors.is_unconditional or not vectors.width == vectors.full_width == MAX_LANES:
        return None
    warp = config.warp_size
    threads = -(-vectors.count(size) // (MAX_VECTORS * warp)) * warp
    each = max(1, config.threads * config.rows // threads)
    made = grouped(config, threads, 1 << each.bit_length() - 1, REGISTERS, LEAST_GROUPS)
    resident = made.min_blocks_per_sm or 1
    fits = staged_bytes(program, made) * resident <= (device.shared_memory_per_sm or 0)
    groups = -(-rows // (made.rows * resident * (device.sm_count or 1)))  # all blocks run at once
    if groups < LEAST_GROUPS or not fits or not fits_block(program, made):
        return None
    return replace(made, groups_per_block=groups)


def grouped(config: RowConfig, threads: int, rows: int, registers: int, groups: int) -> RowConfig:
    """Give a configuration of so many registers a thread."""
    return replace(
        config,
        threads=threads,
        rows=rows,
        min_blocks_per_sm=max(1, REGISTERS_PER_SM // (registers * threads * rows)),
        keep_packed=True,
        groups_per_block=groups,
    )


def fits_block(program: RowProgram, config: RowConfig) -> bool:
    """Whether registers hold the rows of a block, and shared memory what they share."""
    room = STATIC_SHARED_BYTES - RESERVED_SHARED
    return staged_bytes(program, config) <= room and RegisterBudget(config).hold_all(
        copy_inputs(program)
    )
