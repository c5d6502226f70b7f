"""Contiguity of a row in memory: bytes of its longest contiguous run, guarded loads."""

from __future__ import annotations

import math

from tvm import DataType, ir

from ....core.tir.expressions import call_name, variables
from ....core.tir.loops import constant, find
from ....ecg.work import at
from ....program.stage import Stage
from ...index.address import offset
from ..program.passes import equal_axes, vector_axes
from ..program.row_program import RowProgram, stride
from .config import longest_loop


def run_bytes(program: RowProgram) -> int:
    """Count the contiguous bytes of a row; 0 where some access is strided.

    Parameters
    ----------
    program
        Of a GPU, its rows of static extents.
    """
    loop = longest_loop(program)
    alike = [s for s in program.stages if equal_axes(s.loop_axes, loop)]
    axes = [stage.loop_axes for stage in alike]
    order, fused = vector_axes(alike, axes)
    size = 16
    for stage, own in zip(alike, axes, strict=True):
        accesses = [(x.source, x.indices) for x in stage.loads]
        accesses += list(zip(stage.targets, stage.indices, strict=True)) if stage.is_map else []
        for buffer, where in accesses:
            if program.is_internal(buffer):
                continue
            steps = stride(offset(buffer, where), [own[order[-1]]])
            if steps is None or constant(steps[0]) not in (0, 1):
                return 0
            if constant(steps[0]) == 1 and len(buffer.shape) > 1:
                size = min(size, DataType(str(buffer.dtype)).itemsize)
    return size * math.prod(at(loop[i].extent) for i in order[-fused:])


def has_branches(stage: Stage, rows: int) -> bool:
    """Tell whether elements of a row are loaded where a condition of their place holds.

    Parameters
    ----------
    rows
        Its axes that are rows.
    """
    axes = {axis.var for axis in (*stage.axes[rows:], *stage.reduce)}
    return any(
        axes & variables(call.args[0])
        for value in stage.values
        for call in find(value, ir.Call)
        if call_name(call) == "if_then_else"
    )
