"""Register budget: what a thread keeps of its rows from one pass to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir

from ....program.stage import Axis
from ..program.emit import static_volume
from ..program.passes import Pass, is_same_position, plan_passes, private_buffers
from ..program.row_program import RowProgram
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
