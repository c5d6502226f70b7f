"""Online softmax on a CPU: over the scores of some rows, each along its keys in vectors.

for row:
    m_new = max(m_i, score(s)); rescale l_i, acc to m_new
    p = exp(s - m_new); l_i += sum(p); p = weight(p)
"""

from collections.abc import Callable, Mapping

from tvm import ir, sym, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence, substitute, vectorized
from ...cpu.vector_loops import over_vectors
from ...math.vector_functions import decay, unit_decay
from ...math.vector_math import plain_maximum, vector_math
from ..problem.online_softmax import LOWEST, SoftmaxState, assign, float_, initialize
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig

Where = Mapping[ir.Var, ir.Expr]


class OnlineSoftmax:
    """Softmax of the rows of a tile, with their running statistics.

    Attributes
    ----------
    rows
        Rows that are computed at once.
    m_i, l_i : Var
        Running maxima of the scores and sums of the exponentials, by slot.
    local, running : list of Var
        Buffers of one tile of keys, and those that live across tiles.
    """

    def __init__(self, pattern: Pattern, config: CpuConfig, rows: int, slots: int) -> None:
        self._pattern, self._config = pattern, config
        self.rows = rows
        self.l_i = scratch([index(slots)], FLOAT, "l_i")
        self.m_i = scratch([index(slots)], FLOAT, "m_i")
        self._slots = slots
        stats = [self.l_i, self.m_i]
        self.local: list[ir.Var] = stats if config.single else []
        self.running: list[ir.Var] = [] if config.single else stats

    def start(self, acc: ir.Var) -> tirx.Stmt:
        """Initialize the statistics and accumulators of all rows."""

        def row(slot: ir.Expr) -> tirx.Stmt:
            def clear(first: ir.Expr, width: int) -> tirx.Stmt:
                return vectorized(
                    width, lambda lane: tirx.BufferStore(acc, float_(0), [slot, first + lane])
                )

            return sequence(
                [
                    *initialize(load(self.m_i, [slot]), load(self.l_i, [slot])),
                    over_vectors(self._config.columns, self._config.width, clear),
                ]
            )

        return loop("slot", self._slots, row)

    def softmax(
        self,
        scores: ir.Var,
        acc: ir.Var,
        where: Where,
        query: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        """Replace scores by weights, and update the statistics."""

        def row(i: ir.Expr) -> tirx.Stmt:
            at = self._at(where, query + i)
            return self._row(scores, acc, at, i, slot + i, start, count)

        return loop("i", self.rows, row)

    def _row(
        self,
        scores: ir.Var,
        acc: ir.Var,
        at: dict[ir.Var, ir.Expr],
        i: ir.Expr,
        slot: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        pattern, config = self._pattern, self._config
        lanes, zero = config.lanes, index(0)
        m_lanes, l_lanes = local("m_lanes", [lanes], FLOAT), local("l_lanes", [lanes], FLOAT)
        m_new_alpha = local("m_new", [2], FLOAT)

        def fill(buffer: ir.Var, value: float) -> tirx.Stmt:
            return vectorized(lanes, lambda lane: tirx.BufferStore(buffer, float_(value), [lane]))

        def score(first: ir.Expr, width: int) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                raw = load(scores, [i, first + lane])
                keys = {**at, pattern.key.var: start + first + lane, pattern.raw: raw}
                value = vector_math(substitute(pattern.score, keys), lane)
                return tirx.BufferStore(scores, value, [i, first + lane])

            def larger(lane: ir.Expr) -> tirx.Stmt:
                pair = plain_maximum(load(m_lanes, [lane]), load(scores, [i, first + lane]))
                return tirx.BufferStore(m_lanes, pair, [lane])

            is_plain = pattern.score.same_as(pattern.raw)
            return sequence(
                [*([] if is_plain else [vectorized(width, one)]), vectorized(width, larger)]
            )

        def pad(position: ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(scores, float_(-float("inf")), [i, position])

        def exponential(first: ir.Expr) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                value = unit_decay(load(scores, [i, first + lane]) - load(m_new_alpha, [zero]))
                return tirx.BufferStore(scores, value, [i, first + lane])

            def add(lane: ir.Expr) -> tirx.Stmt:
                pair = load(l_lanes, [lane]) + load(scores, [i, first + lane])
                return tirx.BufferStore(l_lanes, pair, [lane])

            return sequence([vectorized(lanes, one), vectorized(lanes, add)])

        size = constant(count)
        vectors: ir.Expr | int
        if size is not None:
            vectors = -(-size // lanes)
            padding = loop("pad", vectors * lanes - size, lambda n: pad(n + size))
        else:
            vectors = tirx.floordiv(index(count) + (lanes - 1), index(lanes))
            padding = loop("pad", vectors * lanes - count, lambda n: pad(count + n))
        stmts = [
            fill(m_lanes, LOWEST),
            over_vectors(count, lanes, score),
            padding,
            reduce_vector(m_lanes, lanes, plain_maximum),
        ]
        if config.single:
            kept = [(m_new_alpha, zero), *([] if pattern.sink is None else [(self.m_i, slot)])]
            m_new = load(m_lanes, [zero])
            stmts += [tirx.BufferStore(x, m_new, [i]) for x, i in kept]
        else:
            stmts.extend(self._rescale(acc, m_lanes, m_new_alpha, slot))
        stmts.extend(
            [
                fill(l_lanes, 0),
                loop("vector", vectors, lambda n: exponential(n * lanes)),
                reduce_vector(l_lanes, lanes, lambda a, b: a + b),
            ]
        )
        l_i = load(l_lanes, [zero])
        if not config.single:
            l_i = l_i + load(self.l_i, [slot])
        stmts.append(tirx.BufferStore(self.l_i, l_i, [slot]))
        stmts.append(self._weigh(scores, at, i, start, count))
        return block("row", sequence(stmts), [m_lanes, l_lanes, m_new_alpha])

    def _rescale(
        self, acc: ir.Var, m_lanes: ir.Var, m_new_alpha: ir.Var, slot: ir.Expr
    ) -> list[tirx.Stmt]:
        """Rescale the statistics and accumulators to the new maximum."""
        state = SoftmaxState(
            load(self.m_i, [slot]), load(self.l_i, [slot]), load(m_new_alpha, [index(1)])
        )
        m_new = load(m_new_alpha, [index(0)])

        def scale(first: ir.Expr, width: int) -> tirx.Stmt:
            return vectorized(width, lambda lane: state.scale(load(acc, [slot, first + lane])))

        return [
            assign(m_new, plain_maximum(state.m_i, load(m_lanes, [index(0)]))),
            *state.rescale(m_new, decay),
            over_vectors(self._config.columns, self._config.width, scale),
        ]

    def _weigh(
        self,
        scores: ir.Var,
        at: dict[ir.Var, ir.Expr],
        i: ir.Expr,
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tirx.Stmt:
        """Apply the maps of the softmax: guards, factors, masks."""
        pattern = self._pattern
        if pattern.weight.same_as(pattern.exponential):
            return sequence([])

        def run(first: ir.Expr, width: int) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                known = {pattern.exponential: load(scores, [i, first + lane])}
                keys = {**at, **known, pattern.key.var: start + first + lane}
                value = vector_math(substitute(pattern.weight, keys), lane)
                return tirx.BufferStore(scores, value, [i, first + lane])

            return vectorized(width, one)

        return over_vectors(count, self._config.lanes, run)

    def _at(self, where: Where, query: ir.Expr) -> dict[ir.Var, ir.Expr]:
        if self._pattern.query is None:
            return dict(where)
        return {**where, self._pattern.query.var: query}


# Vectors on a CPU: reduced to one element, conditions that hold for all lanes resolved.
def reduce_vector(
    buffer: ir.Var, width: int, combine: Callable[[ir.Expr, ir.Expr], ir.Expr]
) -> tirx.Stmt:
    """Reduce a vector to its first element, halves with halves."""
    stmts: list[tirx.Stmt] = []
    while width > 1:
        width //= 2

        def half(lane: ir.Expr, width: int = width) -> tirx.Stmt:
            pair = combine(load(buffer, [lane]), load(buffer, [lane + width]))
            return tirx.BufferStore(buffer, pair, [lane])

        stmts.append(vectorized(width, half))
    return sequence(stmts)


def resolved(expr: ir.Expr, lane: ir.Expr, width: int) -> ir.Expr:
    """Simplify the conditions of a vector that hold for all of its lanes or for none."""
    if not isinstance(lane, ir.Var):
        return sym.Analyzer().simplify(expr)
    analyzer = sym.Analyzer()
    analyzer.bind(lane, ir.Range.from_min_extent(index(0), index(width)))
    return analyzer.simplify(expr)
