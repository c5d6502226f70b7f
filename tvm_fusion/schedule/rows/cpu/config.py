"""Configurations of a row kernel on a CPU: its vectors, and whether it wakes other threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm import ir, tirx

from ...._tvm.ir.structural import structural_walk
from ....core.tir.expressions import call_name
from ....core.tir.loops import constant, find
from ....device import Device
from ....program.lane_conditions import COMPARISONS
from ....program.program import Program
from ...cpu.schedule import PARALLEL_WORK, VectorRegisters
from ...index.design_space import Kernels, default_first, varied
from ..program.emit import static_volume
from ..program.row_program import RowProgram

VECTORS = 4  # registers of a vector of a row
CHOICES = (1, 2, VECTORS, 8)


@dataclass(frozen=True)
class CpuRowConfig:
    """Configuration of a row kernel on a CPU."""

    width: int  # elements of a vector
    is_parallel: bool  # whether the work is worth waking other threads
    prefetches: bool  # whether passes prefetch what the next row or pass reads

    @classmethod
    def of(cls, program: Program, device: Device) -> CpuRowConfig:
        """Choose by the work of all rows."""
        loops = [(*stage.axes, *stage.reduce) for stage in program.stages]
        work = sum(static_volume(axes, PARALLEL_WORK) for axes in loops)
        return cls(VECTORS * VectorRegisters.of(device).lanes, work >= PARALLEL_WORK, True)


KERNELS = Kernels({CpuRowConfig: ("rows", ("width", "is_parallel", "prefetches"))})


def configs(chosen: CpuRowConfig) -> Iterator[CpuRowConfig]:
    """Enumerate configurations, each once, the default first."""
    widths, flags = [chosen.width * n // VECTORS for n in CHOICES], (False, True)
    every = varied(chosen, width=widths, is_parallel=flags, prefetches=flags)
    return default_first(chosen, every)


# The width of vectors of rows whose elements are in blocks, or of a concatenation.
#
# ``x[c // 16, ..., c % 16]`` is contiguous within a block alone: a vector over several blocks would
# be read element by element. So would one over the end of a part, ``c < 48``.
def width_in_blocks(program: RowProgram | Program, width: int) -> int:
    """Limit the width of vectors to the smallest block, and to parts, that it is a multiple of.

    Parameters
    ----------
    width
        Elements of a vector.
    """
    divisions: list[ir.Expr] = []
    for stage in program.stages:
        places = [*stage.indices, *(load.indices for load in stage.loads)]
        for index in (i for place in places for i in place):
            structural_walk(index, (tirx.FloorMod, divisions.append))
    blocks = (constant(d.b) for d in divisions)
    width = min([width, *(b for b in blocks if b and b > 1 and width % b == 0)])
    part = math.gcd(width, *_ends_of_parts(program))
    return part if part * VECTORS >= width else width


def _ends_of_parts(program: RowProgram | Program) -> Iterator[int]:
    """Yield the places along an axis at which a choice turns to another part, and its extent."""
    for stage in program.stages:
        calls = [call for value in stage.values for call in find(value, ir.Call)]
        choices = [call.args[0] for call in calls if call_name(call) == "if_then_else"]
        for one in (c for choice in choices for kind in COMPARISONS for c in find(choice, kind)):
            is_turned = not isinstance(one.a, ir.Var)
            first, end = (one.b, constant(one.a)) if is_turned else (one.a, constant(one.b))
            for axis in (*stage.axes, *stage.reduce):
                if axis.var.same_as(first) and axis.size is not None and end is not None:
                    # The first index behind: of ``i < 8`` and ``8 <= i`` it is 8.
                    is_last = isinstance(one, (tirx.LE, tirx.GT)) != is_turned
                    yield from (end + is_last, axis.size)
