"""Several groups of rows for a block: what rows share is loaded once, unaligned rows included.

grid: `stride` blocks; block b takes the groups b, b + stride, b + 2 * stride, ..
    before the first: what rows share (scale, shift) -> float32 registers; the first group's rows
    each group:       load the next one's rows; passes over its own

Short unaligned rows spend a third of their instructions on what they share: its elements begin
elsewhere in a vector for each row and are loaded one by one. Rows whose distance is a whole number
of vectors begin alike. On one H200 layer norms with GELU of 63249x677 float16 take 51 us so, and 56
in a block for each four rows: 22 instructions an element, not 31. Longer rows, whose threads wait
for each other at barriers, gain little, and aligned ones, which share little already, mostly lose.
"""

from dataclasses import replace

from tvm import ir

from ....core.contract.forms import other_form
from ....core.contract.template import Refusal
from ....core.tir.loops import constant
from ....device import Device
from ..program.emit import static_volume
from ..program.row_program import RowProgram
from .config import RowConfig, blocks_per_sm, longest_loop
from .storage import items_per_thread
from .vectorize import shares_vectors, streams_of, vectorize

MAX_LANES = 8  # of a vector
LEAST_GROUPS = 4  # of a block, which pay for what it does before the first
WORKING_REGISTERS = 36  # 32-bit ones of a thread, besides its rows and what they share


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


def grouped(program: RowProgram, config: RowConfig, device: Device) -> RowConfig | Refusal:
    """Let blocks take several groups of short unaligned rows that share something.

    Parameters
    ----------
    config
        Of one group a block.

    Returns
    -------
    RowConfig or Refusal
        A refusal where several are no gain.
    """
    loop = longest_loop(program)
    vectors = vectorize(program, loop)
    if device.kind != "cuda":
        return other_form("It was measured on NVIDIA GPUs only.")
    if config.threads != config.warp_size:
        return other_form(f"A row has {config.threads} threads, not those of a warp.")
    if vectors.origin is None:
        return other_form("All rows begin at whole vectors.")
    if vectors.width > vectors.full_width // 4:
        return other_form(f"Rows are loaded in vectors, of {vectors.width} elements.")
    rows, steps = static_volume(program.rows, 0), items_per_thread(loop, config.threads, vectors)
    if steps is None:
        return other_form("The length of a row is symbolic.")
    if streams_of(program, loop) > 1 or not shares_vectors(program):
        return other_form("Rows share no vector, such as a scale, or there are several streams.")
    elements = steps * vectors.width  # in half types of this row and the next, and twice as floats
    registers = 3 * elements + WORKING_REGISTERS
    blocks = blocks_per_sm(config, registers, device)
    groups = -(-rows // (config.rows * blocks * (device.sm_count or 1)))
    if groups < LEAST_GROUPS:
        return other_form(f"A block would have {groups} groups, fewer than {LEAST_GROUPS}.")
    return replace(config, min_blocks_per_sm=blocks, groups_per_block=groups)
