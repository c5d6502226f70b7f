"""Attention of few rows on tensor cores: warps multiply what they read straight from memory.

The sums of a product may run over its terms in any order, so a thread gives the tensor cores the
vectors as they come: a fragment's terms are four elements of the thread's vector, not those that
the instruction numbers so. Half of an instruction's sixteen rows are zeros, which cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ..._tvm_buffer import scratch
from ...fusion.expressions import load, variables
from ...fusion.program import Axis
from ..address import conditions_of
from ..loops import coordinates, index, loop, sequence, simplified, substitute, when
from .copies_gpu import commit, copy, meet, wait
from .decode import (
    TENSOR_COLUMNS,
    TENSOR_DEPTH,
    TENSOR_KEYS,
    Decode,
    streamed,
    width_of,
)
from .lanes_gpu import over_lanes
from .rows_cpu import LOWEST, float_
from .split_block import SplitBlock

SHARERS = 4  # threads that share a row of a fragment
VECTOR = 8  # elements
FRAGMENT = 4  # elements of a factor that a thread gives to one instruction
#: ``c[row, column] += a[row, term] * b[term, column]``: eight rows and columns, sixteen terms.
MULTIPLY = "fragments_{}"
_SOURCE = """
__device__ __forceinline__ void {name}(float* c, const void* a, const void* b) {{
  const unsigned* x = (const unsigned*)a;
  const unsigned* y = (const unsigned*)b;
  float unused0, unused1;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%10, %11, %12, %13}};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(unused0), "=f"(unused1)
      : "r"(x[0]), "r"(0), "r"(x[1]), "r"(0), "r"(y[0]), "r"(y[1]),
        "f"(c[0]), "f"(c[1]), "f"(0.f), "f"(0.f));
}}
"""


class TensorBlock(SplitBlock):
    """A block of warps: four threads share a row, and a vector of each of eight keys."""

    def __init__(self, cut: Decode, number: ir.Expr, sums: ir.Var, rest: ir.Var) -> None:
        super().__init__(cut, number, sums, rest, SHARERS, 1)
        self._half = str(cut.keys[0].ty.dtype)
        own = self._own
        self._deep = cut.depth // SHARERS  # elements of a key that a thread reads
        self._query = own("query", self._deep, self._half)
        self._keys = own("keys", TENSOR_KEYS // 8 * self._deep, self._half)
        self._values = own("values", TENSOR_KEYS // 8 * self._wide, self._half)
        self._staged_keys = self._staged("staged_keys", cut.depth // VECTOR)
        self._staged_values = self._staged("staged_values", cut.columns // VECTOR)
        self._pieces = own("pieces", TENSOR_KEYS // 8 * self._wide, self._half)
        self._weights = own("weights", FRAGMENT, self._half)
        self._scores = own("scores", FRAGMENT)
        self._high = own("high", 1), own("highest", 1)
        self._whole = own("sum_of_lanes", 1)
        self._buffers += [self._query, self._keys, self._values, self._pieces, self._weights]
        self._buffers += [self._scores, *self._high, self._whole]
        self._buffers += [self._staged_keys, self._staged_values]
        self._factor, element = _factored(cut)
        if isinstance(element, tirx.Cast) and str(element.value.ty.dtype) == self._half:
            element = element.value
        else:
            element = tirx.Cast(self._half, element)
        depth = cut.pattern.depth
        reads = streamed(cut.pattern, element, depth)
        self._element = element
        self._is_vector = (
            isinstance(element, ir.TensorLoad)
            and bool(reads)
            and width_of([(element, depth)]) == VECTOR
        )

    def own_rows(
        self, rows: range, t: ir.Expr, body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Four threads have a row."""
        row = tirx.floordiv(t, index(SHARERS))
        inside = tirx.all(row >= rows.start, row < rows.stop)
        return when(inside, body(row, index(0)))

    def leads(self, t: ir.Expr) -> ir.Expr:
        """Let the first of the four threads of a row speak."""
        return tirx.EQ(tirx.floormod(t, index(SHARERS)), index(0))

    def column(self, held: ir.Expr, t: ir.Expr) -> ir.Expr:
        """Turn round how values were read: columns of a fragment are as far apart as vectors."""
        chunk, number, one = coordinates(held, [index(-1), index(VECTOR), index(2)])
        other = 2 * tirx.floormod(t, index(SHARERS)) + one
        return chunk * TENSOR_COLUMNS + other * VECTOR + number

    def _row(self, t: ir.Expr) -> dict[ir.Var, ir.Expr]:
        last = index(self._cut.rows - 1)
        return self._at(tirx.min(tirx.floordiv(t, index(SHARERS)), last))

    def _depth(self, chunk: ir.Expr, t: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return chunk * TENSOR_DEPTH + tirx.floormod(t, index(SHARERS)) * VECTOR + lane

    def begin(self) -> list[tirx.Stmt]:
        """Ask for the first steps, then read the queries of a row as keys are read."""
        stages = map(index, range(self._cut.stages))
        asks = [self._ask(ask, n) for n in stages for ask in (self._ask_keys, self._ask_values)]
        return [*asks, self._cut.every(self._read_queries)]

    def _read_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        depth = self._cut.pattern.depth.var

        def chunk(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                at = {**self._row(t), depth: self._depth(number, t, lane)}
                value = substitute(self._element, at)
                return tirx.BufferStore(self._query, value, [g, t, number * VECTOR + lane])

            kind = tirx.ForKind.VECTORIZED if self._is_vector else tirx.ForKind.UNROLLED
            return loop("lane", VECTOR, element, kind)

        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._out, float_(0), [g, t, i])

        return sequence(
            [
                self._each(self._deep // VECTOR, chunk, "vector"),
                self._each(self._wide, zero),
                tirx.BufferStore(self._top, float_(LOWEST), [g, t, 0]),
                tirx.BufferStore(self._total, float_(0), [g, t, 0]),
            ]
        )

    def step(self, number: ir.Expr) -> tirx.Stmt:
        """Take in sixteen keys a warp, and ask for those of a later step in their place."""
        cut = self._cut
        later, slot = number + cut.stages, self._slot(number)

        def first(g: ir.Expr) -> ir.Expr:
            return self._start(number) + g * TENSOR_KEYS

        maxima, highest = over_lanes(self._high, 1, SHARERS, cut.warp, cut.every, tirx.max)
        return sequence(
            [
                cut.every(lambda g, t: self._read_keys(slot, g, t)),
                cut.every(self._multiply_keys),
                self._ask(self._ask_keys, later),
                cut.every(lambda g, t: self._score(first(g), g, t)),
                *maxima,
                cut.every(lambda g, t: self._weigh(highest, first(g), g, t)),
                cut.every(lambda g, t: self._read_values(slot, g, t)),
                cut.every(self._turn_values),
                cut.every(self._multiply_values),
                self._ask(self._ask_values, later),
            ]
        )

    def _staged(self, name: str, vectors: int) -> ir.Var:
        """Declare shared memory for the vectors of each warp's keys, or values."""
        shape = (self._cut.stages, self._cut.groups, TENSOR_KEYS, vectors, VECTOR)
        return scratch([index(d) for d in shape], self._half, name, "shared.dyn")

    def _slot(self, number: ir.Expr) -> ir.Expr:
        """Say which stage a step has."""
        return simplified(tirx.floormod(number, index(self._cut.stages)))

    def _ask(self, ask: Callable[..., tirx.Stmt], number: ir.Expr) -> tirx.Stmt:
        """Ask for keys or for values of a step, if there is such a step."""
        first, slot = self._start(number), self._slot(number)

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            asked = ask(first + g * TENSOR_KEYS, slot, g, t)
            return sequence([meet(), when(number < self._steps(), asked), commit()])

        return self._cut.every(thread)

    def _ask_keys(self, *where: ir.Expr) -> tirx.Stmt:
        pattern = self._cut.pattern
        into = self._staged_keys
        return self._copies(pattern.k, self._cut.keys, pattern.depth, into, _turned_key, *where)

    def _ask_values(self, *where: ir.Expr) -> tirx.Stmt:
        pattern = self._cut.pattern
        into = self._staged_values
        return self._copies(
            pattern.v, self._cut.values, pattern.column, into, _turned_value, *where
        )

    def _copies(
        self,
        operand: ir.Expr,
        found: Sequence[ir.TensorLoad],
        axis: Axis,
        into: ir.Var,
        turned: Callable[[ir.Expr, ir.Expr, int], ir.Expr],
        first: ir.Expr,
        slot: ir.Expr,
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Ask for neighbouring vectors in neighbouring threads."""
        along = self._cut.pattern.key.var
        vectors = int(axis.extent) // VECTOR

        def one(number: ir.Expr) -> tirx.Stmt:
            own, vector = coordinates(number * self._cut.lanes + t, [TENSOR_KEYS, index(vectors)])
            at = {**self._at(0), along: self._inside(first + own), axis.var: vector * VECTOR}
            to = load(into, [slot, g, own, turned(vector, own, vectors), index(0)])

            def piece(x: ir.TensorLoad) -> tirx.Stmt:
                stmt = copy(to, substitute(x, at))
                # What was appended lies elsewhere.
                for condition in conditions_of(x, operand):
                    stmt = when(substitute(condition, at), stmt)
                return stmt

            return sequence([piece(x) for x in found])

        return self._each(TENSOR_KEYS * vectors // self._cut.lanes, one, "vector")

    def _read_keys(self, slot: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take a thread's vectors of every eighth key."""
        row, lanes = tirx.floordiv(t, index(SHARERS)), tirx.floormod(t, index(SHARERS))
        vectors = self._cut.depth // VECTOR

        def one(number: ir.Expr) -> list[ir.Expr]:
            b, chunk = coordinates(number, [2, index(self._deep // VECTOR)])
            own = b * 8 + row
            return [slot, g, own, _turned_key(chunk * SHARERS + lanes, own, vectors)]

        return self._taken(self._keys, self._staged_keys, self._deep, one, g, t)

    def _read_values(self, slot: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Take vectors of the values of a thread's own keys."""
        row, lanes = tirx.floordiv(t, index(SHARERS)), tirx.floormod(t, index(SHARERS))
        vectors = self._cut.columns // VECTOR

        def one(number: ir.Expr) -> list[ir.Expr]:
            chunk, b, other = coordinates(number, [index(-1), 2, 2])
            own = b * 8 + lanes * 2 + other
            return [slot, g, own, _turned_value(chunk * 8 + row, own, vectors)]

        return self._taken(self._values, self._staged_values, self._wide, one, g, t)

    def _taken(
        self,
        into: ir.Var,
        staged: ir.Var,
        size: int,
        place: Callable[[ir.Expr], list[ir.Expr]],
        g: ir.Expr,
        t: ir.Expr,
    ) -> tirx.Stmt:
        """Take vectors when they are there: before them was asked for all but these."""

        def vector(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                value = load(staged, [*place(number), lane])
                return tirx.BufferStore(into, value, [g, t, number * VECTOR + lane])

            return loop("lane", VECTOR, element, tirx.ForKind.VECTORIZED)

        pending = 2 * self._cut.stages - 1
        return sequence([wait(pending), self._each(2 * size // VECTOR, vector, "vector")])

    def _multiply(self, g: ir.Expr, t: ir.Expr, *places: tuple[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Multiply fragments: where the sum is, and where both factors are."""
        addresses = [tirx.address_of(load(buffer, [g, t, place])) for buffer, place in places]
        short = {"float16": "f16", "bfloat16": "bf16"}[self._half]
        name = MULTIPLY.format(short)
        source = _SOURCE.format(name=name, short=short)
        return tirx.Evaluate(cuda_func_call(name, *addresses, source_code=source))

    def _multiply_keys(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._scores, float_(0), [g, t, i])

        def one(number: ir.Expr) -> tirx.Stmt:
            piece, b = coordinates(number, [index(-1), 2])
            query, key = (self._query, piece * FRAGMENT), piece * FRAGMENT + b * self._deep
            return self._multiply(g, t, (self._scores, b * 2), query, (self._keys, key))

        products = self._each(2 * self._deep // FRAGMENT, one, "fragment")
        return sequence([self._each(FRAGMENT, zero), products])

    def _own_key(self, first: ir.Expr, t: ir.Expr, i: ir.Expr) -> ir.Expr:
        """Key of a thread's ``i``-th score."""
        b, one = coordinates(i, [2, 2])
        return first + b * 8 + tirx.floormod(t, index(SHARERS)) * 2 + one

    def _score(self, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Find the largest of a thread's scores."""
        pattern, high = self._cut.pattern, self._high[0]

        def one(i: ir.Expr) -> tirx.Stmt:
            where, key = [g, t, i], self._own_key(first, t, i)
            at = {**self._row(t), pattern.key.var: self._inside(key)}
            raw = load(self._scores, where)
            if self._factor is not None:
                raw = raw * substitute(self._factor, at)
            value = substitute(pattern.score, {**at, pattern.raw: raw})
            if not self._cut.is_even:
                value = tirx.Select(key < self._count, value, float_(-float("inf")))
            larger = tirx.max(load(high, [g, t, index(0)]), load(self._scores, where))
            return sequence(
                [
                    tirx.BufferStore(self._scores, value, where),
                    tirx.BufferStore(high, larger, [g, t, 0]),
                ]
            )

        start = tirx.BufferStore(high, load(self._top, [g, t, index(0)]), [g, t, 0])
        return sequence([start, self._each(FRAGMENT, one)])

    def _weigh(self, highest: ir.Var, first: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Bring what is there to the new maximum, and make fragments of weights and values."""
        pattern, mine = self._cut.pattern, [g, t, index(0)]
        top, total, now = (load(b, mine) for b in (self._top, self._total, highest))

        def one(i: ir.Expr) -> tirx.Stmt:
            where = [g, t, i]
            power = load(self._scores, where)
            at = {**self._row(t), pattern.key.var: self._inside(self._own_key(first, t, i))}
            weight = substitute(pattern.weight, {**at, pattern.exponential: power})
            return sequence(
                [
                    tirx.BufferStore(self._scores, tirx.exp(power - now), where),
                    tirx.BufferStore(self._total, total + power, mine),
                    tirx.BufferStore(self._weights, tirx.Cast(self._half, weight), where),
                ]
            )

        def scaled(i: ir.Expr) -> tirx.Stmt:
            value = load(self._out, [g, t, i]) * load(self._whole, mine)
            return tirx.BufferStore(self._out, value, [g, t, i])

        return sequence(
            [
                tirx.BufferStore(self._whole, tirx.exp(top - now), mine),
                tirx.BufferStore(self._top, now, mine),
                tirx.BufferStore(self._total, total * load(self._whole, mine), mine),
                self._each(FRAGMENT, one),
                self._each(self._wide, scaled),
            ]
        )

    def _turn_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Make fragments of elements of several values."""

        def piece(i: ir.Expr) -> tirx.Stmt:
            chunk, number, key = coordinates(i, [index(-1), VECTOR, FRAGMENT])
            value = load(self._values, [g, t, (chunk * FRAGMENT + key) * VECTOR + number])
            return tirx.BufferStore(self._pieces, value, [g, t, i])

        return self._each(2 * self._wide, piece)

    def _multiply_values(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        def one(number: ir.Expr) -> tirx.Stmt:
            sums, weights = (self._out, number * 2), (self._weights, index(0))
            return self._multiply(g, t, sums, weights, (self._pieces, number * FRAGMENT))

        return self._each(self._wide // 2, one, "fragment")

    def last(self) -> list[tirx.Stmt]:
        """Sum the exponentials of a row over its threads."""
        pair = self._total, self._whole
        stmts, found = over_lanes(pair, 1, SHARERS, self._cut.warp, self._cut.every)
        self._total = found
        return stmts


def _turned_key(vector: ir.Expr, key: ir.Expr, vectors: int) -> ir.Expr:
    """Let vectors that neighbouring threads take at once lie in different banks."""
    return tirx.bitwise_xor(vector, key % 2 * 4) if vectors % 8 == 0 else vector


def _turned_value(vector: ir.Expr, key: ir.Expr, vectors: int) -> ir.Expr:
    return tirx.bitwise_xor(vector, key // 2 % 4 * 2) if vectors % 8 == 0 else vector


def _factored(cut: Decode) -> tuple[ir.Expr | None, ir.Expr]:
    """Part queries into a factor of the whole row, such as a scale, and elements.

    The scores take the factor, so that elements of a half type stay what they are.
    """
    query, depth = cut.pattern.q, cut.pattern.depth.var
    if isinstance(query, tirx.Mul):
        for factor, element in ((query.a, query.b), (query.b, query.a)):
            if depth not in variables(factor):
                return factor, element
    return None, query
