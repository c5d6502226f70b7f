"""Blocks whose warpgroups have roles: producers copy tiles, consumers multiply them.

    one thread: initialize barriers;  a barrier of the block
    warpgroup < producers:  give registers away;  produce        tiles = block, block + grid, ..
    the others:             take registers;       consume        the same, or take turns

``pipeline`` has the rings of stages that they hand over.
"""

from collections.abc import Callable, Sequence

from tvm import ir, tirx

from ....core.tir.loops import index, loop, sequence, when
from ..launch import dependency_wait
from ..memory.shared_tiles import block_barrier
from ..threads.warp import warp_uniform
from . import wgmma

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
    """Assign roles to the warpgroups of a block.

    Parameters
    ----------
    setup
        Initializes barriers: the first thread, while the kernel before may still run.
    produce, consume
        What a producer or consumer does, from its number among those of its role.
    producers
        Warpgroups that produce, the first ones.
    registers
        Of a producer's and of a consumer's thread, if they are moved from the one to the other.
    around
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
    body
        From a tile's number among those of the block, and among all, to what is done.
    share
        Of consumers that take turns: which of the block's tiles is the first, and every so many.
    """
    first, every = share
    count = tirx.floordiv(tiles - number + (blocks - 1), index(blocks))
    count = tirx.floordiv(count - first + (every - 1), index(every))

    def one(turn: ir.Expr) -> tirx.Stmt:
        step = turn * every + first
        return body(step, number + step * blocks)

    return loop("turn", count, one)
