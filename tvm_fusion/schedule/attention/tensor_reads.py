"""What a warp on tensor cores reads: queries once, keys and values some steps ahead."""

from __future__ import annotations

from tvm import ir, tirx

from ..gpu.mma import CHUNK, LINES, SHARERS
from ..loops import coordinates, index, loop, sequence, substitute
from .decode import Decode
from .queries import Queries
from .rows_cpu import LOWEST, float_
from .split_block import SplitBlock
from .staged_gpu import VECTOR, Staged
from .tensor_cut import TENSOR_DEPTH, TENSOR_KEYS

PAIR = 2  # rows of a thread


class TensorReads(SplitBlock):
    """A block of warps, before it computes; threads take what fragments hold of them."""

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        super().__init__(cut, number, sums, rest, LINES, PAIR)
        self._half = str(cut.keys[0].ty.dtype)
        own = self._own
        self._deep = cut.depth // SHARERS  # elements of a key that a thread reads
        self._queries = Queries.of(cut)
        self._query = own("query", self._deep, self._half)
        self._keys = own("keys", 2 * self._deep, self._half)
        self._values = own("values", CHUNK * self._wide, self._half)
        self._turned = own("turned", CHUNK, self._half)
        pattern = cut.pattern
        # A quarter of a warp takes vectors of two keys, or of the values of four, two keys apart.
        memory, begin = Staged.memory(cut, self._half), cut.depth // VECTOR
        self._staged_keys = Staged(
            *(cut, memory, 0, pattern.k, cut.keys, pattern.depth),
            lambda key: key % 2 * SHARERS,
        )
        self._staged_values = Staged(
            *(cut, memory, begin, pattern.v, cut.values, pattern.column),
            lambda key: key // 2 % SHARERS * 2,
        )
        self._buffers += [self._query, self._keys, self._values, self._turned, memory]

    def begin(self) -> list[tirx.Stmt]:
        """Read the queries of a row as keys are read, and ask for the first steps.

        What is asked for first is there first; queries that are computed would keep steps waiting.
        """
        stages = map(index, range(self._cut.stages))
        asks = [self._ask(x, n) for n in stages for x in (self._staged_keys, self._staged_values)]
        queries = self._cut.every(self._read_queries)
        return [queries, *asks] if self._queries.is_vector else [*asks, queries]

    def _read_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        depth = self._cut.pattern.depth.var

        def chunk(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                row = self._row(tirx.floordiv(t, index(SHARERS)))
                at = {**row, depth: self._depth(number, t, lane)}
                value = substitute(self._queries.element, at)
                return tirx.BufferStore(self._query, value, [g, t, number * VECTOR + lane])

            kind = tirx.ForKind.VECTORIZED if self._queries.is_vector else tirx.ForKind.UNROLLED
            return loop("lane", VECTOR, element, kind)

        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._out, float_(0), [g, t, i])

        def unknown(i: ir.Expr) -> tirx.Stmt:
            # TVM declares as much of a buffer as is loaded and stored; addresses do not count.
            return tirx.BufferStore(self._turned, tirx.const(0, self._half), [g, t, i])

        def empty(slot: ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    tirx.BufferStore(self._top, float_(LOWEST), [g, t, slot]),
                    tirx.BufferStore(self._total, float_(0), [g, t, slot]),
                ]
            )

        return sequence(
            [
                self._each(self._deep // VECTOR, chunk, "vector"),
                self._each(PAIR * self._wide, zero),
                self._each(PAIR, empty, "slot"),
                self._each(CHUNK, unknown),
            ]
        )

    def _ask(self, staged: Staged, number: ir.Expr) -> tirx.Stmt:
        """Ask for keys or for values of a step."""

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            def place(key: ir.Expr) -> dict[ir.Var, ir.Expr]:
                key = self._inside(self._start(number) + g * TENSOR_KEYS + key)
                return {**self._at(0), self._cut.pattern.key.var: key}

            return staged.ask(number, number < self._steps(), place, g, t)

        return self._cut.every(thread)

    def _take_keys(self, number: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take a thread's vectors of every eighth key."""
        row, lane = coordinates(t, [8, index(SHARERS)])
        count = 2 * self._deep // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            b, chunk = coordinates(own, [2, index(count // 2)])
            return b * 8 + row, chunk * SHARERS + lane

        return self._staged_keys.take(number, self._keys, count, which, g, t)

    def _take_values(self, number: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take vectors of the values of a thread's own keys."""
        row, lane = coordinates(t, [8, index(SHARERS)])
        count = CHUNK * self._wide // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            chunk, b, one = coordinates(own, [index(-1), 2, 2])
            return b * 8 + lane * 2 + one, chunk * 8 + row

        return self._staged_values.take(number, self._values, count, which, g, t)

    def _number(self, t: ir.Expr, slot: ir.Expr) -> ir.Expr:
        return tirx.floormod(t, index(SHARERS)) * PAIR + slot

    def _row(self, number: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return self._at(tirx.min(number, index(self._cut.rows - 1)))

    def _depth(self, chunk: ir.Expr, t: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return chunk * TENSOR_DEPTH + tirx.floormod(t, index(SHARERS)) * VECTOR + lane
