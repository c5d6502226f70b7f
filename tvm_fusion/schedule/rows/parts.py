"""Few long rows on a GPU: several blocks for one row."""

from __future__ import annotations

from collections.abc import Sequence

from .geometry import Geometry
from .passes import Pass
from .registers import steps_of
from .stages import RowStages
from .vectors import order_of

# Blocks of a row: each reads all of it, so that more of them soon ask more of the cache between
# multiprocessors than they take from each other.
MOST_PARTS = 4


def parts_of(
    program: RowStages, passes: Sequence[Pass], geometry: Geometry, multiprocessors: int
) -> int:
    """Choose how many blocks share the last walk over a row.

    Where there are fewer rows than multiprocessors, blocks that reduce the same row side by side
    need not wait for each other: each finds the same results, and writes its part of what follows.
    That pays where a thread has several vectors of a row to compute and write.

    Parameters
    ----------
    program : RowStages
        The stages as they are placed.
    passes : sequence of Pass
        Their walks.
    geometry : Geometry
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
    # A last walk that is a sum over rows has no order of its results.
    is_written_only = all(stage.is_map for stage in last.stages)
    if not before or outside or not is_written_only or geometry.rows_first or None in rows:
        return 1
    order = order_of(program, last.domain)
    if not order.is_ahead:
        return 1
    blocks = 1
    for size in rows:
        blocks *= size or 1
    blocks = -(-blocks // geometry.rows)
    steps = steps_of(last.domain, geometry.threads, order) or 1
    return max(1, min(multiprocessors // blocks, steps, MOST_PARTS))
