"""The reduction kernel of flash-decoding: merge what the splits of the keys found.

grid: kv_batch * rows blocks, one for a row of results
block: (reduce_threads, head_dim_v) threads; reduce_threads of them share a column
thread (p, c):
    for splits p, p + reduce_threads, .. at most SPLITS_IN_FLIGHT at a time:
        load acc[split, c], l[split], m[split]                 # all loads before their first use
        merge into (acc, l, m)
    (acc, l, m) -> shared memory
__syncthreads
thread (0, c):
    merge over p; out[row, c] = epilogue(acc / l)
"""

from collections.abc import Callable
from functools import partial

from tvm import ir, relax, tirx

from ...._tvm.ir.buffer import declare, scratch
from ....core.contract.template import Emission, Kernel, Slot
from ....core.tir.expressions import load
from ....core.tir.loops import (
    block,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    threads,
    unrolled,
    when,
)
from ....program.group import Group
from ....program.program import Program
from ...gpu.launch import min_blocks_per_sm
from ...gpu.threads.warp import each_thread
from ..problem.online_softmax import LOWEST, Merge, assign, float_, mean_of, store_result
from ..problem.pattern import FLOAT
from .config import FlashDecodeConfig
from .split_kv_simt import split_kv_kernel

SPLITS_IN_FLIGHT = 16  # splits that a thread loads before it merges them
EMPTY = (0, 0, LOWEST)  # acc, l and m of no keys


def reduction_kernel(
    program: Program, config: FlashDecodeConfig, partial_o: ir.Var, partial_ml: ir.Var
) -> tirx.PrimFunc:
    """Make the reduction kernel.

    Parameters
    ----------
    program, config, partial_o, partial_ml
        As of :func:`~tvm_fusion.schedule.attention.decode.split_kv_simt.split_kv_kernel`.
    """
    blocks = product([config.kv_batch, config.query_group.size])

    def body(number: ir.Expr) -> tirx.Stmt:
        batch, row = coordinates(number, [config.kv_batch, config.query_group.size])
        made = _RowReduction(config, batch, row, partial_o, partial_ml)
        return min_blocks_per_sm(made.stmt(), 1)

    whole = Program(
        (*program.inputs, partial_o, partial_ml), program.outputs, program.scalars, (), 0
    )
    return kernel(whole, threads("blockIdx.x", blocks, body))


class _RowReduction:
    """One block: a row of results."""

    def __init__(
        self,
        config: FlashDecodeConfig,
        batch: ir.Expr,
        row: ir.Expr,
        partial_o: ir.Var,
        partial_ml: ir.Var,
    ) -> None:
        self._config, self._partial_o, self._partial_ml = config, partial_o, partial_ml
        self._batch, self._row = batch, row
        splits = -(-config.splits // config.reduce_threads)  # of a thread
        self._iterations = -(-splits // SPLITS_IN_FLIGHT)
        self._unroll = -(-splits // self._iterations)
        shape = [index(config.reduce_threads), index(config.head_dim_v)]
        self._loaded = scratch([*shape, index(self._unroll), index(3)], FLOAT, "loaded", "local")
        self._merged = scratch([*shape, index(3)], FLOAT, "merged", "local")
        self._shared = scratch([index(3), *shape], FLOAT, "merged_shared", "shared")
        self._factor = local("factor", [1], FLOAT)

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        extents = [
            ("threadIdx.y", self._config.reduce_threads),
            ("threadIdx.x", self._config.head_dim_v),
        ]
        phases = [each_thread(extents, phase) for phase in (self._merge_splits, self._finish)]
        buffers = [self._loaded, self._merged, self._shared, self._factor]
        return block("reduce", sequence(phases), buffers)

    def _merge_splits(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Merge every ``reduce_threads``-th split into a thread's registers, then share them."""
        config, own = self._config, [p, c]

        def read(iteration: ir.Expr, number: ir.Expr) -> tirx.Stmt:
            split = (iteration * self._unroll + number) * config.reduce_threads + p
            m_i, l_i = (
                load(self._partial_ml, [self._batch, self._row, index(i), split]) for i in range(2)
            )
            values = [load(self._partial_o, [self._batch, self._row, split, c]), l_i, m_i]
            if self._iterations * self._unroll * config.reduce_threads > config.splits:
                values = [
                    tirx.if_then_else(split < config.splits, value, float_(empty))
                    for value, empty in zip(values, EMPTY, strict=True)
                ]
            return sequence(
                [
                    tirx.BufferStore(self._loaded, value, [*own, number, index(i)])
                    for i, value in enumerate(values)
                ]
            )

        def loaded(number: ir.Expr, i: int) -> ir.Expr:
            return load(self._loaded, [*own, number, index(i)])

        def share(i: int) -> tirx.Stmt:
            value = load(self._merged, [*own, index(i)])
            return tirx.BufferStore(self._shared, value, [index(i), p, c])

        def some(iteration: ir.Expr) -> tirx.Stmt:
            loads = unrolled("n", self._unroll, partial(read, iteration))
            return sequence([loads, self._merge(own, self._unroll, loaded)])

        iterations = loop("turn", self._iterations, some)
        return sequence([self._clear(own), iterations, *map(share, range(3))])

    def _clear(self, own: list[ir.Expr]) -> tirx.Stmt:
        return sequence(
            [
                tirx.BufferStore(self._merged, float_(empty), [*own, index(i)])
                for i, empty in enumerate(EMPTY)
            ]
        )

    def _merge(
        self, own: list[ir.Expr], count: int, partials: Callable[[ir.Expr, int], ir.Expr]
    ) -> tirx.Stmt:
        """Merge some partial results into those of a thread."""
        *sums, m = (load(self._merged, [*own, index(i)]) for i in range(3))
        factor = load(self._factor, [index(0)])
        merge = Merge(m, factor, lambda body: unrolled("n", count, body), lambda n: partials(n, 2))
        return sequence(
            [
                assign(factor, m),
                merge.maximum(),
                assign(factor, tirx.exp(factor - m)),
                *(assign(x, x * factor) for x in sums),
                merge.add(*((x, partial(_swapped, partials, i)) for i, x in enumerate(sums))),
            ]
        )

    def _finish(self, p: ir.Expr, c: ir.Expr) -> tirx.Stmt:
        """Merge what the threads of a column found, and store the result."""
        config, pattern = self._config, self._config.pattern

        def shared(number: ir.Expr, i: int) -> ir.Expr:
            return load(self._shared, [index(i), number, c])

        acc, l_i, m = (load(self._merged, [p, c, index(i)]) for i in range(3))
        at = {**config.query_group.place(self._batch, self._row), pattern.column.var: c}
        mean = mean_of(pattern, at, acc, m, l_i)
        merged = [self._clear([p, c]), self._merge([p, c], config.reduce_threads, shared)]
        stmts = [*merged, mean, store_result(pattern, at, acc)]
        return when(tirx.EQ(p, index(0)), sequence(stmts))


def _swapped(partials: Callable[[ir.Expr, int], ir.Expr], i: int, number: ir.Expr) -> ir.Expr:
    return partials(number, i)


# The launches of flash-decoding, and the partial results between two of them.
#
# split_kv    grid: batches and KV heads by splits of the keys
#             o, m, l = online softmax attention of the split's keys, for all rows of the query
#     group
#             partial_o[row, split, :] = o;  partial_ml[row, :, split] = (m, l)
# reduction   grid: rows
#             m = max m_s;  l = sum l_s exp(m_s - m)
#             C[row, :] = epilogue(sum o_s exp(m_s - m) / l)
def flash_decode(group: Group, config: FlashDecodeConfig) -> Emission:
    """Make the split-KV kernel and, where it does not merge the splits, the reduction kernel."""
    program = group.program
    if config.is_one_kernel:
        return Emission.one(split_kv_kernel(program, config, ()), group)
    rows = [config.kv_batch, index(config.query_group.size)]
    shapes = [
        [*rows, index(config.splits), index(config.head_dim_v)],
        [*rows, index(2), index(config.splits)],
    ]
    names = ("partial_o", "partial_ml")
    between = tuple(declare(s, FLOAT, n) for s, n in zip(shapes, names, strict=True))
    inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
    scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
    outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
    workspaces = tuple(Slot("workspace", i) for i in range(len(between)))
    # Scalars follow the tensors that they are passed with.
    first = split_kv_kernel(program, config, between)
    second = reduction_kernel(program, config, *between)
    return Emission(
        (
            Kernel(first, (*inputs, *scalars), workspaces),
            Kernel(second, (*inputs, *workspaces, *scalars), outputs),
        ),
        tuple(relax.TensorType(shape, FLOAT) for shape in shapes),
    )
