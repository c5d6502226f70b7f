"""Placement of row buffers on a GPU: registers, shared memory, or recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.tir.expressions import call_name, loads, map_loads, substitute, variables
from ....program.stage import Axis
from ...index.estimate import points, terms
from ..program.emit import static_volume
from ..program.passes import Pass, equal_loops, is_same_position, plan_passes, private_buffers
from ..program.row_program import RowProgram, RowStage
from .config import RowConfig
from .vectorize import Vectorization, vectorize

REGISTER_ELEMENTS = 32  # scalar elements of one row buffer that a thread keeps in registers
RESERVED_REGISTERS = 32  # 32-bit ones of a thread, for addresses and arithmetic
BLOCK_REGISTERS = 1 << 16


@dataclass(frozen=True)
class RegisterBudget:
    """Room for rows in the registers of a block's threads."""

    config: RowConfig

    def hold_all(self, program: RowProgram) -> bool:
        """Whether there is room for every row buffer that threads need not share."""
        passes = plan_passes(program)
        return self.hold(program, passes, _rows(program, passes))

    def kept(self, program: RowProgram) -> list[tuple[int, int]]:
        """List the bytes and the elements of a thread's row buffers, where most live at once."""
        passes = plan_passes(program)
        live: list[list[tuple[int, int]]] = [[] for _ in passes]
        for buffer in _rows(program, passes):
            size = self._bytes(program, buffer) or 0
            for number in _life(passes, buffer):
                live[number].append((size, size // DataType(str(buffer.dtype)).itemsize))
        return max(live, key=lambda rows: sum(size for size, _ in rows), default=[])

    def hold(self, program: RowProgram, passes: Sequence[Pass], rows: Sequence[ir.Var]) -> bool:
        """Whether there is room for some row buffers, each live from its first pass to its last."""
        threads = self.config.threads * self.config.rows
        registers = min(self.config.max_registers, BLOCK_REGISTERS // threads) - RESERVED_REGISTERS
        held = [0] * len(passes)
        for buffer in rows:
            size = self._bytes(program, buffer)
            if size is None:
                return False
            for number in _life(passes, buffer):
                held[number] += size
        return max(held, default=0) <= 4 * registers

    def _bytes(self, program: RowProgram, buffer: ir.Var) -> int | None:
        """Count the bytes of a thread's part of a row; ``None`` if it is too long to unroll."""
        axes = program.producer(buffer).inner
        vectors = vectorize(program, axes)
        width = vectors.width
        steps = items_per_thread(axes, self.config.threads, vectors)
        if steps is None:
            return None
        if width == 1:
            return 4 * steps if steps <= REGISTER_ELEMENTS else None
        size = DataType(str(buffer.dtype)).itemsize
        return steps * width * size if steps * width <= self.config.row_elements else None


def _rows(program: RowProgram, passes: Sequence[Pass]) -> list[ir.Var]:
    """List the row buffers that threads need not share."""
    private = private_buffers(program, passes)
    return [
        buffer
        for buffer in program.internal
        if program.producer(buffer).inner
        and buffer not in private
        and is_thread_local(program, buffer)
    ]


def _life(passes: Sequence[Pass], buffer: ir.Var) -> range:
    """List the passes after which a buffer is still live."""
    touched = [
        number
        for number, one in enumerate(passes)
        for stage in one.stages
        if buffer in stage.targets or any(load.source.same_as(buffer) for load in stage.loads)
    ]
    return range(min(touched), max(touched))


def is_thread_local(program: RowProgram, buffer: ir.Var) -> bool:
    """Whether each element is read only by the thread that writes it."""
    producer = program.producer(buffer)
    return all(
        is_same_position(producer, reader, load) and not (reader.inner and reader.reduce)
        for reader in program.stages
        for load in reader.loads
        if load.source.same_as(buffer)
    )


def items_per_thread(
    axes: Sequence[Axis], threads: int, vectors: Vectorization | None = None
) -> int | None:
    """Count the elements of each thread of a row, or its vectors; ``None`` where symbolic."""
    if any(axis.size is None for axis in axes):
        return None
    size = static_volume(axes, 1)
    return -(-(vectors.count(size) if vectors else size) // threads)


RESERVED_SHARED = 4096  # bytes left to the block reductions


@dataclass(frozen=True)
class Storage:
    """The stages, with a place for each row buffer."""

    # With copies of inputs that are loaded more than once, without maps that are recomputed.
    program: RowProgram
    shared: tuple[ir.Var, ...]  # internal buffers in shared memory
    shared_bytes: int  # static shared memory of a block for those


def place_rows(program: RowProgram, config: RowConfig, limit: int, copies: bool) -> Storage | str:
    """Place each row buffer.

    Parameters
    ----------
    config
        Threads of a row and rows of a block.
    limit
        Bytes of shared memory that a block may declare.
    copies
        Whether to keep inputs that are loaded more than once; an estimate needs no copies, since
        they live in registers.

    Returns
    -------
    Storage or str
        The placement, or why there is none: a sentence.
    """
    room = RegisterBudget(config)
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
            producer = program.producer(buffer)
            if not producer.inner or buffer in private:
                continue
            if is_thread_local(program, buffer) and room.hold(program, passes, [*kept, buffer]):
                kept.append(buffer)
                continue
            size = _bytes(buffer, program.row_rank)
            if size is not None and used + size * config.rows <= limit - RESERVED_SHARED:
                shared.append(buffer)
                used += size * config.rows
                continue
            if not producer.is_map or not all(
                isinstance(i, ir.Var) for i in producer.written(buffer)
            ):
                held = "an unknown number of" if size is None else size * config.rows
                return (
                    f"The results of {producer.title} need {held} bytes of shared memory; "
                    f"a block has {limit - RESERVED_SHARED}."
                )
            program = recompute(program, producer)
            break
        else:
            return Storage(program, tuple(shared), used)


def copy_inputs(program: RowProgram) -> RowProgram:
    """Load each input element once: what several passes load becomes a row buffer.

    What is gathered comes before its indices, which no pass but the first needs then.
    """
    while repeated := _repeated_loads(program):
        load, owner, _ = max(repeated, key=lambda one: len(loads(one[0])))
        axes = (*owner.rows, *owner.loop_axes)
        shape = [axis.extent for axis in axes]
        copy = declare(shape, str(load.source.dtype), f"{load.source.name}_row")
        stages = [_redirect(stage, owner, load, copy) for stage in program.stages]
        indices = tuple(axis.var for axis in axes)
        # Behind what computes its indices, such as the rows of an embedding table.
        read = [other.source for index in load.indices for other in loads(index)]
        behind = [n for n, s in enumerate(stages) if any(b in s.targets for b in read)]
        stages.insert(
            max(behind, default=-1) + 1,
            RowStage.map_of(copy, owner.rows, owner.loop_axes, indices, load),
        )
        program = program.with_stages(stages)
    return program


def repeated_bytes(program: RowProgram) -> int:
    """Count the bytes that passes load although an earlier one has, of all rows."""
    return sum(
        (times - 1) * points(owner) * terms(owner) * DataType(str(load.source.dtype)).itemsize
        for load, owner, times in _repeated_loads(program)
    )


def _repeated_loads(program: RowProgram) -> list[tuple[ir.TensorLoad, RowStage, int]]:
    """Find what several passes load at the same position, by the axes of a stage, and how many."""
    found: list[tuple[ir.TensorLoad, RowStage, set[int]]] = []
    for number, one in enumerate(plan_passes(program)):
        for stage in one.stages:
            for load in _plain_loads(program, stage):
                for seen, owner, numbers in found:
                    if equal_loops(owner, stage) and _is_same(seen, owner, load, stage):
                        numbers.add(number)
                        break
                else:
                    found.append((load, stage, {number}))
    return [(load, owner, len(numbers)) for load, owner, numbers in found if len(numbers) > 1]


def _plain_loads(program: RowProgram, stage: RowStage) -> list[ir.TensorLoad]:
    """List unconditional loads of inputs that vary along the loop."""
    branches: list[ir.Call] = []
    for value in stage.values:
        tvm_ffi.structural_walk(value, (ir.Call, branches.append))
    guarded = [
        load for call in branches if call_name(call) == "if_then_else" for load in loads(call)
    ]
    axes = [axis.var for axis in stage.loop_axes]
    return [
        load
        for load in stage.loads
        if not program.is_internal(load.source)
        and any(v in axes for index in load.indices for v in variables(index))
        and not any(tvm_ffi.structural_equal(load, other) for other in guarded)
    ]


def _is_same(one: ir.TensorLoad, owner: RowStage, other: ir.TensorLoad, stage: RowStage) -> bool:
    return one.source.same_as(other.source) and tvm_ffi.structural_equal(
        one, _in_axes_of(owner, other, stage)
    )


def _in_axes_of(owner: RowStage, expr: ir.Expr, stage: RowStage) -> ir.Expr:
    old, new = (*stage.rows, *stage.loop_axes), (*owner.rows, *owner.loop_axes)
    return substitute(expr, {o.var: n.var for o, n in zip(old, new, strict=True)})


def _redirect(stage: RowStage, owner: RowStage, load: ir.TensorLoad, copy: ir.Var) -> RowStage:
    """Redirect a stage's loads to the copy."""
    if not equal_loops(owner, stage):
        return stage
    position = [axis.var for axis in (*stage.rows, *stage.loop_axes)]

    def take(other: ir.TensorLoad) -> ir.Expr:
        same = _is_same(load, owner, other, stage)
        return tirx.BufferLoad(copy, position) if same else other

    return stage.with_values([map_loads(value, take) for value in stage.values])


def recompute(program: RowProgram, producer: RowStage) -> RowProgram:
    """Inline a map into its readers."""
    buffer = producer.targets[0]

    def inlined(load: ir.TensorLoad) -> ir.Expr:
        if not load.source.same_as(buffer):
            return load
        pairs = dict(zip(producer.written(buffer), load.indices, strict=True))
        return substitute(producer.values[0], pairs)

    kept = program.with_stages([stage for stage in program.stages if stage is not producer])
    return kept.map_values(lambda value: map_loads(value, inlined))


def _bytes(buffer: ir.Var, rows: int) -> int | None:
    count = 1
    for extent in list(buffer.shape)[rows:]:
        if not isinstance(extent, tirx.IntImm):
            return None
        count *= int(extent)
    return count * DataType(str(buffer.dtype)).itemsize
