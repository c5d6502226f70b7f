"""Keys that some rows of attention on a CPU see: tiles behind them are left out."""

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ....core.tir.loops import (
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    product,
    simplified,
    tasks,
)
from ....program.program import Program
from ..problem.pattern import Pattern
from ..problem.score_form import ScoreForm
from .config import CpuConfig

MIN_PANELS = 2  # of a tile of keys, below which leaving out some is not worth a count at run time


class VisibleKeys:
    """Bounds that masks by position set to the keys of neighbouring rows.

    Parameters
    ----------
    pattern
        The attention, constants written into it.

    Attributes
    ----------
    skips : bool
        Whether some rows do not see all keys, and leaving out the others changes no result.
    """

    def __init__(self, pattern: Pattern, config: CpuConfig) -> None:
        self._pattern, self._width = pattern, config.width
        self._keys = index(pattern.key.extent)
        form = ScoreForm.of(pattern, None, takes_loads=True)
        # Limits that each row reads from memory are in no order.
        self._bounds = [bound for bound in form.bounds if not bound.is_loaded]
        is_long = config.keys >= MIN_PANELS * config.width
        self.skips = bool(self._bounds) and form.skips and is_long

    def end(self, where: Mapping[ir.Var, ir.Expr], first: ir.Expr, last: ir.Expr) -> ir.Expr:
        """Return the number of keys up to the last one that a row sees, from 0 to all."""
        end = self._keys
        for bound in self._bounds:
            if bound.is_upper:
                limit = bound.extreme(self._query, (first, last), where, True)
                end = tirx.min(end, tirx.max(limit + 1, index(0)))
        return simplified(end)

    def begin(self, where: Mapping[ir.Var, ir.Expr], first: ir.Expr, last: ir.Expr) -> ir.Expr:
        """Return the first key that a row sees, or an earlier one."""
        begin = index(0)
        for bound in self._bounds:
            if not bound.is_upper:
                limit = bound.extreme(self._query, (first, last), where, False)
                begin = tirx.max(begin, limit)
        return simplified(begin)

    def of_tile(
        self,
        where: Mapping[ir.Var, ir.Expr],
        rows: tuple[ir.Expr, ir.Expr],
        start: ir.Expr,
        count: ir.Expr | int,
    ) -> tuple[ir.Expr, ir.Expr | int]:
        """Tell whether rows see a tile of keys, and how many keys of it are computed.

        Parameters
        ----------
        where
            The position along the batch axes.
        rows
            The first and the last row.
        start
            The first key of the tile.

        Returns
        -------
        tuple of PrimExpr
            The condition; keys in whole panels, but for the last one of the tile.
        """
        end = self.end(where, *rows)
        seen = tirx.all(end > start, self.begin(where, *rows) < start + count)
        panels = tirx.floordiv(end - start + (self._width - 1), index(self._width))
        size = constant(count)
        if size is not None and size % self._width == 0:
            return seen, simplified(tirx.min(panels, index(size // self._width)) * self._width)
        return seen, simplified(tirx.min(panels * self._width, index(count)))

    @property
    def _query(self) -> ir.Var | None:
        query = self._pattern.query
        return None if query is None else query.var


# The parallel loop of attention on a CPU: a task for each block of queries of each head.
Where = dict[ir.Var, ir.Expr]


def query_blocks(
    program: Program,
    pattern: Pattern,
    queries: ir.Expr,
    block: int,
    task: Callable[[Where, ir.Expr], tirx.Stmt],
) -> tirx.PrimFunc:
    """Make a kernel of tasks.

    Parameters
    ----------
    task
        Writes a task: by the indices of its head, and its first query.
    """
    extents = [*(a.extent for a in pattern.batch), ceildiv(queries, block)]

    def numbered(number: ir.Expr) -> tirx.Stmt:
        *batch, part = coordinates(number, extents)
        where = {a.var: i for a, i in zip(pattern.batch, batch, strict=True)}
        return task(where, part * block)

    return kernel(program, tasks(product(extents), numbered))
