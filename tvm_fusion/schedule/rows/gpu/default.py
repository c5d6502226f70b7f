"""The configuration that a row kernel has by default: by its shape, and by what registers hold."""

from __future__ import annotations

from dataclasses import replace

from ....device import Device
from ..program.emit import static_volume
from ..program.row_program import RowProgram
from .config import RowConfig, longest_loop, row_config
from .one_pass_variance import sum_of_deviations
from .register_budget import RegisterBudget
from .row_groups import grouped
from .storage import copy_inputs
from .vectorize import streams_of, vectorize

# Of a row that is read again in every pass: while one block reduces, another one loads. On one
# H200, softmax of 512 x 50257 float16 took 37 us so, and 46 in a block of 800 threads; 512 x 65536
# 51 (53), 1000 x 32000 40 (44), and 300 x 33001 19.2 either way.
REREAD_THREADS, REREAD_BLOCKS = 512, 2
MAX_REREAD_ELEMENTS = 128  # of a thread: the loops over them are unrolled

# Threads of all rows, for each multiprocessor: so few blocks follow each other on it that they do
# not hide each other's barriers, of which a variance in one pass with its mean has one less. On one
# H100, layer norms with GELU of 4016x3184 float16 take 20.6 us so, and 22.2 in two passes, of
# 9381x1008 15.7 (16.1), of 2244x4808 18.5 (20.0), of 2138x8552 30.9 (31.8), but of 1314x11776 26.2
# (25.4), and of many rows as long or longer than before. On one H200, whose memory is faster,
# aligned rows that a kernel reads once gain up to more of them: of 15349x2928 float16 48.3 us
# (55.6), of 19402x1576 bfloat16 37.4 (37.6); unaligned ones lose: of 3928x3726 float16 22.6 (21.5).
FEW_WAVES = 1024, 5 * 1024
MOST_ALIGNED = 12 * 1024
MAX_ONE_PASS = 10000  # elements


def default_config(program: RowProgram, device: Device) -> RowConfig:
    """Choose a configuration."""
    config = row_config(program, device)
    if _has_few_waves(program, config, device) and _has_variance(program):
        config = replace(config, one_pass_variance=True)
    if device.kind != "cuda" or config.rows_first or config.threads < REREAD_THREADS:
        return grouped(program, config, device)
    blocks = static_volume(program.rows, 0) // config.rows
    if blocks < REREAD_BLOCKS * (device.sm_count or 1):
        return config
    if RegisterBudget(config).hold_all(copy_inputs(program)):
        return config
    loop = longest_loop(program)
    vectors = vectorize(program, loop)
    elements = -(-vectors.count(static_volume(loop, 0)) // REREAD_THREADS) * vectors.width
    if not vectors.is_unconditional or elements > MAX_REREAD_ELEMENTS:
        return config
    return replace(
        config,
        threads=REREAD_THREADS,
        row_elements=max(config.row_elements, elements),
        min_blocks_per_sm=REREAD_BLOCKS,
    )


def _has_few_waves(program: RowProgram, config: RowConfig, device: Device) -> bool:
    loop, (least, most) = longest_loop(program), FEW_WAVES
    vectors = vectorize(program, loop)
    is_whole = vectors.width == vectors.full_width and streams_of(program, loop) == 1
    if is_whole and config.threads > config.warp_size:  # a warp alone has no barriers
        most = MOST_ALIGNED
    threads = static_volume(program.rows, 0) * config.threads / (device.sm_count or 1)
    size = static_volume(loop, MAX_ONE_PASS + 1)
    return device.kind == "cuda" and least <= threads <= most and size <= MAX_ONE_PASS


def _has_variance(program: RowProgram) -> bool:
    return any(sum_of_deviations(program, stage) is not None for stage in program.stages)
