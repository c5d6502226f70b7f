"""Rings of stages in shared memory that asynchronous copies fill.

By barriers, between warpgroups with roles (TMA; roles in warp_specialized):
    one thread: initialize(barriers), then a barrier of the block
    producer:   for step:  acquire();  copy to the stage, which completes on full[stage];  advance
    consumer:   for step:  wait();     read the stage;  release();                         advance
    acquire     wait(empty[stage], parity ^ 1)
    wait        wait(full[stage], parity)
    release     one lane of each warp: arrive(empty[stage])
By commit groups, where all threads copy and read (cp.async):
    for s in 0 .. stages - 2:   copy to stage s;  commit
    for step:                   wait until all but the last few groups are there;  read the stage
                                copy step + stages - 1 into the stage that was read before;  commit

``Ring`` is of barriers. Of commit groups, ``StageRing`` finds stages by a step's number, in loops
that are unrolled, ``OffsetRing`` by offsets in registers. ``WrittenOutRing`` is of a barrier of the
block alone, in loops whose trips are as many steps as there are stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import index, local, sequence, simplified, when
from . import mbarrier
from .cp_async import commit, copy_16
from .shared_tiles import wait_and_barrier


@dataclass(frozen=True)
class Barriers:
    """Mbarriers side by side in shared memory: one for each stage, each consumer, or one."""

    shared: ir.Var  # shared memory
    first: int  # where the first one lies, in bytes
    count: int  # how many there are; of none, only their place is known
    arrivals: int  # how many end a phase of each

    @property
    def end(self) -> int:
        """Where the last one ends, in bytes."""
        return self.first + self.count * mbarrier.BYTES

    def __getitem__(self, number: ir.Expr | int) -> ir.TensorLoad:
        """Return a barrier."""
        item_bytes = DataType(str(self.shared.ty.dtype)).itemsize
        place = index(number) * (mbarrier.BYTES // item_bytes) + self.first // item_bytes
        return load(self.shared, [place])

    def wait(self, number: ir.Expr | int, parity: ir.Expr) -> tirx.Stmt:
        """Wait at a barrier for the end of the phase of a parity."""
        return mbarrier.wait(self[number], parity)

    def arrive(self, number: ir.Expr | int, lane: ir.Expr) -> tirx.Stmt:
        """Arrive at a barrier, once for each warp: by its first lane."""
        return when(lane.equal(0), mbarrier.arrive(self[number]))


def initialize(*together: Sequence[Barriers]) -> list[tirx.Stmt]:
    """Initialize barriers and make them known to copies; one thread does.

    Parameters
    ----------
    together
        Groups of equal extent, the barriers of one stage behind each other.
    """
    stmts = [
        mbarrier.init(group[number], group.arrivals)
        for groups in together
        for number in range(groups[0].count)
        for group in groups
    ]
    return [*stmts, mbarrier.fence_init()]


# A thread's position in a ring of stages with mbarriers, kept in registers.
#
#     start():     stage = parity = 0
#     advance(1):  before = stage;  stage += 1;  at the end of the ring:  stage = 0, parity ^= 1
#
# Computed from the number of a step, quotients by the number of stages would take longer than the
# products of a small tile.
_STAGE, _PARITY, _BEFORE = range(3)


class RingPosition:
    """A position in a ring.

    Attributes
    ----------
    parity : Expr
        Of the phase in which the stage is used.
    before : Expr
        The stage that was left last, by a step of one.
    buffer : Var
        Registers.
    """

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.buffer = local("ring", [3], "int32")
        self.stage, self.parity, self.before = (load(self.buffer, [index(i)]) for i in range(3))

    def start(self) -> list[tirx.Stmt]:
        """Begin at the first stage."""
        return [self._set(name, tirx.const(0, "int32")) for name in (_STAGE, _PARITY, _BEFORE)]

    def advance(self, count: int) -> list[tirx.Stmt]:
        """Go on by some stages."""
        rounds, steps = divmod(count, self.stages)
        other = self._set(_PARITY, 1 - self.parity)
        stmts = [self._set(_BEFORE, self.stage)] if count == 1 else []
        stmts += [other] if rounds % 2 else []
        if not steps:
            return stmts
        again = sequence([self._set(_STAGE, self.stage - self.stages), other])
        on = self._set(_STAGE, self.stage + steps)
        return [*stmts, on, when(self.stage >= self.stages, again)]

    def _set(self, name: int, value: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.buffer, value, [name])


class Ring:
    """Stages that are handed over by barriers, and where a thread is among them.

    Parameters
    ----------
    first
        Where the barriers lie, in bytes: of full stages, then of empty ones.
    arrivals
        How many fill a stage, besides the bytes of copies, and how many empty it.
    at
        The thread's position, which rings that go on together share.

    Attributes
    ----------
    full, empty : Barriers
        Of each stage: what was copied is there; all have read it.
    """

    def __init__(
        self, shared: ir.Var, first: int, arrivals: tuple[int, int], at: RingPosition
    ) -> None:
        self.at = at
        self.full = Barriers(shared, first, at.stages, arrivals[0])
        self.empty = Barriers(shared, self.full.end, at.stages, arrivals[1])

    @property
    def barriers(self) -> tuple[Barriers, Barriers]:
        """Both groups, to be initialized together."""
        return self.full, self.empty

    def acquire(self) -> tirx.Stmt:
        """Let a producer wait until the stage is empty; at once in the first round."""
        return self.empty.wait(self.at.stage, 1 - self.at.parity)

    def wait(self) -> tirx.Stmt:
        """Let a consumer wait until the stage is full."""
        return self.full.wait(self.at.stage, self.at.parity)

    def release(self, lane: ir.Expr, stage: ir.Expr) -> tirx.Stmt:
        """Let the producer overwrite a stage, which the lane's warp has read."""
        return self.empty.arrive(stage, lane)


@dataclass(frozen=True, eq=False)
class StageRing:
    """A ring of stages in shared memory, ``buffer[stages, ...]``: a step uses stage step % stages.

    All stages of a kernel are one buffer. TVM 0.27 lets two buffers share memory if copies into the
    one precede reads of the other, as it does not count address_of as a use. CUDA wants one type
    for all declarations of a name.
    """

    buffer: ir.Var

    @classmethod
    def declare(cls, shape: Sequence[int], dtype: str) -> StageRing:
        """Declare the ring; the first extent is the number of stages."""
        extents = [index(d) for d in shape]
        return cls(scratch(extents, dtype, f"cp_async_{dtype}", "shared.dyn"))

    def element(self, step: ir.Expr, *place: ir.Expr) -> ir.TensorLoad:
        """Read an element of a step's stage."""
        stages = index(int(self.buffer.ty.shape[0]))
        return load(self.buffer, [simplified(tirx.floormod(step, stages)), *place])

    def copy(self, step: ir.Expr, place: Sequence[ir.Expr], source: ir.TensorLoad) -> tirx.Stmt:
        """Issue the copy of the aligned vector that starts at ``source`` into a step's stage."""
        return copy_16(self.element(step, *place, index(0)), source)


_READ, _WRITE = range(2)


class OffsetRing:
    """A ring of stages of equal size, one commit group each: where they are read and written.

    They are kept in registers, so that no remainder of a step's number is computed.

    Parameters
    ----------
    stages, size
        Stages, and elements of one.
    barrier
        Of the block, which alone orders loads and stores; copies are cp.async without.

    Attributes
    ----------
    read, write : Expr
        Offsets of the stage that is read, and of the one that is copied to.
    buffers : list of Var
        Registers.
    """

    steps = 1  # of a trip of the loop

    def __init__(
        self, stages: int, size: int, barrier: Callable[[], tirx.Stmt] | None = None
    ) -> None:
        self._stages, self._size, self._barrier = stages, size, barrier
        self.buffer = local("stage_word", [2], "int32")
        self.buffers = [self.buffer]
        self.read, self.write = (
            tirx.Cast("int64", load(self.buffer, [index(i)])) for i in (_READ, _WRITE)
        )

    def start(self) -> list[tirx.Stmt]:
        """Begin with all stages but one filled."""
        first = (_READ, 0), (_WRITE, self._stages - 1)
        return [self._set(i, tirx.const(stage * self._size, "int32")) for i, stage in first]

    def advance_read(self) -> tirx.Stmt:
        """Go on to the next stage that is read."""
        return self._advance(_READ)

    def advance_write(self) -> tirx.Stmt:
        """Go on to the next stage that is copied to."""
        return self._advance(_WRITE)

    def commit(self) -> tirx.Stmt:
        """Close the commit group of a stage, which may be empty."""
        return commit() if self._barrier is None else sequence([])

    def wait(self) -> tirx.Stmt:
        """Wait until every thread's copies are there, but for the last ``stages - 2`` stages."""
        return wait_and_barrier(self._stages - 2) if self._barrier is None else self._barrier()

    def _advance(self, name: int) -> tirx.Stmt:
        offset = load(self.buffer, [index(name)])
        last = tirx.const((self._stages - 1) * self._size, "int32")
        zero, step = tirx.const(0, "int32"), tirx.const(self._size, "int32")
        return self._set(name, tirx.Select(offset == last, zero, offset + step))

    def _set(self, name: int, value: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.buffer, value, [name])


class WrittenOutRing:
    """A ring of stages of equal size whose loop is written out: stages are constants of the code.

    Steps are written in the order in which they run, and a trip of the loop leaves the ring as it
    found it. So a compiler adds no offset of a stage to the addresses of a step.

    Parameters
    ----------
    stages, size
        Stages, and elements of one.
    barrier
        Of the block, which orders loads and stores.

    Attributes
    ----------
    read, write
        Offsets of the stage that is read, and of the one that is copied to, at the step that is
        being written.
    steps : int
        Of a trip of the loop.
    buffers : list of Var
        Registers: none.
    """

    def __init__(self, stages: int, size: int, barrier: Callable[[], tirx.Stmt]) -> None:
        self.steps, self._size, self.wait = stages, size, barrier
        self._read, self._write = 0, stages - 1
        self.buffers: list[ir.Var] = []

    @property
    def read(self) -> ir.Expr:
        """The stage that is read."""
        return index(self._read * self._size)

    @property
    def write(self) -> ir.Expr:
        """The stage that is copied to."""
        return index(self._write * self._size)

    def start(self) -> list[tirx.Stmt]:
        """Begin with all stages but one filled."""
        return []

    def commit(self) -> tirx.Stmt:
        """Do nothing: there are no groups."""
        return sequence([])

    def advance_read(self) -> tirx.Stmt:
        """Go on to the next stage that is read."""
        self._read = (self._read + 1) % self.steps
        return sequence([])

    def advance_write(self) -> tirx.Stmt:
        """Go on to the next stage that is copied to."""
        self._write = (self._write + 1) % self.steps
        return sequence([])
