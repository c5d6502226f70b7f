"""Passes over a row: which stages share one loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, sym, tirx

from ....core.tir.expressions import call_name, variables
from ....program.stage import Axis
from ...index.address import offset
from .emit import static_volume
from .row_program import RowProgram, RowStage, stride

SHORT_ROW = 8  # elements of a row, below which lanes across neighbouring rows do better


@dataclass
class Pass:
    """Stages that run together, element by element, over the same axes of a row."""

    stages: list[RowStage] = field(default_factory=list)

    @property
    def loop_axes(self) -> tuple[Axis, ...]:
        """The axes of the loop, as the first stage names them."""
        return self.stages[0].loop_axes


def plan_passes(program: RowProgram) -> list[Pass]:
    """Put each stage into the first pass in which all that it reads is available.

    A stage joins a pass over equal axes if it reads results of that pass at its own position only;
    a reduction's result is available after its pass.
    """
    passes: list[Pass] = []
    place: dict[RowStage, int] = {}
    for stage in program.stages:
        earliest = 0
        for load in stage.loads:
            if program.is_internal(load.source):
                other = program.producer(load.source)
                is_same = other.is_map and is_same_position(other, stage, load)
                earliest = max(earliest, place[other] + (0 if is_same else 1))
        position = next(
            (p for p in range(earliest, len(passes)) if _can_join(passes[p], stage)), len(passes)
        )
        if position == len(passes):
            passes.append(Pass())
        passes[position].stages.append(stage)
        place[stage] = position
    return passes


def is_same_position(producer: RowStage, stage: RowStage, load: ir.TensorLoad) -> bool:
    """Whether a stage reads another's result at its own position in the row."""
    if not equal_axes(producer.inner, stage.loop_axes):
        return False
    rows = len(stage.rows)
    written = [_position(producer.inner, index) for index in producer.written(load.source)[rows:]]
    read = [_position(stage.loop_axes, index) for index in load.indices[rows:]]
    return None not in written and written == read


def private_buffers(program: RowProgram, passes: Sequence[Pass]) -> list[ir.Var]:
    """List internal buffers that only the pass that writes them reads, and so need no row."""
    return [
        target
        for one in passes
        for stage in one.stages
        for target in stage.targets
        if program.is_internal(target) and _is_private(program, one, target)
    ]


def _is_private(program: RowProgram, one: Pass, buffer: ir.Var) -> bool:
    readers = [s for s in program.stages if any(load.source.same_as(buffer) for load in s.loads)]
    producer = program.producer(buffer)
    return producer.is_map and all(
        any(reader is stage for stage in one.stages) for reader in readers
    )


def vector_axes(
    stages: Sequence[RowStage], axes: Sequence[Sequence[Axis]]
) -> tuple[list[int], int]:
    """Choose the order of axes in memory, and how many of the last are one in memory.

    Parameters
    ----------
    stages
        The stages of a loop.
    axes
        For each stage, its names of the same axes.

    Returns
    -------
    order : list of int
        A permutation of the axes; along the last one the fewest accesses are strided.
    fused : int
        How many of the last axes are contiguous as one in every access.
    """
    count = len(axes[0])
    if count < 2:
        return list(range(count)), count
    accesses = [s for stage, own in zip(stages, axes, strict=True) for s in _strides(stage, own)]
    # Broadcasts cost nothing, contiguous accesses little, strided ones an access for each lane.
    strided = [sum(s is None or not _is_short(s[a]) for s in accesses) for a in range(count)]
    votes = [sum(s is not None and _is_one(s[a]) for s in accesses) for a in range(count)]
    last = max(range(count), key=lambda a: (-strided[a], votes[a], a))
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
    stage: RowStage, axes: Sequence[Axis], skip: Sequence[ir.Var] = ()
) -> list[list[ir.Expr] | None]:
    """Return the strides along some axes of every access of a stage, some buffers excepted."""
    accesses = [(load.source, load.indices) for load in stage.loads]
    accesses += list(zip(stage.targets, stage.indices, strict=True))
    return [
        stride(offset(buffer, indices), axes) for buffer, indices in accesses if buffer not in skip
    ]


def unit_strides(stage: RowStage, axis: Axis, skip: Sequence[ir.Var] = ()) -> int:
    """Count the accesses of a stage that are contiguous along an axis."""
    found = _strides(stage, [axis], skip)
    return sum(s is not None and _is_one(s[0]) for s in found)


def are_vectors(program: RowProgram) -> bool:
    """Whether neighbouring rows vectorize: plain loads, or functions that outweigh others."""
    calls: list[ir.Call] = []
    for stage in program.stages:
        for value in stage.values:
            tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    branches = [call for call in calls if call_name(call) == "if_then_else"]
    if len(calls) > len(branches):
        return True
    lane = [stage.rows[-1] for stage in program.stages]
    return not any(
        axis.var in variables(branch.args[0]) for branch in branches for axis in lane
    ) and all(
        steps is not None and isinstance(steps[0], tirx.IntImm) and int(steps[0]) in (0, 1)
        for stage in program.stages
        for steps in _strides(stage, stage.rows[-1:], program.internal)
    )


def lanes_are_rows(program: RowProgram) -> bool:
    """Whether vectors run over neighbouring rows: these are contiguous, elements of a row not."""
    if not program.rows or (program.rows[-1].size or SHORT_ROW) < 2:
        return False
    along_rows = along_loop = longest = 0
    for stage in program.stages:
        along_rows += _contiguous(stage, stage.rows[-1], program.internal)
        if stage.loop_axes:
            along_loop += max(_contiguous(stage, a, program.internal) for a in stage.loop_axes)
            order, fused = vector_axes([stage], [stage.loop_axes])
            inner = [stage.loop_axes[a] for a in order[len(order) - fused :]]
            longest = max(longest, static_volume(inner, SHORT_ROW))
    return longest < SHORT_ROW or along_rows > along_loop


def _contiguous(stage: RowStage, axis: Axis, skip: Sequence[ir.Var]) -> int:
    """Count the elements of one row whose accesses are contiguous along an axis.

    An operand that a whole row shares is one element: it weighs nothing beside the row.
    """
    count, alone = 0, _strides(stage, [axis], skip)
    for steps, own in zip(_strides(stage, stage.loop_axes, skip), alone, strict=True):
        if own is not None and _is_one(own[0]):
            moved = [
                a
                for i, a in enumerate(stage.loop_axes)
                if steps is None or not (isinstance(steps[i], tirx.IntImm) and int(steps[i]) == 0)
            ]
            count += static_volume(moved, SHORT_ROW)
    return count


def _can_join(one: Pass, stage: RowStage) -> bool:
    mixed = [s for s in (*one.stages, stage) if s.inner and s.reduce]
    return not mixed and equal_loops(one.stages[0], stage)


def equal_loops(one: RowStage, other: RowStage) -> bool:
    """Whether two stages loop over as many elements along each axis."""
    return equal_axes(one.loop_axes, other.loop_axes)


def equal_axes(one: Sequence[Axis], other: Sequence[Axis]) -> bool:
    """Whether axes have the same extents in the same order."""
    return len(one) == len(other) and all(
        sym.Analyzer().can_prove_equal(a.extent, b.extent) for a, b in zip(one, other, strict=True)
    )


def _position(axes: Sequence[Axis], index: ir.Expr) -> int | None:
    return next((n for n, a in enumerate(axes) if a.var.same_as(index)), None)


def _is_one(step: ir.Expr) -> bool:
    return isinstance(step, tirx.IntImm) and int(step) == 1


def _is_short(step: ir.Expr) -> bool:
    return isinstance(step, tirx.IntImm) and int(step) in (0, 1)


def _are_one(outer: ir.Expr, inner: ir.Expr, extent: ir.Expr) -> bool:
    return bool(sym.Analyzer().can_prove_equal(outer, inner * extent))
