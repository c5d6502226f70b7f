"""Warp shuffles: all-reduce by butterfly exchange, and loops over the threads of a block.

Every exchange is a loop over the threads of its own, from one register buffer into another, so that
it means the same if threads run one after the other:

for distance in lanes / 2, lanes / 4, .., step:
    each thread: there[i] = combine(here[i], shfl(here[i], lane ^ distance)) for all i
    here, there = there, here
"""

import operator
from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx.op import tvm_warp_shuffle

from ....core.tir.loops import index, threads, unrolled

LANES = 32  # threads of an NVIDIA warp; two of them are a wave of CDNA
FULL_MASK = 0xFFFFFFFF  # every thread of a warp takes part in an exchange

_UNIFORM = "tvm_fusion_warp_uniform"
_UNIFORM_SOURCE = f"""
__device__ __forceinline__ int {_UNIFORM}(int value) {{
  return __shfl_sync(0xffffffffu, value, 0);
}}
"""

Combine = Callable[[ir.Expr, ir.Expr], ir.Expr]
EachThread = Callable[[Callable[..., tirx.Stmt]], tirx.Stmt]


def each_thread(
    extents: Sequence[tuple[str, int]],
    body: Callable[..., tirx.Stmt],
    binds_single: bool = True,
) -> tirx.Stmt:
    """Run ``body(*indices)`` in every thread of a block.

    Parameters
    ----------
    extents
        Thread axes, such as ``threadIdx.y``, with their threads, outermost first.
    body
        From an index along each axis to what that thread does.
    binds_single
        Whether an axis of one thread is bound. TVM places barriers by whether an index depends on
        the innermost axis; none does on a single thread.
    """

    def level(depth: int, done: list[ir.Expr]) -> tirx.Stmt:
        if depth == len(extents):
            return body(*done)
        tag, extent = extents[depth]
        if extent == 1 and not binds_single:
            return level(depth + 1, [*done, index(0)])
        return threads(tag, extent, lambda i: level(depth + 1, [*done, i]))

    return level(0, [])


def warp_of(thread: ir.Expr, lanes: int = LANES) -> ir.Expr:
    """Return the index of a thread's warp, or of its wave of so many lanes."""
    return tirx.floordiv(thread, index(lanes))


def lane_of(thread: ir.Expr, lanes: int = LANES) -> ir.Expr:
    """Return a thread's lane in its warp, or in its wave of so many lanes."""
    return tirx.floormod(thread, index(lanes))


def warp_uniform(value: ir.Expr) -> ir.Expr:
    """Mark a number as uniform in a warp, so that CUDA's compiler knows it is."""
    number = tirx.Cast("int32", value)
    return cuda_func_call(_UNIFORM, number, source_code=_UNIFORM_SOURCE, return_type="int32")


def shuffle(value: ir.Expr, lane: ir.Expr, lanes: int = LANES, warp_size: int = LANES) -> ir.Expr:
    """Read another lane's value (``__shfl_sync``) among ``lanes`` neighbours of a warp."""
    sizes = (tirx.const(lanes, "int32"), tirx.const(warp_size, "int32"))
    return tvm_warp_shuffle(tirx.const(FULL_MASK, "uint32"), value, lane, *sizes)


def butterfly(
    value: ir.Expr, lane: ir.Expr, distance: int, lanes: int = LANES, warp_size: int = LANES
) -> ir.Expr:
    """Read the value of the lane at a distance, a power of two: one step of an all-reduce."""
    other = tirx.bitwise_xor(tirx.Cast("int32", lane), tirx.const(distance, "int32"))
    return shuffle(value, other, lanes, warp_size)


def warp_all_reduce(
    buffers: tuple[ir.Var, ir.Var],
    count: int,
    lanes: int,
    warp_size: int,
    each: EachThread,
    combine: Combine = operator.add,
    step: int = 1,
) -> tuple[list[tirx.Stmt], ir.Var]:
    """Reduce registers over neighbouring threads of a warp, and give all of them the result.

    Parameters
    ----------
    buffers
        Of ``[..., lanes, count]`` in registers, or ``[threads, count]``; the first one holds the
        terms.
    count
        Values of a thread, each reduced on its own.
    lanes
        Neighbouring threads that share a result: a power of two.
    each
        Runs ``body(*indices)`` in every thread: what places it in the buffers.
    combine
        The reduction: a sum, or a maximum.
    step
        Distance between threads that share a result, a power of two.

    Returns
    -------
    list of Stmt, Var
        The exchanges, and the buffer that holds the results behind them.
    """
    stmts: list[tirx.Stmt] = []
    here, there = buffers
    distance = lanes // 2
    while distance >= step:

        def exchange(
            *place: ir.Expr, here: ir.Var = here, there: ir.Var = there, distance: int = distance
        ) -> tirx.Stmt:
            lane = lane_of(place[-1], lanes)

            def one(i: ir.Expr) -> tirx.Stmt:
                own = tirx.BufferLoad(here, [*place, i])
                value = combine(own, butterfly(own, lane, distance, lanes, warp_size))
                return tirx.BufferStore(there, value, [*place, i])

            return unrolled("i", index(count), one)

        stmts.append(each(exchange))
        here, there = there, here
        distance //= 2
    return stmts, here
