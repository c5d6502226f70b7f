"""What a claim promises about work, read off a program without building anything."""

from __future__ import annotations

import math
from collections.abc import Container
from functools import lru_cache

from tvm import DataType, ir

from ...core.contract.template import Refusal
from ...core.tir.loops import find
from ...core.tir.shared_terms import shared_subexpressions
from ...ecg.operation_count import operations as count
from ...ecg.work import at
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Stage

MAX_PARAMETERS = 120  # of a kernel: CUDA passes 4 KB of arguments, strides and extents among them


def too_many_parameters(program: Program) -> Refusal | None:
    """Refuse a kernel with more parameters than a launch can pass."""
    count = len(program.inputs) + len(program.scalars) + len(program.outputs)
    if count <= MAX_PARAMETERS:
        return None
    sentence = f"The kernel would have {count} parameters; a launch takes {MAX_PARAMETERS}."
    return Refusal("too_many_parameters", sentence)


def points(stage: Stage) -> int:
    """Count a stage's data-parallel points."""
    return math.prod(at(axis.extent) for axis in stage.axes)


def terms(stage: Stage) -> int:
    """Count the terms of one of a stage's sums; 1 for a map."""
    return math.prod(at(axis.extent) for axis in stage.reduce)


def operations(*exprs: ir.Expr) -> int:
    """Count the arithmetic of one element, in units of one addition; what is shared counts once."""
    bindings, rest = shared_subexpressions(exprs)
    return count(*rest, bindings=bindings)


def flops(stages: tuple[Stage, ...]) -> int:
    """Count the arithmetic of the stages."""
    return sum(points(s) * terms(s) * _operations(s) for s in stages)


@lru_cache(maxsize=1 << 13)  # templates that are asked about one group count the same stages
def _operations(stage: Stage) -> int:
    return operations(*stage.values)


def traffic(group: Group, stages: tuple[Stage, ...], unread: Container[ir.Var] = ()) -> int:
    """Count bytes read and written: outputs once, of each input no more than the loads touch.

    Parameters
    ----------
    unread : container of Var
        Inputs that kernels do not read: constants whose elements they know.
    """
    touched: dict[ir.Var, int] = {}
    for stage in stages:
        count = points(stage) * terms(stage)
        for expr in (*stage.values, *(i for where in stage.indices for i in where)):
            for load in find(expr, ir.TensorLoad):
                touched[load.source] = touched.get(load.source, 0) + count
    inputs = group.program.inputs
    read = 0
    for buffer, value in zip(inputs, group.inputs, strict=True):
        if buffer in unread:
            continue
        size = DataType(value.dtype).itemsize
        read += min(value.bytes, touched.get(buffer, 0) * size)
    return read + sum(v.bytes for v in group.outputs)
