"""The epilogue of attention on a CPU: divide by the softmax sums, and store the results."""

from collections.abc import Mapping
from dataclasses import replace

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import block, constant, index, local, loop, sequence, vectorized
from ...contraction.problem.epilogue.fuse import is_vector_code
from ...cpu.vector_loops import over_vectors
from ...math.vector_math import vector_math
from ..problem.online_softmax import assign, divisor, float_, masked_row, store_result
from ..problem.pattern import FLOAT, Pattern
from .config import CpuConfig


class Epilogue:
    """Normalize and store rows.

    Parameters
    ----------
    acc
        Weighted sums of values, by slot and column.
    m_i, l_i
        Maxima of the scores, and sums of the exponentials, by slot.
    """

    def __init__(
        self, pattern: Pattern, config: CpuConfig, acc: ir.Var, m_i: ir.Var, l_i: ir.Var
    ) -> None:
        product = pattern.product
        results = tuple(replace(r, value=vector_math(r.value)) for r in product.results)
        self._pattern = replace(pattern, product=replace(product, results=results))
        self._config, self._acc, self._m_i, self._l_i = config, acc, m_i, l_i
        self._is_vector = all(is_vector_code(r, product.total) for r in results)

    def rows(
        self, where: Mapping[ir.Var, ir.Expr], query: ir.Expr, slot: ir.Expr, rows: int
    ) -> tirx.Stmt:
        """Store some rows."""

        def row(i: ir.Expr) -> tirx.Stmt:
            at = dict(where)
            if self._pattern.query is not None:
                at[self._pattern.query.var] = query + i
            return self._row(at, slot + i)

        return loop("i", rows, row)

    def _row(self, at: dict[ir.Var, ir.Expr], slot: ir.Expr) -> tirx.Stmt:
        buffer = local("inverse", [2], FLOAT)
        inverse = load(buffer, [index(0)])

        def run(first: ir.Expr, width: int) -> tirx.Stmt:
            def one(lane: ir.Expr) -> tirx.Stmt:
                column = first + lane
                return self._store(at, column, load(self._acc, [slot, column]) * inverse)

            return vectorized(width, one)

        elements = constant(self._pattern.column.extent) or 1
        stmt = over_vectors(elements, self._config.width if self._is_vector else 1, run)
        total = load(self._l_i, [slot])
        keys = index(self._pattern.key.extent)
        divided_by = divisor(self._pattern, at, load(self._m_i, [slot]), total)
        if constant(keys) is None:  # without keys the sums of values and of exponentials are 0
            divided_by = tirx.Select(keys > 0, divided_by, float_(1))
        stmts = [assign(inverse, float_(1) / divided_by), stmt]
        if self._pattern.masked_weight is None:
            return block("result", sequence(stmts), [buffer])
        # NaN compares false, too.
        is_number = total > float_(0)
        whole = tirx.IfThenElse(is_number, sequence(stmts), self._masked_row(at, elements))
        return block("result", whole, [buffer])

    def _masked_row(self, at: dict[ir.Var, ir.Expr], elements: int) -> tirx.Stmt:
        buffer = local("masked", [2], FLOAT)
        total = load(buffer, [index(0)])

        def column(number: ir.Expr) -> tirx.Stmt:
            known = {**at, self._pattern.column.var: number}
            stmts = masked_row(self._pattern, known, total)
            return sequence([*stmts, self._store(at, number, total)])

        return block("masked", loop("column", elements, column), [buffer])

    def _store(self, at: dict[ir.Var, ir.Expr], column: ir.Expr, value: ir.Expr) -> tirx.Stmt:
        return store_result(self._pattern, {**at, self._pattern.column.var: column}, value)
