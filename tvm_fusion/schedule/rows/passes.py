"""Which stages share one walk over a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, sym, tirx

from ...core.expressions import call_name
from ..expressions import contains, index_of, row_major_offset, variables_of
from .stages import Axis, RowStages, Stage, stride


@dataclass
class Pass:
    """Stages that run together, element by element, over the same axes of a row."""

    stages: list[Stage] = field(default_factory=list)

    @property
    def domain(self) -> tuple[Axis, ...]:
        """The axes of the walk, as the first stage names them."""
        return self.stages[0].domain


def plan_passes(program: RowStages) -> list[Pass]:
    """Put each stage into the first walk that has all it needs.

    A stage joins a walk over equal axes if what it reads of that walk is the element of the same
    position; a reduction's result is there only after its walk.
    """
    passes: list[Pass] = []
    place: dict[int, int] = {}
    for number, stage in enumerate(program.stages):
        earliest = 0
        for load in stage.loads:
            if program.is_internal(load.source):
                producer = program.producer(load.source)
                other = program.stages[producer]
                together = other.is_map and is_same_position(other, stage, load)
                earliest = max(earliest, place[producer] + (0 if together else 1))
        position = next(
            (p for p in range(earliest, len(passes)) if _can_join(passes[p], stage)), len(passes)
        )
        if position == len(passes):
            passes.append(Pass())
        passes[position].stages.append(stage)
        place[number] = position
    return passes


def is_same_position(producer: Stage, stage: Stage, load: ir.TensorLoad) -> bool:
    """Whether a stage reads of another's results the one at its own position in the row."""
    if not equal_axes(producer.inner, stage.domain):
        return False
    rows = len(stage.rows)
    written = [_position(producer.inner, index) for index in producer.written(load.source)[rows:]]
    read = [_position(stage.domain, index) for index in load.indices[rows:]]
    return None not in written and written == read


def private_buffers(program: RowStages, passes: Sequence[Pass]) -> list[ir.Var]:
    """List internal buffers that are read in the walk that writes them, and so need no row."""
    return [
        target
        for one in passes
        for stage in one.stages
        for target in stage.targets
        if program.is_internal(target) and _is_private(program, one, target)
    ]


def _is_private(program: RowStages, one: Pass, buffer: ir.Var) -> bool:
    readers = [s for s in program.stages if any(load.source.same_as(buffer) for load in s.loads)]
    producer = program.stages[program.producer(buffer)]
    return producer.is_map and all(
        any(reader is stage for stage in one.stages) for reader in readers
    )


def vector_axes(stages: Sequence[Stage], axes: Sequence[Sequence[Axis]]) -> tuple[list[int], int]:
    """Choose the order of axes for walking memory, and how many of the last are one in memory.

    Parameters
    ----------
    stages : sequence of Stage
        What is walked.
    axes : sequence of sequence of Axis
        For each stage, its names of the same axes.

    Returns
    -------
    order : list of int
        A permutation of the axes; along the last one the fewest accesses have elements apart.
    fused : int
        How many axes at the end every access walks as one.
    """
    count = len(axes[0])
    if count < 2:
        return list(range(count)), count
    accesses = [s for stage, own in zip(stages, axes, strict=True) for s in _strides(stage, own)]
    # What is the same for all lanes costs nothing, neighbours little, all else an access a lane.
    apart = [sum(s is None or not _is_short(s[a]) for s in accesses) for a in range(count)]
    votes = [sum(s is not None and _is_one(s[a]) for s in accesses) for a in range(count)]
    last = max(range(count), key=lambda a: (-apart[a], votes[a], a))
    order = [a for a in range(count) if a != last] + [last]
    fused = 1
    while fused < count:
        outer, inner = order[-fused - 1], order[-fused]
        extent = axes[0][inner].extent
        if not all(s is not None and _are_one(s[outer], s[inner], extent) for s in accesses):
            break
        fused += 1
    return order, fused


def _strides(
    stage: Stage, axes: Sequence[Axis], skip: Sequence[ir.Var] = ()
) -> list[list[ir.Expr] | None]:
    """Strides along some axes of every access of a stage, some buffers excepted."""
    accesses = [(load.source, load.indices) for load in stage.loads]
    accesses += list(zip(stage.targets, stage.indices, strict=True))
    return [
        stride(row_major_offset(buffer, indices), axes)
        for buffer, indices in accesses
        if not contains(skip, buffer)
    ]


def unit_strides(stage: Stage, axis: Axis, skip: Sequence[ir.Var] = ()) -> int:
    """How many accesses of a stage move to the neighbouring element along an axis."""
    found = _strides(stage, [axis], skip)
    return sum(s is not None and _is_one(s[0]) for s in found)


def are_vectors(program: RowStages) -> bool:
    """Whether neighbouring rows make vectors: plain loads, or mathematics that outweighs others."""
    calls: list[ir.Call] = []
    for stage in program.stages:
        for value in stage.values:
            tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    branches = [call for call in calls if call_name(call) == "if_then_else"]
    if len(calls) > len(branches):
        return True
    lane = [stage.rows[-1] for stage in program.stages]
    return not any(
        contains(variables_of(branch.args[0]), axis.var) for branch in branches for axis in lane
    ) and all(
        steps is not None and isinstance(steps[0], tirx.IntImm) and int(steps[0]) in (0, 1)
        for stage in program.stages
        for steps in _strides(stage, stage.rows[-1:], program.internal)
    )


def _can_join(one: Pass, stage: Stage) -> bool:
    mixed = [s for s in (*one.stages, stage) if s.inner and s.reduce]
    return not mixed and equal_domains(one.stages[0], stage)


def equal_domains(one: Stage, other: Stage) -> bool:
    """Whether two stages walk as many elements along each axis."""
    return equal_axes(one.domain, other.domain)


def equal_axes(one: Sequence[Axis], other: Sequence[Axis]) -> bool:
    """Whether axes have the same extents in the same order."""
    return len(one) == len(other) and all(
        sym.Analyzer().can_prove_equal(a.extent, b.extent) for a, b in zip(one, other, strict=True)
    )


def _position(axes: Sequence[Axis], index: ir.Expr) -> int | None:
    return index_of([a.var for a in axes], index) if isinstance(index, ir.Var) else None


def _is_one(step: ir.Expr) -> bool:
    return isinstance(step, tirx.IntImm) and int(step) == 1


def _is_short(step: ir.Expr) -> bool:
    return isinstance(step, tirx.IntImm) and int(step) in (0, 1)


def _are_one(outer: ir.Expr, inner: ir.Expr, extent: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(outer, inner * extent))
