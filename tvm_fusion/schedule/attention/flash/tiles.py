"""The tiles of keys of a block of FlashAttention: which are visited, and which are seen whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ....core.tir.expressions import load
from ....core.tir.loops import ceildiv, constant, index, sequence, simplified, substitute, unrolled
from ...gpu.threads.warp import butterfly
from ..problem.mask_bounds import Bound
from ..problem.online_softmax import assign
from .config import FlashMmaConfig
from .problem import FlashProblem


class KeyTiles:
    """Tiles of ``block_n`` keys for the rows of one block.

    Parameters
    ----------
    where : Mapping of Var to PrimExpr
        Position of the block along the batch axes.
    first : PrimExpr
        The first row of the block.
    limits : Var or None
        Of each bound that is read from memory by the row, the smallest and the largest limit of the
        block: see :func:`row_limits`.
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
        """Return the first key of the ``n``-th tile that is visited."""
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
        """Return the largest or the smallest limit among the rows of the block."""
        if bound.is_loaded and self._limits is not None:
            found = self._problem.loaded_bounds
            number = next(n for n, x in enumerate(found) if x is bound)
            return tirx.Cast("int64", load(self._limits, [index(2 * number + largest)]))
        query = self._problem.query.var
        return bound.extreme(query, self._rows, self._where, largest, self._config.block_m)


# Limits of visible keys that rows read from memory: the extremes of a block, by each of its warps.
#
# for each bound, lane t of a warp:
#     low, high = keys, -1
#     for rows t, t + 32, .. of the block:  limit = clamp(load(row), -1, keys);  low, high =
#     extremes
#     low, high over the lanes of the warp                              shuffles: all have the same
#
# A thread keeps the limits of its own rows of fragments in registers, too: tiles that not all rows
# see whole test these.
#
# Packed sequences have neighbouring rows of one or few sequences, so that a block visits the keys
# of these alone, whatever the order of the limits is. Each warp reads all rows: they are few, and
# lie in the first cache.
DTYPE = "int32"


def row_limits(
    problem: FlashProblem,
    config: FlashMmaConfig,
    position: Callable[[ir.Expr], dict[ir.Var, ir.Expr]],
    lane: ir.Expr,
    limits: ir.Var,
) -> tirx.Stmt:
    """Find the extremes of limits among the rows of a block; a whole warp executes it together.

    Parameters
    ----------
    position : callable
        Gives the position of a row of the block.
    lane : Expr
        The thread of the warp.
    limits : Var
        Gets the smallest and the largest limit of each bound that is loaded.
    """
    keys, rows, lanes = index(problem.pattern.key.extent), config.block_m, config.lanes

    def of_bound(number: int, bound: Bound) -> list[tirx.Stmt]:
        low, high = (load(limits, [index(2 * number + i)]) for i in range(2))

        def one(i: ir.Expr) -> tirx.Stmt:
            row = tirx.min(i * lanes + lane, index(rows - 1))
            limit = clamped_limit(problem, bound, position(row))
            return sequence(
                [assign(low, tirx.min(low, limit)), assign(high, tirx.max(high, limit))]
            )

        stmts = [assign(low, tirx.Cast(DTYPE, keys)), assign(high, tirx.const(-1, DTYPE))]
        stmts.append(unrolled("row", -(-rows // lanes), one))  # all loads at once
        distance = lanes // 2
        while distance:
            for value, combine in ((low, tirx.min), (high, tirx.max)):
                other = butterfly(value, lane, distance, lanes, lanes)
                stmts.append(assign(value, combine(value, other)))
            distance //= 2
        return stmts

    found = enumerate(problem.loaded_bounds)
    return sequence([stmt for number, bound in found for stmt in of_bound(number, bound)])


def clamped_limit(problem: FlashProblem, bound: Bound, at: Mapping[ir.Var, ir.Expr]) -> ir.Expr:
    """Read the limit of a row, as near as it is to the keys: 32 bits hold it."""
    limit, keys = substitute(bound.limit, at), index(problem.pattern.key.extent)
    return tirx.Cast(DTYPE, tirx.max(tirx.min(limit, keys), index(-1)))
