"""Pipelines of warpgroups with roles: rings of stages, filled by producers and read by consumers.

    one thread: initialize(barriers);  a barrier of the block                  (warp_specialized)
    producer:   for step:  ring.acquire();  copy to stage, which completes on full[stage]; advance
    consumer:   for step:  ring.wait();     read stage;  ring.release();                   advance

    acquire     wait(empty[stage], parity ^ 1)
    wait        wait(full[stage], parity)
    release     one lane of each warp: arrive(empty[stage])

Barriers are mbarriers in shared memory. A ring's full and empty barriers lie one group behind the
other; others order the consumers among themselves, or say that what is copied once is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ...core.expressions import load
from ...core.loops import index, local, loop, sequence, when
from . import mbarrier, wgmma
from .launch import dependency_wait
from .shared_tiles import block_barrier
from .warp import warp_uniform


@dataclass(frozen=True)
class Barriers:
    """Mbarriers side by side in shared memory: one for each stage, each consumer, or one.

    Attributes
    ----------
    shared : Var
        Shared memory.
    first : int
        Where the first one lies, in bytes.
    count : int
        How many there are; of none, only their place is known.
    arrivals : int
        That end a phase of each.
    """

    shared: ir.Var
    first: int
    count: int
    arrivals: int

    @property
    def end(self) -> int:
        """Where the last one ends, in bytes."""
        return self.first + self.count * mbarrier.BYTES

    def __getitem__(self, number: ir.Expr | int) -> ir.TensorLoad:
        """Give a barrier."""
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
    together : sequence of Barriers
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
    stages : int
        Stages of the ring.
    stage : Expr
        The stage.
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
    shared : Var
        Shared memory.
    first : int
        Where the barriers lie, in bytes: of full stages, then of empty ones.
    arrivals : (int, int)
        That fill a stage, besides the bytes of copies, and that empty it.
    at : RingPosition
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


Role = Callable[[ir.Expr], tirx.Stmt]


def warp_specialized(
    thread: ir.Expr,
    setup: tirx.Stmt,
    produce: Role,
    consume: Role,
    producers: int = 1,
    registers: tuple[int, int] | None = None,
    around: tuple[Sequence[tirx.Stmt], Sequence[tirx.Stmt]] = ((), ()),
) -> list[tirx.Stmt]:
    """Give the warpgroups of a block roles.

    Parameters
    ----------
    setup : Stmt
        Initializes barriers: the first thread, while the kernel before may still run.
    produce, consume : callable
        What a producer or consumer does, from its number among those of its role.
    producers : int
        Warpgroups that produce, the first ones.
    registers : (int, int), optional
        Of a producer's and of a consumer's thread, if they are moved from the one to the other.
    around : (sequence of Stmt, sequence of Stmt)
        What all threads do in front of the barrier that ends the setup, and behind it.
    """
    group = tirx.Var("warpgroup", "int32")
    is_producer = group.equal(0) if producers == 1 else group < producers
    roles = produce(group), consume(group - producers)
    if registers is not None:
        moves = wgmma.give_registers(registers[0]), wgmma.take_registers(registers[1])
        roles = sequence([moves[0], roles[0]]), sequence([moves[1], roles[1]])
    return [
        when(thread.equal(0), setup),
        dependency_wait(),
        *around[0],
        block_barrier(),
        *around[1],
        tirx.Bind(group, warp_uniform(tirx.floordiv(thread, index(wgmma.THREADS)))),
        tirx.IfThenElse(is_producer, *roles),
    ]


def persistent_tiles(
    tiles: ir.Expr | int,
    blocks: ir.Expr | int,
    number: ir.Expr,
    body: Callable[[ir.Expr, ir.Expr], tirx.Stmt],
    share: tuple[ir.Expr | int, int] = (0, 1),
) -> tirx.Stmt:
    """Loop over the tiles of a block that stays while there are any: every ``blocks``-th one.

    Parameters
    ----------
    number : Expr
        The block.
    body : callable
        From a tile's number among those of the block, and among all, to what is done.
    share : (Expr or int, int)
        Of consumers that take turns: which of the block's tiles is the first, and every so many.
    """
    first, every = share
    count = tirx.floordiv(tiles - number + (blocks - 1), index(blocks))
    count = tirx.floordiv(count - first + (every - 1), index(every))

    def one(turn: ir.Expr) -> tirx.Stmt:
        step = turn * every + first
        return body(step, number + step * blocks)

    return loop("turn", count, one)
