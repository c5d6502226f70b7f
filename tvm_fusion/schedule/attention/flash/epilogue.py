"""Results of FlashAttention on tensor cores: through shared memory, each warp its own rows.

acc / l_i -> shared memory, pairs of columns; __syncwarp
each thread, vectors of the warp's rows: shared memory -> registers -> epilogue -> global memory
"""

import operator

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import coordinates, index, loop, sequence, unrolled, vectorized, when
from ...contraction.problem.epilogue.fuse import store_results
from ...gpu.launch import storage_sync
from ...gpu.memory.cp_async import warp_sync
from ...gpu.registers.moves import move_16, store_pair
from ...gpu.threads.warp import LANES, shuffle
from ..problem.online_softmax import assign, divisor, float_, masked_row, store_result
from .block import FlashBlock, FlashMmaBlock
from .softmax import PAIR


class FlashResults(FlashBlock):
    """One thread, with vectors of results in registers."""

    _result: ir.Var

    def _divisor(self, slot: ir.Expr) -> ir.Expr:
        """Return what a row of the thread is divided by; maxima are of scores without factor."""
        m_i = load(self._m_i, [slot]) * float_(self._problem.score.factor)
        at = self._row(slot)
        return divisor(self._problem.pattern, at, m_i, load(self._l_i, [slot]))

    def _store_vector(
        self, at: dict[ir.Var, ir.Expr], column: ir.Expr, result: ir.Expr
    ) -> tirx.Stmt:
        pattern, staged = self._problem.pattern, self._problem.staged
        product = pattern.product

        def one(lane: ir.Expr) -> tirx.Stmt:
            place = pattern.place({**at, pattern.column.var: column + lane})
            value: ir.Expr = load(self._result, [result + lane])
            if str(product.total.ty.dtype) != staged:
                value = tirx.Cast(str(product.total.ty.dtype), value)
            return self._if_column(column + lane, store_results(product, place, value))

        if self._problem.is_vector:
            return vectorized(self._config.staged_lanes, one)
        return unrolled("lane", self._config.staged_lanes, one)

    def _store_masked(self, at: dict[ir.Var, ir.Expr], column: ir.Expr) -> tirx.Stmt:
        """Compute the vector of a row without a softmax."""
        pattern = self._problem.pattern
        total = load(self._m_new, [index(self._slots - 1)])

        def one(lane: ir.Expr) -> tirx.Stmt:
            place = {**at, pattern.column.var: column + lane}
            stmts = [*masked_row(pattern, place, total), store_result(pattern, place, total)]
            return self._if_column(column + lane, sequence(stmts))

        return loop("lane", self._config.staged_lanes, one)

    def _if_column(self, column: ir.Expr, stmt: tirx.Stmt) -> tirx.Stmt:
        if self._problem.v.extent % self._config.staged_lanes == 0:
            return stmt
        return when(column < self._problem.v.extent, stmt)


class FlashMmaEpilogue(FlashResults, FlashMmaBlock):
    """One thread of a warp whose results pass through shared memory."""

    def _finish(self) -> list[tirx.Stmt]:
        """Store the results of the warp's rows."""
        return [
            *self._all_reduce(self._l_i, operator.add),
            storage_sync(),
            self._stage_results(),
            warp_sync(),
            self._store_results(),
        ]

    def _staged(self, row: ir.Expr, column: ir.Expr) -> ir.TensorLoad:
        """Return the place of an element of a row of the warp."""
        config = self._config
        row = self._g * config.rows_of_warp + row
        words = config.staged_bytes // 2
        return load(self._shared, [row * (config.staged_pitch * 8) + column * words])

    def _stage_results(self) -> tirx.Stmt:
        columns8 = self._column_cells

        def inverse(slot: ir.Expr) -> tirx.Stmt:
            return assign(load(self._alpha, [slot]), float_(1) / self._divisor(slot))

        def pair(i: ir.Expr) -> tirx.Stmt:
            m, n8, half = coordinates(i, [self._config.m16, columns8, 2])
            slot = m * 2 + half
            factor = load(self._alpha, [slot])
            values = [load(self._acc, [i * PAIR + lane]) * factor for lane in range(PAIR)]
            to = self._staged(self._own_row(slot), self._own_column(n8, index(0)))
            return store_pair(to, values[0], values[1], self._problem.staged)

        count = self._config.m16 * columns8 * self._mma.c.per_lane // PAIR
        return sequence([unrolled("slot", self._slots, inverse), unrolled("i", count, pair)])

    def _store_results(self) -> tirx.Stmt:
        config, pattern = self._config, self._problem.pattern
        columns, rows, lanes = self._problem.v.extent, config.rows_of_warp, config.staged_lanes
        vectors = -(-columns // lanes)
        total = rows * vectors

        def item(number: ir.Expr) -> tirx.Stmt:
            flat = number * LANES + self._t
            row, vector = coordinates(flat, [rows, vectors])
            query = self._first + self._g * rows + row
            at = {**self._where, self._problem.query.var: query}
            column, result = vector * lanes, number * lanes
            moved = move_16(load(self._result, [result]), self._staged(row, column))
            stored = self._store_vector(at, column, result)
            stmt = sequence([moved, stored])
            sums: list[tirx.Stmt] = []
            if pattern.masked_weight is not None:
                sums, total_of_row = self._sum_of_row(row)
                masked = self._store_masked(at, column)
                # NaN compares false, too.
                stmt = tirx.IfThenElse(total_of_row > float_(0), stmt, masked)
            inside = query < index(self._problem.query.extent)
            if total % LANES:
                inside = tirx.all(flat < total, inside)
            return sequence([*sums, when(inside, stmt)])

        return unrolled("item", -(-total // LANES), item)

    def _sum_of_row(self, row: ir.Expr) -> tuple[list[tirx.Stmt], ir.Expr]:
        """Fetch the sum of exponentials of a row of the warp from a thread that has it."""
        found = load(self._m_new, [index(0)])
        c = self._mma.c
        rows = index(c.lanes_per_column)
        lane = tirx.Cast("int32", tirx.floormod(row, rows) * c.lanes_per_row)
        stmts = []
        for slot in range(self._slots):
            other = shuffle(load(self._l_i, [index(slot)]), lane)
            stmts.append(assign(load(self._alpha, [index(slot)]), other))
        value: ir.Expr = load(self._alpha, [index(0)])
        for slot in range(1, self._slots):
            is_slot = tirx.EQ(tirx.floordiv(row, rows), index(slot))
            value = tirx.Select(is_slot, load(self._alpha, [index(slot)]), value)
        return [*stmts, assign(found, value)], found
