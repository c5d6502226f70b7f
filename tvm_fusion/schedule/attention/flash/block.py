"""A thread of FlashAttention on tensor cores: its buffers, and its rows and columns of fragments.

Scores and results lie in cells of 16 rows: of each a thread holds some rows, and of these a run of
neighbouring columns. Statistics of a row are combined over the threads that share it.

    mma.sync, wgmma    C of mma.m16n8k16: two rows, of every eight columns two
    MFMA, WMMA         one row, of every 32 or 16 columns eight       (wave_block)
"""

from collections.abc import Callable, Mapping

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.expressions import load
from ....core.tir.loops import (
    ceildiv,
    constant,
    coordinates,
    index,
    sequence,
    simplified,
    substitute,
    unrolled,
)
from ...gpu.matrix.ldmatrix import ELEMENTS
from ...gpu.memory.swizzle import VECTOR
from ...gpu.threads.warp import LANES, butterfly
from ...instructions.layout import Layout
from ...instructions.table import newest
from ..problem.mask_bounds import Bound
from ..problem.online_softmax import SoftmaxState, assign, float_, initialize
from ..problem.pattern import FLOAT
from .config import FlashMmaConfig
from .loads import TileLoads
from .problem import FlashProblem


class KeyTiles:
    """Tiles of ``block_n`` keys for the rows of one block.

    Parameters
    ----------
    where
        Position of the block along the batch axes.
    first
        The first row of the block.
    limits
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
    position
        Gives the position of a row of the block.
    lane
        The thread of the warp.
    limits
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


class FlashBlock:
    """One thread, with what it holds of scores and results.

    Parameters
    ----------
    cell
        Where scores of 16 rows, and results, lie in the registers of a warp.
    where
        Position of the block along the batch axes.
    first
        The first row of the block.
    g, t
        The warp and its thread.
    """

    _own_limits: ir.Var | None = None  # of visible keys, that the thread's rows read from memory

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashMmaConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        g: ir.Expr,
        t: ir.Expr,
        cell: Layout,
    ) -> None:
        self._problem, self._config, self._cell = problem, config, cell
        self._where, self._first, self._g, self._t = where, first, g, t
        self._half = problem.half
        self._buffers: list[ir.Var] = []
        loaded = len(problem.loaded_bounds)
        self._limits = self._declare("limits", 2 * loaded, "int32") if loaded else None
        self._tiles = KeyTiles(problem, config, where, first, self._limits)
        self._key_cells, self._column_cells = (
            x // cell.shape[1] for x in (config.block_n, config.own_columns)
        )
        self._run, self._cell_rows = cell.run, cell.per_lane // cell.run  # of a thread
        self._slots = config.m16 * self._cell_rows  # rows of the thread
        self._acc = self._declare("acc", config.m16 * self._column_cells * cell.per_lane)
        self._s = self._declare("s", config.m16 * self._key_cells * cell.per_lane)
        self._m_i, self._l_i = self._declare("m_i", self._slots), self._declare("l_i", self._slots)
        self._m_new = self._declare("m_new", self._slots)
        self._alpha = self._declare("alpha", self._slots)

    def _declare(self, name: str, size: int, dtype: str = FLOAT, scope: str = "local") -> ir.Var:
        buffer = scratch([index(size)], dtype, name, scope)
        self._buffers.append(buffer)
        return buffer

    def _position(self, row: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of a row; rows behind the last one compute it again, unstored."""
        last = index(self._problem.query.extent) - 1
        return {**self._where, self._problem.query.var: tirx.min(row, last)}

    def _of_block(self, row: ir.Expr) -> dict[ir.Var, ir.Expr]:
        """Return the position of a row of the block."""
        return self._position(self._first + row)

    def _find_limits(self) -> list[tirx.Stmt]:
        """Find the extremes of limits that rows read from memory; whole warps do."""
        if self._limits is None:
            return []
        return [row_limits(self._problem, self._config, self._of_block, self._t, self._limits)]

    def _keep_limits(self) -> list[tirx.Stmt]:
        """Read the limits of visible keys of the thread's rows once."""
        problem, count = self._problem, self._slots
        if not problem.loaded_bounds or not problem.score.hides_wholly:
            return []
        self._own_limits = self._declare("own_limits", count * len(problem.loaded_bounds), "int32")

        def of_slot(slot: ir.Expr) -> tirx.Stmt:
            at = self._row(slot)
            return sequence(
                [
                    assign(
                        load(self._own_limits, [number * count + slot]),
                        clamped_limit(problem, bound, at),
                    )
                    for number, bound in enumerate(problem.loaded_bounds)
                ]
            )

        return [unrolled("slot", count, of_slot)]

    def _own_row(self, slot: ir.Expr) -> ir.Expr:
        """Return the number in its warp of a row of the thread."""
        down = self._cell.shape[0] // self._cell_rows  # from a thread's first row to the next
        return slot * down + self._cell.of_lane(self._t)[0]

    def _row(self, slot: ir.Expr) -> dict[ir.Var, ir.Expr]:
        row = self._first + self._g * self._config.rows_of_warp + self._own_row(slot)
        return self._position(row)

    def _own_column(self, cell: ir.Expr, lane: ir.Expr) -> ir.Expr:
        """Return the column of an accumulator."""
        return cell * self._cell.shape[1] + self._cell.of_lane(self._t)[1] + lane

    def _place_of(self, i: ir.Expr, cells: int) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Return row among the thread's, cell and column of its run of an accumulator."""
        extents = [self._config.m16, cells, self._cell_rows, self._run]
        m, cell, row, lane = coordinates(i, extents)
        return m * self._cell_rows + row, cell, lane

    def _state(self, slot: ir.Expr) -> SoftmaxState:
        return SoftmaxState(*(load(x, [slot]) for x in (self._m_i, self._l_i, self._alpha)))

    def _initialize(self) -> tirx.Stmt:
        def statistics(slot: ir.Expr) -> tirx.Stmt:
            return sequence(initialize(load(self._m_i, [slot]), load(self._l_i, [slot])))

        return sequence([self._zero(self._acc), unrolled("slot", self._slots, statistics)])

    def _zero(self, buffer: ir.Var) -> tirx.Stmt:
        count = int(buffer.ty.shape[0])
        return unrolled("i", count, lambda i: assign(load(buffer, [i]), float_(0)))

    def _all_reduce(self, values: ir.Var, combine) -> list[tirx.Stmt]:
        """Reduce over the threads of a row, in lockstep."""
        stmts = []
        lanes = self._config.lanes
        for distance in self._cell.row_distances:

            def one(slot: ir.Expr, distance: int = distance) -> tirx.Stmt:
                value = load(values, [slot])
                other = butterfly(value, self._t, distance, lanes, lanes)
                return assign(value, combine(value, other))

            stmts.append(unrolled("slot", self._slots, one))
        return stmts


class FlashMmaBlock(FlashBlock):
    """One thread of a warp with ``mma.sync``, or of a warpgroup."""

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashMmaConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        g: ir.Expr,
        t: ir.Expr,
    ) -> None:
        self._mma = newest("mma.sync", problem.half, problem.half)
        super().__init__(problem, config, where, first, g, t, self._mma.c)
        m16 = config.m16
        # CUDA wants one type for all declarations of a name in a module.
        size = config.shared_bytes // 2
        self._shared = self._declare(f"smem_{self._half}", size, self._half, "shared.dyn")
        q_size = m16 * ELEMENTS * config.q_fragments
        self._q_frag = self._declare("q_frag", q_size, self._half)
        self._b_frag = self._declare("b_frag", ELEMENTS, self._half)
        self._p_frag = self._declare("p_frag", m16 * self._key_cells * 4, self._half)
        vector = self._declare("vector", VECTOR, self._half)
        # A vector has registers of its own: TVM's generator of CUDA takes two vectors that are
        # loaded from one place for the same, whatever was stored there by address in between.
        vectors = -(-problem.v.extent // config.staged_lanes) * config.rows_of_warp
        size = -(-vectors // LANES) * config.staged_lanes
        self._result = self._declare("o", size, problem.staged)
        held = None
        if not config.is_async:  # one tile is on its way at a time
            rows_of = max(config.block_m, config.block_n)
            vectors = rows_of * max(config.depth16, config.column16) // VECTOR
            size = -(-vectors // config.threads) * VECTOR
            held = self._declare("held", size, self._half)
        rows = (config.q_rows, config.k_rows(), config.v_rows())
        self._q_loads, self._k_loads, self._v_loads = (
            TileLoads(x, x.extent16, r, self._shared, vector, config.threads, g * LANES + t, held)
            for x, r in zip((problem.q, problem.k, problem.v), rows, strict=True)
        )
