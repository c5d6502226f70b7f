"""Where a thread block keeps what a row holds: registers, shared memory, or recomputed."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ..._tvm.buffer import declare
from ...core.expressions import call_name
from ..expressions import contains, loads_of, substitute, variables_of
from .emit import replace
from .geometry import Geometry
from .passes import equal_domains, plan_passes, private_buffers
from .registers import Registers, is_own
from .stages import RowStages, Stage

RESERVED_SHARED = 4096  # bytes left to the reductions' exchange between warps


@dataclass(frozen=True)
class Storage:
    """What the stages read and write once each row buffer has its place.

    Attributes
    ----------
    program : RowStages
        With copies of inputs that are read more than once, and without what is recomputed.
    shared : tuple of Var
        Internal buffers that threads exchange elements through.
    shared_bytes : int
        Static shared memory of a block for those.
    """

    program: RowStages
    shared: tuple[ir.Var, ...]
    shared_bytes: int


def place_rows(program: RowStages, geometry: Geometry, limit: int, copies: bool) -> Storage | str:
    """Give each row buffer its place.

    Parameters
    ----------
    program : RowStages
        The stages.
    geometry : Geometry
        Threads of a row and rows of a block.
    limit : int
        Bytes of shared memory that a block may declare.
    copies : bool
        Whether to keep what is read more than once; an estimate needs no copies, since they live in
        registers.

    Returns
    -------
    Storage or str
        The places, or why there are none: a sentence.
    """
    room = Registers(geometry)
    if copies:
        copied = copy_inputs(program)
        if room.hold_all(copied):
            program = copied
    while True:
        shared = []
        kept: list[ir.Var] = []
        used = 0
        passes = plan_passes(program)
        private = private_buffers(program, passes)
        for buffer in program.internal:
            producer = program.stages[program.producer(buffer)]
            if not producer.inner or contains(private, buffer):
                continue
            if is_own(program, buffer) and room.hold(program, passes, [*kept, buffer]):
                kept.append(buffer)
                continue
            size = _bytes(buffer, len(program.rows))
            if size is not None and used + size * geometry.rows <= limit - RESERVED_SHARED:
                shared.append(buffer)
                used += size * geometry.rows
                continue
            if not producer.is_map or not all(
                isinstance(i, ir.Var) for i in producer.written(buffer)
            ):
                held = "an unknown number of" if size is None else size * geometry.rows
                return (
                    f"{producer.name} needs {held} bytes of shared memory for its results; "
                    f"a block has {limit - RESERVED_SHARED}."
                )
            program = recompute(program, producer)
            break
        else:
            return Storage(program, tuple(shared), used)


def copy_inputs(program: RowStages) -> RowStages:
    """Read each input element once: what several walks load alike becomes a row buffer."""
    stages = list(program.stages)
    internal = list(program.internal)
    for load, owner in _repeated_loads(program):
        axes = (*owner.rows, *owner.domain)
        shape = [axis.extent for axis in axes]
        copy = declare(shape, str(load.source.dtype), f"{load.source.name}_row")
        internal.append(copy)
        stages = [_redirect(stage, owner, load, copy) for stage in stages]
        indices = tuple(axis.var for axis in axes)
        # Rows of a table: behind what computes which of them.
        read = [other.source for index in load.indices for other in loads_of(index)]
        behind = [n for n, s in enumerate(stages) if any(contains(s.targets, b) for b in read)]
        stages.insert(
            max(behind, default=-1) + 1,
            Stage(copy.name, owner.rows, owner.domain, (), (copy,), (indices,), (load,)),
        )
    return RowStages(program.func, tuple(stages), tuple(internal))


def _repeated_loads(program: RowStages) -> list[tuple[ir.TensorLoad, Stage]]:
    """Find what several walks load at the same position, with a stage whose axes say where."""
    found: list[tuple[ir.TensorLoad, Stage, set[int]]] = []
    for number, one in enumerate(plan_passes(program)):
        for stage in one.stages:
            for load in _plain_loads(program, stage):
                for seen, owner, walks in found:
                    if equal_domains(owner, stage) and _is_same(seen, owner, load, stage):
                        walks.add(number)
                        break
                else:
                    found.append((load, stage, {number}))
    return [(load, owner) for load, owner, walks in found if len(walks) > 1]


def _plain_loads(program: RowStages, stage: Stage) -> list[ir.TensorLoad]:
    """List loads of inputs that change along the walk and happen whatever the values are."""
    branches: list[ir.Call] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, (ir.Call, branches.append))
    guarded = [
        load for call in branches if call_name(call) == "if_then_else" for load in loads_of(call)
    ]
    walked = [axis.var for axis in stage.domain]
    return [
        load
        for load in stage.loads
        if not program.is_internal(load.source)
        and any(contains(walked, v) for index in load.indices for v in variables_of(index))
        and not any(tvm_ffi.structural_equal(load, other) for other in guarded)
    ]


def _is_same(one: ir.TensorLoad, owner: Stage, other: ir.TensorLoad, stage: Stage) -> bool:
    return one.source.same_as(other.source) and tvm_ffi.structural_equal(
        one, _in_axes_of(owner, other, stage)
    )


def _in_axes_of(owner: Stage, expr: ir.Expr, stage: Stage) -> ir.Expr:
    old, new = (*stage.rows, *stage.domain), (*owner.rows, *owner.domain)
    return substitute(expr, [(o.var, n.var) for o, n in zip(old, new, strict=True)])


def _redirect(stage: Stage, owner: Stage, load: ir.TensorLoad, copy: ir.Var) -> Stage:
    """Let a stage read the copy."""
    if not equal_domains(owner, stage):
        return stage
    position = [axis.var for axis in (*stage.rows, *stage.domain)]

    def take(other: ir.TensorLoad) -> ir.Expr:
        same = _is_same(load, owner, other, stage)
        return tirx.BufferLoad(copy, position) if same else other

    return stage.with_values([replace(value, [], take) for value in stage.values])


def recompute(program: RowStages, producer: Stage) -> RowStages:
    """Substitute a map into its readers."""
    buffer = producer.targets[0]

    def inlined(load: ir.TensorLoad) -> ir.Expr:
        if not load.source.same_as(buffer):
            return load
        pairs = list(zip(producer.written(buffer), load.indices, strict=True))
        return substitute(producer.values[0], pairs)

    stages = [
        stage.with_values([replace(value, [], inlined) for value in stage.values])
        for stage in program.stages
        if stage is not producer
    ]
    internal = tuple(b for b in program.internal if not b.same_as(buffer))
    return RowStages(program.func, tuple(stages), internal)


def _bytes(buffer: ir.Var, rows: int) -> int | None:
    count = 1
    for extent in list(buffer.shape)[rows:]:
        if not isinstance(extent, tirx.IntImm):
            return None
        count *= int(extent)
    return count * DataType(str(buffer.dtype)).itemsize
