"""The operands of a split-KV block on tensor cores: q once, k and v through the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.expressions import load, variables
from ....core.tir.loops import coordinates, index, loop, sequence, substitute, unrolled
from ...instructions.table import newest
from ..problem.kv_vectors import contiguous_loads, vector_width
from ..problem.online_softmax import float_, initialize
from ..problem.pattern import Pattern
from .config import FlashDecodeConfig
from .kv_pipeline import VECTOR, KVPipeline
from .mma_config import MMA_DEPTH, MMA_KEYS
from .split_kv import SplitKV

PAIR = 2  # rows of a thread


class MmaOperands(SplitKV):
    """A block of warps, before it computes; threads load what their fragments hold."""

    def __init__(
        self, config: FlashDecodeConfig, number: ir.Expr, partials: tuple[ir.Var, ...]
    ) -> None:
        self._half = str(config.keys[0].ty.dtype)
        self._mma = newest("mma.sync", self._half, self._half)
        self._quad = self._mma.c.lanes_per_row  # threads that share a row
        super().__init__(config, number, partials, self._mma.n, PAIR)
        self._depth = config.head_dim // self._quad  # elements of a key that a thread loads
        self._query = QueryOperand.of(config)
        self._q_frag = self._registers("q_frag", self._depth, self._half)
        self._k_frag = self._registers("k_frag", 2 * self._depth, self._half)
        self._v = self._registers("v", self._mma.k_per_lane * self._columns, self._half)
        self._p_frag = self._registers("p_frag", self._mma.k_per_lane, self._half)
        pattern = config.pattern
        # A quarter of a warp loads vectors of two keys, or of the values of four, two keys apart.
        ring, begin = KVPipeline.shared_memory(config, self._half), config.head_dim // VECTOR
        self._key_pipeline = KVPipeline(
            *(config, ring, 0, pattern.k, config.keys, pattern.depth),
            lambda key: key % 2 * self._quad,
        )
        self._value_pipeline = KVPipeline(
            *(config, ring, begin, pattern.v, config.values, pattern.column),
            lambda key: key // 2 % self._quad * 2,
        )
        self._buffers += [self._q_frag, self._k_frag, self._v, self._p_frag, ring.buffer]

    def prologue(self) -> list[tirx.Stmt]:
        """Load the queries of a row as keys are loaded, and fill the pipeline.

        Loads complete in the order of issue; queries that are computed would delay the steps.
        """
        stages = map(index, range(self._config.stages))
        pipelines = (self._key_pipeline, self._value_pipeline)
        issued = [self._issue(x, n) for n in stages for x in pipelines]
        queries = self._config.each_thread(self._load_queries)
        return [queries, *issued] if self._query.is_vector else [*issued, queries]

    def _load_queries(self, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        depth = self._config.pattern.depth.var

        def vector(number: ir.Expr) -> tirx.Stmt:
            def element(lane: ir.Expr) -> tirx.Stmt:
                row = self._row(tirx.floordiv(t, index(self._quad)))
                at = {**row, depth: self._element(number, t, lane)}
                value = substitute(self._query.element, at)
                return tirx.BufferStore(self._q_frag, value, [g, t, number * VECTOR + lane])

            kind = tirx.ForKind.VECTORIZED if self._query.is_vector else tirx.ForKind.UNROLLED
            return loop("lane", VECTOR, element, kind)

        def zero(i: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._acc, float_(0), [g, t, i])

        def declared(i: ir.Expr) -> tirx.Stmt:
            # TVM declares as much of a buffer as is loaded and stored; addresses do not count.
            return tirx.BufferStore(self._p_frag, tirx.const(0, self._half), [g, t, i])

        def statistics(slot: ir.Expr) -> tirx.Stmt:
            own = [g, t, slot]
            return sequence(initialize(load(self._m_i, own), load(self._l_i, own)))

        return sequence(
            [
                unrolled("vector", self._depth // VECTOR, vector),
                unrolled("i", PAIR * self._columns, zero),
                unrolled("slot", PAIR, statistics),
                unrolled("i", self._mma.k_per_lane, declared),
            ]
        )

    def _issue(self, pipeline: KVPipeline, step: ir.Expr) -> tirx.Stmt:
        """Issue the copies of the keys or of the values of a step."""

        def thread(g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
            def place(key: ir.Expr) -> dict[ir.Var, ir.Expr]:
                key = self._inside(self._start(step) + g * MMA_KEYS + key)
                return {**self._position(0), self._config.pattern.key.var: key}

            return pipeline.issue(step, step < self._steps(), place, g, t)

        return self._config.each_thread(thread)

    def _consume_keys(self, step: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Load a thread's vectors of every eighth key."""
        row, lane = coordinates(t, [8, index(self._quad)])
        count = 2 * self._depth // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            b, vector = coordinates(own, [2, index(count // 2)])
            return b * 8 + row, vector * self._quad + lane

        return self._key_pipeline.consume(step, self._k_frag, count, which, g, t)

    def _consume_values(self, step: ir.Expr, g: ir.Expr, t: ir.Expr) -> tirx.Stmt:
        """Load vectors of the values of the keys whose scores a thread has."""
        row, lane = coordinates(t, [8, index(self._quad)])
        count = self._mma.k_per_lane * self._columns // VECTOR

        def which(own: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
            vector, b, one = coordinates(own, [index(-1), 2, 2])
            return b * 8 + lane * 2 + one, vector * 8 + row

        return self._value_pipeline.consume(step, self._v, count, which, g, t)

    def _own_row(self, t: ir.Expr, slot: ir.Expr) -> ir.Expr:
        return tirx.floormod(t, index(self._quad)) * PAIR + slot

    def _row(self, number: ir.Expr) -> dict[ir.Var, ir.Expr]:
        return self._position(tirx.min(number, index(self._config.block_m - 1)))

    def _element(self, vector: ir.Expr, t: ir.Expr, lane: ir.Expr) -> ir.Expr:
        return vector * MMA_DEPTH + tirx.floormod(t, index(self._quad)) * VECTOR + lane


# The queries of flash-decoding as the B operand of tensor cores, in a half type.
@dataclass(frozen=True)
class QueryOperand:
    """Elements of the queries, and a factor of the scores masked_weight of them."""

    element: ir.Expr  # of the half type of keys and values
    # Of the whole row, such as the softmax scale, in float32: applied to the scores, so that
    # elements of a half type are not rounded again.
    factor: ir.Expr | None
    is_vector: bool  # whether elements are loaded in whole vectors

    @classmethod
    def of(cls, config: FlashDecodeConfig) -> QueryOperand:
        """Separate the scale of the queries from their elements."""
        pattern: Pattern = config.pattern
        half, depth = str(config.keys[0].ty.dtype), pattern.depth
        factor, element = _factored(pattern.q, depth.var)
        if isinstance(element, tirx.Cast) and str(element.value.ty.dtype) == half:
            element = element.value
        else:
            element = tirx.Cast(half, element)
        is_load = isinstance(element, ir.TensorLoad) and bool(
            contiguous_loads(pattern, element, depth)
        )
        return cls(element, factor, is_load and vector_width([(element, depth)]) == VECTOR)


def _factored(query: ir.Expr, depth: ir.Var) -> tuple[ir.Expr | None, ir.Expr]:
    if isinstance(query, tirx.Mul):
        for factor, element in ((query.a, query.b), (query.b, query.a)):
            if depth not in variables(factor):
                return factor, element
    return None, query
