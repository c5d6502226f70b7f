"""The configuration that a row kernel has by default: by its shape, and by what registers hold."""

from __future__ import annotations

from dataclasses import replace

from ...device import Device
from .config_gpu import RowConfig, longest_loop, row_config
from .emit import static_volume
from .register_budget import RegisterBudget
from .row_program import RowProgram
from .storage import copy_inputs
from .vectorize import vectorize

# Of a row that is read again in every pass: while one block reduces, another one loads. On one
# H200, softmax of 512 x 50257 float16 took 37 us so, and 46 in a block of 800 threads; 512 x 65536
# 51 (53), 1000 x 32000 40 (44), and 300 x 33001 19.2 either way.
REREAD_THREADS, REREAD_BLOCKS = 512, 2
MAX_REREAD_ELEMENTS = 128  # of a thread: the loops over them are unrolled


def default_config(program: RowProgram, device: Device) -> RowConfig:
    """Choose a configuration.

    Parameters
    ----------
    program : RowProgram
        The stages.
    device : Device
        A GPU.
    """
    config = row_config(program, device)
    if device.kind != "cuda" or config.rows_first or config.threads < REREAD_THREADS:
        return config
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
