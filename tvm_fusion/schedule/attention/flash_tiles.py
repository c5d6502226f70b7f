"""The tiles of keys of a block of FlashAttention: which are visited, and which are seen whole."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from ...core.expressions import load
from ...core.loops import ceildiv, constant, index, simplified
from .flash_mma_config import FlashMmaConfig
from .flash_problem import FlashProblem
from .mask_bounds import Bound


class KeyTiles:
    """Tiles of ``block_n`` keys for the rows of one block.

    Parameters
    ----------
    problem : FlashProblem
        The attention.
    config : FlashMmaConfig
        Its configuration.
    where : Mapping of Var to PrimExpr
        Position of the block along the batch axes.
    first : PrimExpr
        The first row of the block.
    limits : Var or None
        Of each bound that is read from memory by the row, the smallest and the largest limit of the
        block: see :mod:`.flash_row_limits`.
    """

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashMmaConfig,
        where: Mapping[ir.Var, ir.Expr],
        first: ir.Expr,
        limits: ir.Var | None = None,
    ) -> None:
        self._limits = limits
        pattern = problem.pattern
        self._problem, self._config, self._where = problem, config, where
        self.keys = index(pattern.key.extent)
        queries, block_n = index(problem.query.extent), config.block_n
        self._rows = first, tirx.min(first + (config.block_m - 1), queries - 1)
        self._begin, end = index(0), self.keys
        starts_anywhere = False
        for bound in problem.score.bounds if problem.skips else ():
            if bound.is_upper:
                last = tirx.max(self._extreme(bound, True), index(-1))
                end = tirx.min(end, last + 1)
            else:
                begin = tirx.max(self._extreme(bound, False), index(0))
                # Packed sequences are short: the first tile has none of the keys before.
                starts_anywhere |= bound.is_loaded
                if not bound.is_loaded:
                    begin = tirx.floordiv(begin, index(block_n)) * block_n
                self._begin = tirx.max(self._begin, begin)
        count = constant(pattern.key.extent)
        self.is_even = count is not None and count % block_n == 0 and not starts_anywhere
        self.count = simplified(tirx.max(ceildiv(end - self._begin, block_n), index(0)))

    def start(self, n: ir.Expr) -> ir.Expr:
        """Give the first key of the ``n``-th tile that is visited."""
        return simplified(self._begin + n * self._config.block_n)

    def clamped(self, key: ir.Expr) -> ir.Expr:
        """Clamp a key to the last one."""
        return key if self.is_even else tirx.min(key, self.keys - 1)

    @property
    def are_whole(self) -> bool:
        """Whether every row sees all keys of every tile."""
        return self.is_even and not self._problem.score.bounds

    def is_whole(self, n: ir.Expr) -> ir.Expr:
        """Whether all rows of the block see all keys of a tile."""
        start, last = self.start(n), self.start(n) + (self._config.block_n - 1)
        conditions = [] if self.is_even else [last < self.keys]
        for bound in self._problem.score.bounds:
            limit = self._extreme(bound, not bound.is_upper)
            conditions.append(last <= limit if bound.is_upper else start >= limit)
        return tirx.all(*conditions)

    def _extreme(self, bound: Bound, largest: bool) -> ir.Expr:
        """Give the largest or the smallest limit among the rows of the block."""
        if bound.is_loaded and self._limits is not None:
            found = self._problem.loaded_bounds
            number = next(n for n, x in enumerate(found) if x is bound)
            return tirx.Cast("int64", load(self._limits, [index(2 * number + largest)]))
        query = self._problem.query.var
        return bound.extreme(query, self._rows, self._where, largest, self._config.block_m)
