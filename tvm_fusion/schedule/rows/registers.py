"""What the registers of a block's threads hold of its rows from one walk to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import DataType, ir

from ..expressions import contains
from .emit import static_volume
from .geometry import VECTOR_ELEMENTS, Geometry
from .passes import Pass, is_same_position, plan_passes, private_buffers
from .stages import Axis, RowStages
from .vectors import order_of

REGISTER_ELEMENTS = 32  # single elements of one row buffer that a thread keeps in registers
# 32-bit registers of a thread: what its rows leave to addresses and arithmetic, and what a thread
# gets at most, so that a multiprocessor holds threads enough.
RESERVED_REGISTERS = 32
MOST_REGISTERS = 96
BLOCK_REGISTERS = 1 << 16


@dataclass(frozen=True)
class Registers:
    """Room for rows in the registers of a block's threads.

    Attributes
    ----------
    geometry : Geometry
        The threads.
    """

    geometry: Geometry

    def hold_all(self, program: RowStages) -> bool:
        """Whether there is room for every row buffer that needs no exchange."""
        passes = plan_passes(program)
        private = private_buffers(program, passes)
        rows = [
            buffer
            for buffer in program.internal
            if program.stages[program.producer(buffer)].inner
            and not contains(private, buffer)
            and is_own(program, buffer)
        ]
        return self.hold(program, passes, rows)

    def hold(self, program: RowStages, passes: Sequence[Pass], rows: Sequence[ir.Var]) -> bool:
        """Whether there is room for some row buffers, each from its first walk to its last."""
        threads = self.geometry.threads * self.geometry.rows
        registers = min(MOST_REGISTERS, BLOCK_REGISTERS // threads) - RESERVED_REGISTERS
        held = [0] * len(passes)
        for buffer in rows:
            size = self._bytes(program, buffer)
            if size is None:
                return False
            for number in _life(program, passes, buffer):
                held[number] += size
        return max(held, default=0) <= 4 * registers

    def _bytes(self, program: RowStages, buffer: ir.Var) -> int | None:
        """Bytes of a thread's part of a row; ``None`` if it is too much to unroll."""
        axes = program.stages[program.producer(buffer)].inner
        width = order_of(program, axes).width
        steps = steps_of(axes, self.geometry.threads, width)
        if steps is None:
            return None
        if width == 1:
            return 4 * steps if steps <= REGISTER_ELEMENTS else None
        size = DataType(str(buffer.dtype)).itemsize
        return steps * width * size if steps * width <= VECTOR_ELEMENTS else None


def _life(program: RowStages, passes: Sequence[Pass], buffer: ir.Var) -> range:
    """List the walks after which a buffer is still read."""
    touched = [
        number
        for number, one in enumerate(passes)
        for stage in one.stages
        if contains(stage.targets, buffer)
        or any(load.source.same_as(buffer) for load in stage.loads)
    ]
    return range(min(touched), max(touched))


def is_own(program: RowStages, buffer: ir.Var) -> bool:
    """Whether each element is read only by the thread that writes it."""
    producer = program.stages[program.producer(buffer)]
    return all(
        is_same_position(producer, reader, load) and not (reader.inner and reader.reduce)
        for reader in program.stages
        for load in reader.loads
        if load.source.same_as(buffer)
    )


def steps_of(axes: Sequence[Axis], threads: int, width: int = 1) -> int | None:
    """Vectors that each thread of a row handles; ``None`` where symbolic."""
    if any(axis.size is None for axis in axes):
        return None
    return -(-static_volume(axes, 1) // (threads * width))
