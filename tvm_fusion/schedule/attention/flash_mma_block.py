"""The products and the softmax of a thread of FlashAttention on tensor cores."""

from __future__ import annotations

import math

from tvm import ir, tirx

from ..._tvm.buffer import scratch
from ...core.expressions import load
from ...core.loops import coordinates, index, sequence, substitute, unrolled
from ..gpu.ldmatrix import ELEMENTS, ldmatrix_x4, row_major_lane, transposed_lane
from ..gpu.mma import ACCUMULATORS, GROUPS, THREADS_IN_GROUP, WARP, mma_m16n8k16
from ..gpu.register_moves import store_pair
from ..gpu.swizzle import VECTOR, SwizzledRows
from ..gpu.tma import ROW_BYTES
from ..gpu.warp import shuffle
from ..gpu.wgmma import Operand, multiply_fragments
from .flash_loads import TileLoads
from .flash_mma_config import FlashMmaConfig
from .flash_problem import FlashProblem
from .flash_tiles import KeyTiles
from .online_softmax import SoftmaxState, assign, float_, initialize
from .pattern import FLOAT

LOG2_E = math.log2(math.e)
LEAST_MAXIMUM = -1e30  # that is multiplied before it is subtracted
PAIR = 2  # neighbouring columns of an accumulator fragment


class FlashMmaBlock:
    """One thread: of each 16 rows of its warp two, of every eight columns two.

    Parameters
    ----------
    problem : FlashProblem
        The attention.
    config : FlashMmaConfig
        Its configuration.
    where : dict of Var to PrimExpr
        Position of the block along the batch axes.
    first : PrimExpr
        The first row of the block.
    g, t : PrimExpr
        The warp and its thread.
    """

    _tiles: KeyTiles

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashMmaConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        g: ir.Expr,
        t: ir.Expr,
    ) -> None:
        self._problem, self._config = problem, config
        self._where, self._first, self._g, self._t = where, first, g, t
        self._half = problem.half
        self._buffers: list[ir.Var] = []
        m16 = config.m16
        self._n8, self._columns8 = config.block_n // 8, config.column16 // 8
        self._slots = m16 * PAIR  # rows of the thread
        # CUDA wants one type for all declarations of a name in a module.
        size = config.shared_bytes // 2
        self._shared = self._declare(f"smem_{self._half}", size, self._half, "shared.dyn")
        self._acc = self._declare("acc", m16 * self._columns8 * ACCUMULATORS)
        self._s = self._declare("s", m16 * self._n8 * ACCUMULATORS)
        self._m_i, self._l_i = self._declare("m_i", self._slots), self._declare("l_i", self._slots)
        self._m_new = self._declare("m_new", self._slots)
        self._alpha = self._declare("alpha", self._slots)
        q_size = m16 * ELEMENTS * config.q_fragments
        self._q_frag = self._declare("q_frag", q_size, self._half)
        self._b_frag = self._declare("b_frag", ELEMENTS, self._half)
        self._p_frag = self._declare("p_frag", m16 * self._n8 * 4, self._half)
        vector = self._declare("vector", VECTOR, self._half)
        # A vector has registers of its own: TVM's generator of CUDA takes two vectors that are
        # loaded from one place for the same, whatever was stored there by address in between.
        vectors = -(-problem.v.extent // config.staged_lanes) * config.rows_of_warp
        size = -(-vectors // WARP) * config.staged_lanes
        self._result = self._declare("o", size, problem.staged)
        rows = (config.q_rows, config.k_rows(), config.v_rows())
        self._q_loads, self._k_loads, self._v_loads = (
            TileLoads(x, r, self._shared, vector, config.threads, g * WARP + t)
            for x, r in zip((problem.q, problem.k, problem.v), rows, strict=True)
        )

    def _declare(self, name: str, size: int, dtype: str = FLOAT, scope: str = "local") -> ir.Var:
        buffer = scratch([index(size)], dtype, name, scope)
        self._buffers.append(buffer)
        return buffer

    def _position(self, row: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Give the position of a row; rows behind the last one compute it again, unstored."""
        last = index(self._problem.query.extent) - 1
        return {**self._where, self._problem.query.var: tirx.min(row, last)}

    def _own_row(self, slot: ir.Expr) -> ir.Expr:
        """Give the number in its warp of a row of the thread."""
        return slot * GROUPS + tirx.floordiv(self._t, index(THREADS_IN_GROUP))

    def _row(self, slot: ir.Expr) -> dict[ir.Var, ir.Expr]:
        row = self._first + self._g * self._config.rows_of_warp + self._own_row(slot)
        return self._position(row)

    def _own_column(self, n8: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """Give the column of an accumulator."""
        return n8 * 8 + tirx.floormod(self._t, index(THREADS_IN_GROUP)) * PAIR + lane

    def _state(self, slot: ir.Expr) -> SoftmaxState:
        return SoftmaxState(*(load(x, [slot]) for x in (self._m_i, self._l_i, self._alpha)))

    def _initialize(self) -> tirx.Stmt:
        def statistics(slot: ir.Expr) -> tirx.Stmt:
            return sequence(initialize(load(self._m_i, [slot]), load(self._l_i, [slot])))

        return sequence([self._zero(self._acc), unrolled("slot", self._slots, statistics)])

    def _zero(self, buffer: ir.Var) -> tirx.Stmt:
        count = int(buffer.ty.shape[0])
        return unrolled("i", count, lambda i: assign(load(buffer, [i]), float_(0)))

    def _fragment(
        self, rows: SwizzledRows, first: ir.Expr, k16: ir.Expr, to: ir.TensorLoad
    ) -> tirx.Stmt:
        """Load 16 rows and 16 columns."""
        row, half = row_major_lane(self._t)
        place = rows.element(first + row, k16 * 2 + half, row)
        return ldmatrix_x4(to, load(self._shared, [place]), False)

    def _load_fragments_of_queries(self, k16: ir.Expr, begin: ir.Expr) -> tirx.Stmt:
        def one(m: ir.Expr) -> tirx.Stmt:
            row = self._g * self._config.rows_of_warp + m * 16
            to = load(self._q_frag, [begin + m * ELEMENTS])
            return self._fragment(self._config.q_rows, row, k16, to)

        return unrolled("m", self._config.m16, one)

    def _load_queries(self) -> tirx.Stmt:
        size = self._config.m16 * ELEMENTS

        def one(k16: ir.Expr) -> tirx.Stmt:
            return self._load_fragments_of_queries(k16, k16 * size)

        return unrolled("k16", self._config.depth16 // 16, one)

    def _stage(self, n: ir.Expr) -> ir.Expr:
        return tirx.floormod(n, index(self._config.stages)) * self._config.block_n

    def _multiply_keys(self, n: ir.Expr) -> tirx.Stmt:
        config = self._config
        if config.uses_wgmma:
            sizes = config.block_n, config.depth16
            product = self._warpgroup_product(n, config.k_rows(), self._s, self._q_frag, sizes)
            return sequence([self._load_queries(), product])

        def over_depth(k16: ir.Expr) -> tirx.Stmt:
            begin = k16 * config.m16 * ELEMENTS if config.q_in_registers else index(0)

            def over_keys(n16: ir.Expr) -> tirx.Stmt:
                row, to = self._stage(n) + n16 * 16, load(self._b_frag, [index(0)])
                loaded = self._fragment(config.k_rows(), row, k16, to)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = begin + m * ELEMENTS
                    return [load(self._q_frag, [start + i * 4]) for i in range(2)]

                return sequence([loaded, self._products(self._s, self._n8, n16, a_rows)])

            loaded = [] if config.q_in_registers else [self._load_fragments_of_queries(k16, begin)]
            return sequence([*loaded, unrolled("n16", config.block_n // 16, over_keys)])

        return sequence([self._zero(self._s), unrolled("k16", config.depth16 // 16, over_depth)])

    def _products(self, to: ir.Var, columns8: int, n16: ir.Expr, a_rows) -> tirx.Stmt:
        """Multiply all rows of the warp with two fragments of eight columns."""

        def one(i: ir.Expr) -> tirx.Stmt:
            m, j = coordinates(i, [self._config.m16, 2])
            c = load(to, [(m * columns8 + n16 * 2 + j) * ACCUMULATORS])
            return mma_m16n8k16(self._half, c, a_rows(m), load(self._b_frag, [j * 4]))

        return unrolled("i", self._config.m16 * 2, one)

    def _multiply_values(self, n: ir.Expr) -> tirx.Stmt:
        config = self._config
        rows = config.v_rows()
        if config.uses_wgmma:
            sizes = config.column16, config.block_n
            return self._warpgroup_product(n, rows, self._acc, self._p_frag, sizes)

        def over_keys(k16: ir.Expr) -> tirx.Stmt:
            def over_columns(n16: ir.Expr) -> tirx.Stmt:
                row, half = transposed_lane(self._t)
                place = rows.element(self._stage(n) + k16 * 16 + row, n16 * 2 + half, row)
                to = load(self._b_frag, [index(0)])
                loaded = ldmatrix_x4(to, load(self._shared, [place]), is_transposed=True)

                def a_rows(m: ir.Expr) -> list[ir.TensorLoad]:
                    start = (m * (self._n8 // 2) + k16) * ELEMENTS
                    return [load(self._p_frag, [start + i * 4]) for i in range(2)]

                return sequence([loaded, self._products(self._acc, self._columns8, n16, a_rows)])

            return unrolled("n16", config.column16 // 16, over_columns)

        return unrolled("k16", config.block_n // 16, over_keys)

    def _warpgroup_product(
        self, n: ir.Expr, rows: SwizzledRows, to: ir.Var, a: ir.Var, sizes: tuple[int, int]
    ) -> tirx.Stmt:
        """Multiply fragments of the warpgroup with a tile of keys, or of values."""
        is_keys = to.same_as(self._s)
        place = rows.element(self._stage(n), index(0), index(0))
        b = Operand(is_keys, self._config.block_n * ROW_BYTES), load(self._shared, [place])
        acc, a_frag = load(to, [index(0)]), load(a, [index(0)])
        return multiply_fragments(self._half, *sizes, acc, a_frag, b, is_added=not is_keys)

    def _softmax(self, n: ir.Expr) -> tirx.Stmt:
        """Compute scores, their maxima, and weights; rescale what was accumulated."""
        form, tiles = self._problem.score, self._tiles
        inside = self._scores(n, form.inside, False)
        if tiles.are_whole:
            scores = inside
        else:
            scores = tirx.IfThenElse(tiles.is_whole(n), inside, self._scores(n, form.full, True))

        def start(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._m_new, [slot]), load(self._m_i, [slot]))

        def larger(i: ir.Expr) -> tirx.Stmt:
            m_new = load(self._m_new, [self._slot_of(i)])
            return assign(m_new, tirx.max(m_new, load(self._s, [i])))

        scale = form.factor * LOG2_E

        def exp(x: ir.Expr) -> ir.Expr:
            return tirx.exp2(x * float_(scale))

        def rescale(slot: ir.Expr) -> tirx.Stmt:
            return sequence(self._state(slot).rescale(load(self._m_new, [slot]), exp))

        def scaled(i: ir.Expr) -> tirx.Stmt:
            return self._state(self._slot_of(i, self._columns8)).scale(load(self._acc, [i]))

        return sequence(
            [
                scores,
                unrolled("slot", self._slots, start),
                unrolled("i", int(self._s.ty.shape[0]), larger),
                *self._all_reduce(self._m_new, tirx.max),
                unrolled("slot", self._slots, rescale),
                unrolled("i", int(self._acc.ty.shape[0]), scaled),
                self._weights(n, scale),
            ]
        )

    def _slot_of(self, i: ir.Expr, n8: int | None = None) -> ir.Expr:
        """Give the row of an accumulator among those of the thread."""
        m, _, half, _ = coordinates(i, [self._config.m16, n8 or self._n8, 2, PAIR])
        return m * 2 + half

    def _all_reduce(self, values: ir.Var, combine) -> list[tirx.Stmt]:
        """Reduce over the four threads of a row, in lockstep."""
        stmts = []
        for distance in (1, 2):
            other = tirx.bitwise_xor(tirx.Cast("int32", self._t), tirx.const(distance, "int32"))

            def one(slot: ir.Expr, other: ir.Expr = other) -> tirx.Stmt:
                value = load(values, [slot])
                return assign(value, combine(value, shuffle(value, other, WARP, WARP)))

            stmts.append(unrolled("slot", self._slots, one))
        return stmts

    def _scores(self, n: ir.Expr, score: ir.Expr, tests_keys: bool) -> tirx.Stmt:
        pattern, tiles = self._problem.pattern, self._tiles

        def one(i: ir.Expr) -> tirx.Stmt:
            m, n8, half, lane = coordinates(i, [self._config.m16, self._n8, 2, PAIR])
            key = tiles.start(n) + self._own_column(n8, lane)
            inside = tiles.clamped(key) if tests_keys else key
            at = {**self._row(m * 2 + half), pattern.key.var: inside}
            raw: ir.Expr = load(self._s, [i])
            if self._problem.factor is not None:
                raw = raw * substitute(self._problem.factor, at)
            value = substitute(score, {**at, pattern.raw: raw})
            if tests_keys and not tiles.is_even:
                value = tirx.Select(key < tiles.keys, value, float_(-math.inf))
            return assign(load(self._s, [i]), value)

        return unrolled("i", int(self._s.ty.shape[0]), one)

    def _weights(self, n: ir.Expr, scale: float) -> tirx.Stmt:
        """Make weights of scores, and of those the A fragment of the second product."""
        pattern, tiles = self._problem.pattern, self._tiles
        bounded = self._problem.score.is_bounded
        size = int(self._s.ty.shape[0])

        def base(slot: ir.Expr) -> tirx.Stmt:
            m_i = tirx.max(load(self._m_i, [slot]), float_(LEAST_MAXIMUM))
            return assign(load(self._m_new, [slot]), m_i * float_(scale))

        def exponential(i: ir.Expr) -> tirx.Stmt:
            slot, p = self._slot_of(i), load(self._s, [i])
            if bounded:
                exponent = p * float_(scale) - load(self._m_new, [slot])
            else:
                exponent = (p - load(self._m_i, [slot])) * float_(scale)
            l_i = load(self._l_i, [slot])
            return sequence([assign(p, tirx.exp2(exponent)), assign(l_i, l_i + p)])

        def weight(i: ir.Expr, lane: int) -> ir.Expr:
            m, n8, half = coordinates(i, [self._config.m16, self._n8, 2])
            p = load(self._s, [i * PAIR + lane])
            if pattern.weight.same_as(pattern.exponential):
                return p
            key = tiles.clamped(tiles.start(n) + self._own_column(n8, index(lane)))
            at = {**self._row(m * 2 + half), pattern.key.var: key}
            return substitute(pattern.weight, {**at, pattern.exponential: p})

        def pack(i: ir.Expr) -> tirx.Stmt:
            m, k16, j, half = coordinates(i, [self._config.m16, self._n8 // 2, 2, 2])
            place = (((m * (self._n8 // 2) + k16) * 2 + half) * 2 + j) * PAIR
            return store_pair(load(self._p_frag, [place]), weight(i, 0), weight(i, 1), self._half)

        return sequence(
            [
                *([unrolled("slot", self._slots, base)] if bounded else []),
                unrolled("i", size, exponential),
                unrolled("i", size // PAIR, pack),
            ]
        )
