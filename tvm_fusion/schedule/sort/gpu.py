"""Sorts by ranks, on a GPU.

grid: (rows, tiles of a row's elements); block: (rows, slices, elements) threads
own = the element's key; count = 0
for each chunk of the row's keys:
    chunk -> shared memory, behind the row keys that stand before none; __syncthreads
    for each key of the thread's slice of the chunk:
        the slice lies before the tile: count += key <= own;  behind it: count += key < own
        else count += key < own or (key == own and its number is less)
counts -> shared memory; __syncthreads
first slice: rank = sum of counts; y[rank] = own, places[rank] = its number, of topk below k

n keys take n * n comparisons and one launch. Every step is a loop over the threads of its own, so
that it means the same if threads run one after the other.
"""

from collections.abc import Callable

from tvm import ir, tirx

from ..._tvm.ir.buffer import scratch
from ...core.tir.loops import block, coordinates, index, loop, sequence, threads, unrolled, when
from ..gpu.threads.warp import each_thread
from .config import RankSortConfig
from .problem import SortProblem

UNROLLED = 8
Body = Callable[[ir.Expr, ir.Expr, ir.Expr], tirx.Stmt]


def sort_gpu(problem: SortProblem, config: RankSortConfig) -> tirx.Stmt:
    """Write the loops over blocks."""
    return _RankSort(problem, config).grid()


class _RankSort:
    """One thread block: a tile of a row's elements, or some whole rows."""

    def __init__(self, problem: SortProblem, config: RankSortConfig) -> None:
        self.problem, self.config = problem, config
        self.dtype = str(problem.source.dtype)
        shape = [index(d) for d in (config.rows, config.slices, config.elements)]
        self.own = scratch([*shape, index(1)], self.dtype, "own", scope="local")
        self.count = scratch([*shape, index(1)], "int32", "count", scope="local")
        self.keys = scratch(
            [index(config.rows), index(config.chunk)], self.dtype, "keys", scope="shared"
        )
        self.counts = scratch(shape, "int32", "counts", scope="shared")

    def grid(self) -> tirx.Stmt:
        """Write all blocks."""
        rows = -(-self.problem.rows // self.config.rows)
        return threads(
            "blockIdx.x",  # y ends at 65,535
            rows,
            lambda row: threads("blockIdx.y", self.config.tiles, lambda t: self._tile(row, t)),
        )

    def _tile(self, row: ir.Expr, tile: ir.Expr) -> tirx.Stmt:
        self.row, self.tile = row * self.config.rows, tile
        rounds = loop("round", self.config.rounds, self._round)
        is_shared = self.config.slices > 1
        steps = [self._each_thread(self._start), rounds]
        steps += [self._each_thread(self._publish)] if is_shared else []
        body = sequence([*steps, self._each_thread(self._place)])
        buffers = [self.own, self.count, self.keys, *([self.counts] if is_shared else [])]
        return block("ranks", body, buffers)

    def _each_thread(self, body: Body) -> tirx.Stmt:
        """Run ``body(row, slice, element)`` in every thread."""
        config, tags = self.config, ("threadIdx.z", "threadIdx.y", "threadIdx.x")
        shape = config.rows, config.slices, config.elements
        return each_thread(list(zip(tags, shape, strict=True)), body)

    def _at(self, r: ir.Expr, number: ir.Expr) -> list[ir.Expr]:
        """Return the place of a key in memory; rows behind the last are the last."""
        row = self.row + r
        if self.config.rows > 1:
            row = tirx.min(row, index(self.problem.rows - 1))
        return self.problem.place(coordinates(row, self.problem.others), number)

    def _number(self, e: ir.Expr) -> ir.Expr:
        """Return the number of an element in its row."""
        return self.tile * self.config.elements + e

    def _start(self, r: ir.Expr, s: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        """Read the thread's key; threads behind the row have the last one."""
        number = tirx.min(self._number(e), index(self.config.keys - 1))
        key = tirx.BufferLoad(self.problem.source, self._at(r, number))
        zero = tirx.const(0, "int32")
        return sequence(
            [
                tirx.BufferStore(self.own, key, [r, s, e, 0]),
                tirx.BufferStore(self.count, zero, [r, s, e, 0]),
            ]
        )

    def _round(self, number: ir.Expr) -> tirx.Stmt:
        """Stage a chunk, and compare with it."""
        first = number * self.config.chunk
        return sequence(
            [
                self._each_thread(lambda *at: self._stage(first, *at)),
                self._each_thread(lambda *at: self._compare(first, *at)),
            ]
        )

    def _stage(self, first: ir.Expr, r: ir.Expr, s: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        config = self.config
        step = config.slices * config.elements
        none = tirx.min_value(self.dtype) if self.problem.falls else tirx.max_value(self.dtype)

        def one(i: ir.Expr) -> tirx.Stmt:
            place = i * step + s * config.elements + e
            key = tirx.BufferLoad(self.problem.source, self._at(r, first + place))
            inside = first + place < config.keys
            if config.keys % config.chunk == 0:
                return tirx.BufferStore(self.keys, key, [r, place])
            return tirx.BufferStore(self.keys, tirx.if_then_else(inside, key, none), [r, place])

        return loop("i", config.chunk // step, one)

    def _compare(self, first: ir.Expr, r: ir.Expr, s: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        """Count the keys of a slice that stand before the thread's own."""
        config = self.config
        length = config.chunk // config.slices
        own, falls = tirx.BufferLoad(self.own, [r, s, e, 0]), self.problem.falls

        def counted(before: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> tirx.Stmt:
            def one(j: ir.Expr) -> tirx.Stmt:
                key = tirx.BufferLoad(self.keys, [r, s * length + j])
                hit = tirx.Cast("int32", before(key, first + s * length + j))
                total = tirx.BufferLoad(self.count, [r, s, e, 0]) + hit
                return tirx.BufferStore(self.count, total, [r, s, e, 0])

            if length % UNROLLED:
                return loop("j", length, one)
            return loop(
                "j",
                length // UNROLLED,
                lambda j: unrolled("k", UNROLLED, lambda k: one(j * UNROLLED + k)),
            )

        def strictly(key: ir.Expr, _: ir.Expr) -> ir.Expr:
            return key > own if falls else key < own

        def weakly(key: ir.Expr, _: ir.Expr) -> ir.Expr:
            return key >= own if falls else key <= own

        def by_number(key: ir.Expr, number: ir.Expr) -> ir.Expr:
            is_equal = tirx.EQ(key, own)
            return tirx.any(strictly(key, number), tirx.all(is_equal, number < self._number(e)))

        if config.tiles == 1 and config.slices == 1:
            return counted(by_number)
        start, tile = first + s * length, self.tile * config.elements
        behind = tirx.IfThenElse(
            start >= tile + config.elements, counted(strictly), counted(by_number)
        )
        return tirx.IfThenElse(start + length <= tile, counted(weakly), behind)

    def _publish(self, r: ir.Expr, s: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.counts, tirx.BufferLoad(self.count, [r, s, e, 0]), [r, s, e])

    def _place(self, r: ir.Expr, s: ir.Expr, e: ir.Expr) -> tirx.Stmt:
        """Write the key, or its number, where its rank is."""
        config, problem = self.config, self.problem
        rank = tirx.BufferLoad(self.count, [r, s, e, 0])
        if config.slices > 1:
            rank = tirx.BufferLoad(self.counts, [r, index(0), e])
            for other in range(1, config.slices):
                rank = rank + tirx.BufferLoad(self.counts, [r, index(other), e])
        number, row = self._number(e), coordinates(self.row + r, problem.others)
        key, place = tirx.BufferLoad(self.own, [r, s, e, 0]), tirx.Var("rank", "int64")
        stores = []
        for target, is_value in problem.targets:
            value = tirx.Cast(str(target.dtype), key if is_value else number)
            stores.append(tirx.BufferStore(target, value, problem.place(row, place)))
        inside = [tirx.EQ(s, index(0)), number < config.keys, self.row + r < problem.rows]
        if problem.kept < config.keys:
            stores = [when(place < problem.kept, sequence(stores))]
        ranked = sequence([tirx.Bind(place, tirx.Cast("int64", rank)), *stores])
        return when(tirx.all(*inside), ranked)
