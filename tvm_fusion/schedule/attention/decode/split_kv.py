"""One block of the split-KV kernel: loop over the keys of a split, merge over groups of threads.

Common to CUDA cores (:mod:`.split_kv_simt`) and tensor cores (:mod:`.split_kv_mma`):

prologue()                                              # load q; acc = 0, l_i = 0, m_i = LOWEST
for step in range(steps of this split with visible keys):
    step()                                          # the next block_n keys, a part for each group
for rows of the block, rows_per_pass at a time:
    each group: acc, m_i, l_i -> o_shared, m_shared, l_shared
    __syncthreads
    each thread, elements of the results:
        m = max(m_shared[group]); o = sum(exp(m_shared[group] - m) * o_shared[group])
        partial_o[batch, row, split, column] = o; partial_ml[batch, row, :, split] = m, l

Splits that one kernel merges stay in shared memory, and the blocks of a cluster share the elements:

        o_merged, m_merged, l_merged = o, m, l;  cluster barrier (of one split: __syncthreads)
        each thread, elements of the results: the same merge of all blocks' o, m, l
        out[row, column] = epilogue(o / l);  cluster barrier
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial, reduce

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load, variables
from ....core.tir.loops import (
    block,
    coordinates,
    index,
    local,
    loop,
    sequence,
    simplified,
    substitute,
    unrolled,
    when,
)
from ...gpu.launch import storage_sync
from ...gpu.memory.shared_tiles import cluster_barrier, load_cluster
from ...index.address import same
from ..problem.online_softmax import (
    LOWEST,
    Merge,
    assign,
    float_,
    mean_of,
    store_result,
)
from ..problem.pattern import FLOAT
from ..problem.score_form import ScoreForm
from .config import FlashDecodeConfig


class SplitKV(ABC):
    """One block of the split-KV kernel: some rows, and one split of the keys.

    Every group of its threads loops over keys of its own, with its own running statistics. The
    groups are merged in shared memory in a fixed order, so that results are deterministic.

    Parameters
    ----------
    partials
        As of :func:`~tvm_fusion.schedule.attention.decode.split_kv_simt.split_kv_kernel`.
    threads_per_row, slots
        Threads of a group that share the columns of a row, and rows of a thread.
    """

    def __init__(
        self,
        config: FlashDecodeConfig,
        number: ir.Expr,
        partials: tuple[ir.Var, ...],
        threads_per_row: int,
        slots: int,
    ) -> None:
        self._config, self._partials = config, partials
        extents = [config.kv_batch, config.row_blocks, config.splits]
        self._batch, row_block, self._split = coordinates(number, extents)
        self._first = row_block * config.block_m  # row
        self._count = index(config.pattern.key.extent)
        self._columns = config.head_dim_v // threads_per_row  # of a thread
        self._acc = self._registers("acc", slots * self._columns)
        self._m_i, self._l_i = self._registers("m_i", slots), self._registers("l_i", slots)
        self._m_shared = self._shared("m_shared", config.groups, config.block_m)
        self._l_shared = self._shared("l_shared", config.groups, config.block_m)
        self._o_shared = self._shared(
            "o_shared", config.groups, config.rows_per_pass * config.pitch
        )
        self._buffers = [self._acc, self._m_i, self._l_i]
        self._buffers += [self._m_shared, self._l_shared, self._o_shared]
        self._visible = self._visible_keys()
        if self._visible is not None:
            self._own_steps = scratch([index(1)], "int64", "own_steps", "local")
            self._buffers.append(self._own_steps)
        if not partials:
            self._merged = [self._shared(f"{n}_merged", config.block_m) for n in ("m", "l")]
            columns = config.rows_per_pass * config.head_dim_v
            self._merged.append(self._shared("o_merged", columns))
            self._buffers += self._merged

    def _registers(self, name: str, count: int, dtype: str = FLOAT) -> ir.Var:
        """Declare registers; lowering drops the indices of the thread."""
        shape = (self._config.groups, self._config.lanes, count)
        return scratch([index(d) for d in shape], dtype, name, "local")

    def _shared(self, name: str, *shape: int) -> ir.Var:
        return scratch([index(d) for d in shape], FLOAT, name, "shared")

    @abstractmethod
    def prologue(self) -> list[tirx.Stmt]:
        """Load the queries; initialize the accumulators and statistics."""

    @abstractmethod
    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Compute the scores of the next keys, and accumulate their values."""

    @abstractmethod
    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Run ``body(row, slot)`` for those of some rows that a thread holds in its slots."""

    @abstractmethod
    def column(self, number: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Return the column of the ``number``-th accumulator of a slot."""

    @abstractmethod
    def leads(self, t: ir.Expr) -> ir.Expr:
        """Whether a thread is the one of those that share a row that stores its statistics."""

    def accumulator(self, slot: ir.Expr, number: ir.Expr) -> ir.Expr:
        """Return the position of the ``number``-th accumulator of a slot in registers."""
        return slot * self._columns + number

    def epilogue(self) -> list[tirx.Stmt]:
        """Finish the statistics of a group behind its last step."""
        return []

    def stmt(self) -> tirx.Stmt:
        """Write the whole block."""
        config = self._config
        stmts: list[tirx.Stmt] = []
        if self._visible is not None:
            steps = self._count_steps(self._visible)
            stmts.append(tirx.BufferStore(self._own_steps, steps, [0]))
        stmts += [*self.prologue(), loop("step", self._steps(), self.step), *self.epilogue()]
        for first in range(0, config.block_m, config.rows_per_pass):
            rows = range(first, min(first + config.rows_per_pass, config.block_m))
            stmts.append(config.each_thread(partial(self._share, rows)))
            stmts.append(config.each_thread(partial(self._merge, rows)))
            if not self._partials:
                stmts += self._merge_blocks(rows)
        return block("split_kv", sequence(stmts), self._buffers)

    def _start(self, step: ir.Expr) -> ir.Expr:
        """Return the first key of a step: those of all splits are contiguous in each step."""
        return (step * self._config.splits + self._split) * self._config.block_n

    def _visible_keys(self) -> ir.Expr | None:
        """Count the keys up to the last that a row of this block sees.

        ``None`` where masks by position hide none at the end. Positions that are read from memory
        let one kernel serve caches of any length.
        """
        config, pattern = self._config, self._config.pattern
        form = ScoreForm.of(pattern, None, takes_loads=True)
        row = tirx.Var("row", "int64")
        visible: ir.Expr | None = None
        for bound in form.bounds if form.skips else ():
            if not bound.is_upper:
                continue
            last = substitute(bound.limit, self._position(row))
            rows = range(config.block_m) if row in variables(last) else range(1)
            each = [substitute(last, {row: index(number)}) for number in rows]
            end = reduce(tirx.max, each) + 1
            visible = tirx.min(self._count if visible is None else visible, end)
        return None if visible is None else tirx.max(visible, index(0))

    def _count_steps(self, keys: ir.Expr) -> ir.Expr:
        """Count the steps of this block that have some of so many keys."""
        config = self._config
        # No quotient of what is left for this block: TVM 0.27 divides negative multiples wrongly.
        left = tirx.floormod(keys, index(config.step_n))
        more = tirx.Select(self._split * config.block_n < left, index(1), index(0))
        return tirx.floordiv(keys, index(config.step_n)) + more

    def _steps(self) -> ir.Expr:
        """Count the steps of this block."""
        config = self._config
        if self._visible is not None:
            return load(self._own_steps, [index(0)])
        if config.is_even:
            return tirx.floordiv(self._count, index(config.step_n))
        return self._count_steps(self._count)

    def _position(self, row: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Return the position of a row; rows behind the last one compute it again, unstored."""
        number = self._first + row
        if self._config.query_group.size % self._config.block_m:
            number = tirx.min(number, index(self._config.query_group.size - 1))
        return self._config.query_group.place(self._batch, simplified(number))

    def _inside(self, key: ir.Expr) -> ir.Expr:
        """Clamp a key to the last one."""
        return key if self._config.is_even else tirx.min(key, self._count - 1)

    def _operand(
        self,
        operand: ir.Expr,
        found: Sequence[ir.TensorLoad],
        registers: Sequence[ir.Var],
        place: Sequence[ir.Expr],
        known: dict[ir.Var, ir.Expr],
    ) -> ir.Expr:
        """Compute an element of a key or a value from vectors in registers."""

        def swap(x: ir.TensorLoad) -> ir.Expr:
            pairs = zip(found, registers, strict=True)
            return next((load(register, place) for y, register in pairs if same(x, y)), x)

        return substitute(substitute(operand, {}, swap), {**self._position(0), **known})

    def _share(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Store a group's accumulators and statistics of some rows in shared memory."""

        def row(r: ir.Expr, slot: ir.Expr) -> tirx.Stmt:
            def column(i: ir.Expr) -> tirx.Stmt:
                place = self._config.shared_offset(r - rows.start, self.column(i, t))
                value = load(self._acc, [g, t, self.accumulator(slot, i)])
                return tirx.BufferStore(self._o_shared, value, [g, place])

            statistics = [
                tirx.BufferStore(self._m_shared, load(self._m_i, [g, t, slot]), [g, r]),
                tirx.BufferStore(self._l_shared, load(self._l_i, [g, t, slot]), [g, r]),
            ]
            stored = when(self.leads(t), sequence(statistics))
            return sequence([unrolled("i", self._columns, column), stored])

        return self.own_rows(rows, t, row)

    def _merge(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Merge the groups' results of some rows, neighbouring threads neighbouring columns."""
        config = self._config
        buffers = [local(name, [1], FLOAT) for name in ("m", "sum", "factor")]
        m, total, factor = (load(x, [index(0)]) for x in buffers)
        count = len(rows) * config.head_dim_v

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * config.threads + g * config.lanes + t
            row, column = coordinates(flat, [index(len(rows)), index(config.head_dim_v)])
            place = config.shared_offset(row, column)
            row = row + rows.start
            merge = Merge(
                m,
                factor,
                lambda body: unrolled("group", config.groups, body),
                lambda group: load(self._m_shared, [group, row]),
            )

            def merged(found: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
                return sequence([assign(total, float_(0)), merge.add((total, found))])

            def store_statistic(which: int, value: ir.Expr) -> tirx.Stmt:
                if not self._partials:
                    return tirx.BufferStore(self._merged[which], value, [row])
                where = [self._batch, self._first + row, index(which), self._split]
                return tirx.BufferStore(self._partials[1], value, where)

            if not self._partials:
                stored = tirx.BufferStore(self._merged[2], total, [flat])
            else:
                where = [self._batch, self._first + row, self._split, column]
                stored = tirx.BufferStore(self._partials[0], total, where)
            of_row = [
                store_statistic(0, m),
                merged(lambda group: load(self._l_shared, [group, row])),
                store_statistic(1, total),
            ]
            results = [
                assign(m, float_(LOWEST)),
                merge.maximum(),
                merged(lambda group: load(self._o_shared, [group, place])),
                stored,
                when(tirx.EQ(column, index(0)), sequence(of_row)),
            ]
            inside = self._first + row < config.query_group.size
            if count % config.threads:
                inside = tirx.all(flat < count, inside)
            return when(inside, sequence(results))

        stmt = unrolled("item", -(-count // config.threads), item)
        return block("merge", stmt, buffers)

    def _merge_blocks(self, rows: range) -> list[tirx.Stmt]:
        """Merge what the blocks of a cluster found in some rows, and store the results."""
        # TVM sees the statistics written and read at one index, and leaves a barrier out, though
        # all threads of a row read what its first one wrote.
        barrier = storage_sync() if self._config.splits == 1 else cluster_barrier()
        merged = self._config.each_thread(partial(self._finish, rows))
        # Others may read this block's shared memory until they say so.
        return [barrier, merged, barrier]

    def _finish(self, rows: range, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Merge and store a thread's elements: each block of the cluster has some."""
        config, pattern = self._config, self._config.pattern
        names = ("acc", "l", "m", "factor")
        buffers = [local(name, [1], FLOAT) for name in names]
        acc, l_i, m, factor = (load(x, [index(0)]) for x in buffers)
        loaded = [local(f"{name}_of_block", [config.splits], FLOAT) for name in names[:3]]
        count, step = len(rows) * config.head_dim_v, config.threads * config.splits

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = (number * config.splits + self._split) * config.threads
            flat = flat + g * config.lanes + t
            row, column = coordinates(flat, [index(len(rows)), index(config.head_dim_v)])
            sources = [
                load(self._merged[2], [flat]),
                load(self._merged[1], [row + rows.start]),
                load(self._merged[0], [row + rows.start]),
            ]

            def read(split: ir.Expr) -> tirx.Stmt:
                pairs = [
                    (load(to, [split]), source) for to, source in zip(loaded, sources, strict=True)
                ]
                if config.splits == 1:
                    return sequence([assign(to, source) for to, source in pairs])
                return sequence([load_cluster(to, x, 4, split) for to, x in pairs])

            def each(body: Callable[[ir.Expr], tirx.Stmt]) -> tirx.Stmt:
                return unrolled("split", config.splits, body)

            merge = Merge(m, factor, each, lambda split: load(loaded[2], [split]))
            at = {
                **config.query_group.place(self._batch, self._first + rows.start + row),
                pattern.column.var: column,
            }
            sums = [(x, partial(_of_block, y)) for x, y in ((acc, loaded[0]), (l_i, loaded[1]))]
            stmts = [
                each(read),
                *(assign(x, float_(0)) for x in (acc, l_i)),
                assign(m, float_(LOWEST)),
                merge.maximum(),
                merge.add(*sums),
                mean_of(pattern, at, acc, m, l_i),
                store_result(pattern, at, acc),
            ]
            inside = self._first + rows.start + row < config.query_group.size
            return when(tirx.all(flat < count, inside), sequence(stmts))

        stmt = unrolled("item", -(-count // step), item)
        return block("finish", stmt, [*buffers, *loaded])


def _of_block(buffer: ir.Var, split: ir.Expr) -> ir.Expr:
    return load(buffer, [split])
