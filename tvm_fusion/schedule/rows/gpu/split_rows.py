"""Few long rows on a GPU: several blocks for one row, which share its last pass.

grid: blocks_per_row blocks for every `rows` rows
    passes before the last:  every block reduces the whole row(s), from L2 after the first block
    last pass:               every block computes and stores its own part of the vectors
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program.passes import Pass
from ..program.row_program import RowProgram
from .config import RowConfig
from .register_budget import items_per_thread
from .vectorize import vectorize

# Each block of a row reads all of it, so that more blocks soon need more bandwidth of the L2 cache
# than they save.
MAX_BLOCKS_PER_ROW = 4


def blocks_per_row(
    program: RowProgram, passes: Sequence[Pass], config: RowConfig, multiprocessors: int
) -> int:
    """Choose how many blocks share the last pass over a row.

    Where there are fewer rows than multiprocessors, several blocks reduce the same row, without
    waiting for each other, and each writes its part of the last pass. That pays where a thread has
    several vectors of a row to compute and write.

    Parameters
    ----------
    program : RowProgram
        The stages, their buffers placed.
    passes : sequence of Pass
        Their passes.
    config : RowConfig
        The threads.
    multiprocessors : int
        Of the device.
    """
    *before, last = passes
    rows = [axis.size for axis in program.rows]
    outside = [
        target
        for one in before
        for stage in one.stages
        for target in stage.targets
        if not program.is_internal(target)
    ]
    # A last pass that is a sum over rows has no order of its results.
    is_written_only = all(stage.is_map for stage in last.stages)
    if not before or outside or not is_written_only or config.rows_first or None in rows:
        return 1
    if config.keeps_shared:
        return 1
    vectors = vectorize(program, last.loop_axes)
    if not vectors.is_unconditional:
        return 1
    blocks = 1
    for size in rows:
        blocks *= size or 1
    blocks = -(-blocks // config.rows)
    steps = items_per_thread(last.loop_axes, config.threads, vectors) or 1
    return max(1, min(multiprocessors // blocks, steps, MAX_BLOCKS_PER_ROW))
