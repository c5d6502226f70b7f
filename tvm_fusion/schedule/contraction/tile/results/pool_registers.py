"""Pooled sums in registers: a vector of columns, over the adjacent rows of a window.

pooled[8] = initial value
for row of the window:  sums[8] from shared memory;  pooled = update(pooled, sums)
"""

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from .....core.tir.expressions import load, loads, variables
from .....core.tir.loops import constant, coordinates, index, local, sequence, substitute
from ....gpu.memory.vector_loads import ElementLoads
from ....gpu.registers.buffers import RegisterBuffers
from ...problem.epilogue.pooled_rows import PooledRows
from ..config import TileGemmConfig
from .vectors import result_analyzer


class PoolRegisters:
    """The pooled sums of a thread's vector.

    Parameters
    ----------
    config
        The product, whose rows are pooled.
    width
        Columns of a vector.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(self, config: TileGemmConfig, pool: PooledRows, width: int) -> None:
        problem = config.problem
        self._pool, self._width, self._axis = pool, width, problem.n_axes[-1]
        self._vector = tirx.Var("vector", "int64")
        elements = ElementLoads(
            result_analyzer(problem.contraction, self._axis, self._vector, width)
        )
        self._updates = [
            elements.read(substitute(pool.update, {self._axis.var: self._vector * width + lane}))
            for lane in range(width)
        ]
        self._registers = RegisterBuffers(elements.vectors(), 1)
        self._pooled = local("pooled", [width], str(pool.update.ty.dtype))
        self.buffers = [*self._registers.arrays, self._pooled]
        places = {a.var for a in pool.places}
        self._is_of_window = any(
            places & variables(i) for x in loads(pool.update) for i in x.indices
        )

    def reduce(
        self,
        where: Mapping[ir.Var, ir.Expr],
        sums: Callable[[int], tuple[list[tirx.Stmt], Callable[[int], ir.Expr]]],
    ) -> tirx.Stmt:
        """Reduce the sums of a window.

        Parameters
        ----------
        where
            All axes of the product at the first of its rows.
        sums
            Loads those of a row of the window, and gives that of a lane.
        """
        pool, pooled = self._pool, self._pooled
        vector = tirx.floordiv(where[self._axis.var], index(self._width))
        stmts: list[tirx.Stmt] = [
            tirx.BufferStore(pooled, pool.initial, [lane]) for lane in range(self._width)
        ]
        extents = [constant(a.extent) or 1 for a in pool.places]
        for row in range(pool.size):
            places = coordinates(index(row), extents)
            of_row = zip((a.var for a in pool.places), places, strict=True)
            at = {**where, **dict(of_row), self._vector: vector}
            if row == 0 or self._is_of_window:
                stmts.append(self._registers.fill(index(0), at))
            loaded, total = sums(row)
            stmts += loaded
            for lane, update in enumerate(self._updates):
                given = {**at, pool.running: load(pooled, [lane]), pool.total: total(lane)}
                value = substitute(self._registers.values(update, index(0)), given)
                stmts.append(tirx.BufferStore(pooled, value, [lane]))
        return sequence(stmts)

    def at(self, lane: int) -> ir.Expr:
        """Return what was pooled of a column."""
        return load(self._pooled, [index(lane)])
