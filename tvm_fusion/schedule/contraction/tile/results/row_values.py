"""Row values in registers: sums over few elements of each row that a thread stores results of.

for row of the thread's (direct_epilogue), or of its vector (shared_epilogue):
  load what the sums add up, in vectors                               global
  for each sum:  sum = term + term + ..
  values[row] = what results read of the sums
"""

from collections.abc import Mapping

from tvm import ir, sym, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import constant, index, local, sequence, substitute
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from ..config import TileGemmConfig


class RowRegisters:
    """Row values of a thread.

    Parameters
    ----------
    config
        The product, with row values.
    copies
        Rows that are held at once.
    """

    def __init__(self, config: TileGemmConfig, copies: int) -> None:
        rows = config.problem.contraction.row_values
        assert rows is not None
        self._rows, self._variables = rows, list(rows.values)
        analyzer = sym.Analyzer()
        for axis in config.problem.contraction.stage.axes:
            extent = constant(axis.extent)
            if extent is not None:
                analyzer.bind(axis.var, ir.Range.from_min_extent(index(0), index(extent)))
        self._sums = local("row_sums", [len(rows.sums)], "float32")
        held = {s.target: load(self._sums, [index(i)]) for i, s in enumerate(rows.sums)}
        elements = ElementLoads(analyzer)

        def read(expr: ir.Expr) -> ir.Expr:
            """Name what is loaded, and stand in for sums."""
            stand_ins = {target: tirx.Var("row_sum", "float32") for target in held}
            own = substitute(expr, {}, lambda x: stand_ins.get(x.source, x))
            return substitute(elements.read(own), {stand_ins[t]: held[t] for t in held})

        self._terms = [[read(term) for term in s.terms] for s in rows.sums]
        self._results = [read(value) for value in rows.values.values()]
        self._registers = RegisterBuffers(elements.vectors(), 1)
        self._values = local("row_values", [copies * len(self._variables)], "float32")
        self.buffers = [*self._registers.arrays, self._sums, self._values]

    def fill(self, copy: ir.Expr | int, where: Mapping[ir.Var, ir.Expr]) -> tirx.Stmt:
        """Compute the values of a row; ``where`` gives the axes of M and of the batch."""

        def held(expr: ir.Expr) -> ir.Expr:
            return substitute(self._registers.values(expr, index(0)), where)

        stmts = [self._registers.fill(index(0), where)]
        for number, terms in enumerate(self._terms):
            total = held(terms[0])
            for term in terms[1:]:
                total = total + held(term)
            stmts.append(tirx.BufferStore(self._sums, total, [number]))
        first = index(copy) * len(self._variables)
        for number, value in enumerate(self._results):
            stmts.append(tirx.BufferStore(self._values, held(value), [first + number]))
        return sequence(stmts)

    def at(self, copy: ir.Expr | int) -> dict[ir.Var, ir.Expr]:
        """Return a row's values by the variables that stand for them in results."""
        first = index(copy) * len(self._variables)
        return {v: load(self._values, [first + n]) for n, v in enumerate(self._variables)}
