"""Reading a group as a program of rows."""

from __future__ import annotations

import math
from dataclasses import replace

from ....ecg.work import at
from ....program.channel_lanes import with_channel_lanes
from ....program.group import Group
from ....program.group_lanes import with_group_lanes
from ....program.lane_conditions import decide_for_blocks
from ....program.layouts import is_layout_map
from ....program.program import Program
from ....program.recomputed_scalars import with_recomputed_scalars

# Terms of a scalar that each row of a GPU reduces again: some 32 loads of each of 64 threads, in
# flight together. On one H200 T5's flags of 128 and of 1,024 rows have a kernel of 1.6 and 2.2 us.
MOST_RECOMPUTED = 1 << 11


def rows_of(group: Group, on_cpu: bool) -> Program:
    """Return the program of a group, its axes in the order of memory where images have blocks.

    A thread of a CPU takes several groups of channels that are in one vector; a GPU has too few
    rows then, where channels are the last axis as a whole, and its threads read whole rows in the
    order of memory, which blocks of channels are not. On a GPU each row computes scalars of few
    terms again, where all would be one row with them.
    """
    if not on_cpu and count_rows(group.program) == 1:
        found = with_recomputed_scalars(group.program, MOST_RECOMPUTED)
        if found is not None:
            return found
    if any(is_layout_map(op.func) for op in group.members):
        program = with_group_lanes(group.program) if on_cpu else None
        program = program or with_channel_lanes(group.program, sums_alone=on_cpu)
        return replace(program, stages=tuple(map(decide_for_blocks, program.stages)))
    return group.program


def count_rows(program: Program) -> int:
    """Count the rows of a program."""
    axes = program.stages[0].axes[: program.row_rank]
    return math.prod(at(axis.extent) for axis in axes)
