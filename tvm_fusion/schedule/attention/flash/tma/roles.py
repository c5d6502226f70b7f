"""Roles of FlashAttention's warpgroups on Hopper: the producer of tiles, products of consumers.

What consumers do, and in which order, stands in tma_consumers. The place
in the rings of stages is kept in registers.
"""

from __future__ import annotations

from tvm import ir, tirx

from .....core.tir.expressions import load
from .....core.tir.loops import index, loop, sequence, when
from ....gpu.matrix import wgmma
from ....gpu.memory import mbarrier, tma
from ....gpu.memory.pipeline import Barriers, Ring, RingPosition, initialize
from ....gpu.memory.swizzle import BANKS, VECTOR, PanelRows
from ...problem.pattern import FLOAT
from ..epilogue import FlashMmaEpilogue
from ..problem import FlashProblem
from ..products import FlashMmaProducts
from ..softmax import FlashMmaSoftmax
from .config import HALF_BYTES, FlashTmaConfig
from .operand import TmaRows


class Roles(FlashMmaProducts, FlashMmaSoftmax, FlashMmaEpilogue):
    """A thread: as a producer all that it does, as a consumer its products and barriers.

    Parameters
    ----------
    where : dict of Var to Expr
        Position of the block along the batch axes.
    first : Expr
        The first row of the block.
    warp, lane : Expr
        The warp among those of consumers, and its thread.
    shared : Var
        Shared memory, elements of the half type.
    copies : list of (TmaRows, list of Var)
        Of q, k and v: the rows, and the tensor maps.
    """

    _config: FlashTmaConfig

    def __init__(
        self,
        problem: FlashProblem,
        config: FlashTmaConfig,
        where: dict[ir.Var, ir.Expr],
        first: ir.Expr,
        warp: ir.Expr,
        lane: ir.Expr,
        shared: ir.Var,
        copies: list[tuple[TmaRows, list[ir.Var]]],
    ) -> None:
        self._given, self._copies = shared, copies
        super().__init__(problem, config, where, first, warp, lane)
        self._at, arrivals = RingPosition(config.stages), (1, config.warps)
        self._queries = Barriers(shared, config.barrier_offset, 1, 1)
        self._keys = Ring(shared, self._queries.end, arrivals, self._at)
        self._values = Ring(shared, self._keys.empty.end, arrivals, self._at)
        turns = config.consumers if config.is_ping_pong else 0
        self._order = Barriers(shared, self._values.empty.end, turns, wgmma.WARPS)

    @property
    def buffers(self) -> list[ir.Var]:
        """Registers."""
        return [*self._buffers, self._at.buffer]

    def _declare(self, name: str, size: int, dtype: str = FLOAT, scope: str = "local") -> ir.Var:
        return self._given if scope != "local" else super()._declare(name, size, dtype, scope)

    def find_limits(self) -> list[tirx.Stmt]:
        """Find which keys the block sees, where rows read that from memory; all threads do."""
        return self._find_limits()

    def initialize(self) -> tirx.Stmt:
        """Initialize the barriers; one thread does."""
        stmts = [tma.prefetch(variable) for _, maps in self._copies for variable in maps]
        rings = *self._keys.barriers, *self._values.barriers
        return sequence([*stmts, *initialize([self._queries], rings, [self._order])])

    def produce(self, is_first: ir.Expr) -> tirx.Stmt:
        """Copy all tiles: one thread of a warpgroup."""
        config, tiles, at = self._config, self._tiles, self._at
        q, k, v = self._copies

        def step(n: ir.Expr) -> tirx.Stmt:
            stmts = []
            for copied, rows, ring in (
                (k, config.k_rows(), self._keys),
                (v, config.v_rows(), self._values),
            ):
                to = index(at.stage) * config.block_n
                copies = self._copy(copied, ring.full[at.stage], rows, to, tiles.start(n))
                stmts += [ring.acquire(), *copies]
            return sequence([*stmts, *at.advance(1)])

        stmts = self._copy(q, self._queries[0], config.q_rows, index(0), self._first)
        stmts += [*at.start(), loop("n", tiles.count, step)]
        return when(is_first, sequence(stmts))

    def _copy(
        self,
        copied: tuple[TmaRows, list[ir.Var]],
        bar: ir.TensorLoad,
        rows: PanelRows,
        to: ir.Expr,
        first: ir.Expr,
    ) -> list[tirx.Stmt]:
        """Copy the panels of a tile into the rows of shared memory from some row on."""
        operand, maps = copied
        size = rows.rows * tma.ROW_BYTES * len(operand.panels)
        stmts = [mbarrier.expect_bytes(bar, size)]
        for panel, (part, places) in enumerate(operand.boxes(self._where, first)):
            start = to * (rows.vectors * 8) + (rows.first * 8 + panel * rows.rows * tma.PANEL)
            stmts.append(tma.load(load(self._shared, [start]), maps[part], bar, places))
        return stmts

    def _multiply_queries(self, group: ir.Expr) -> tirx.Stmt:
        """Issue the product of queries and the tile of keys at hand, as one group."""
        config = self._config
        q = wgmma.Operand(True, config.block_m * tma.ROW_BYTES)
        k = wgmma.Operand(True, config.block_n * tma.ROW_BYTES)
        first = index(group) * (wgmma.M * tma.PANEL)
        key = (
            self._stage(index(self._at.stage)) * (config.k_rows().vectors * 8)
            + config.k_rows().first * 8
        )
        of_q, of_k = (tirx.Var(f"descriptor_{name}", "uint64") for name in "qk")
        stmts = [
            tirx.Bind(of_q, q.descriptor(load(self._shared, [first]))),
            tirx.Bind(of_k, k.descriptor(load(self._shared, [key]))),
            wgmma.fence(),
        ]
        for k16 in range(config.depth16 // wgmma.K):
            left = q, of_q + tirx.const(q.step(k16), "uint64")
            right = k, of_k + tirx.const(k.step(k16), "uint64")
            s, is_added = load(self._s, [index(0)]), tirx.const(k16 > 0)
            types = self._half, self._half
            stmts.append(wgmma.multiply(types, config.block_n, s, left, right, is_added))
        return sequence([*stmts, wgmma.commit()])

    def _wait_for_scores(self, pending: int = 0) -> tirx.Stmt:
        """Wait until so many groups of products are pending at most, not those of scores."""
        return wgmma.wait_for(load(self._s, [index(0)]), self._config.block_n // 2, pending)

    def _wait_for_results(self, is_twin: bool = False) -> tirx.Stmt:
        """Wait for the product with values: its fragments are free then."""
        acc, p_frag = load(self._acc, [index(0)]), load(self._p_frag, [index(0)])
        count, words = self._config.column16 // 2, self._config.block_n // 4
        return wgmma.wait_for(acc, count, a_frag=(p_frag, words), is_twin=is_twin)

    def _stage(self, n: ir.Expr) -> ir.Expr:
        """Return the first row of a stage."""
        return n * self._config.block_n

    def _staged(self, row: ir.Expr, column: ir.Expr) -> ir.TensorLoad:
        config = self._config
        if config.is_staged_in_queries:
            lanes = config.staged_lanes
            vector, lane = tirx.floordiv(column, index(lanes)), tirx.floormod(column, index(lanes))
            panel = tirx.floordiv(vector, index(BANKS)) * config.block_m
            # Rotated, not exchanged: TVM 0.27 narrows no index that goes through a call.
            place = tirx.floormod(vector + row, index(BANKS))
            place += (panel + self._g * config.rows_of_warp + row) * BANKS
            return load(self._shared, [place * VECTOR + lane * (config.staged_bytes // HALF_BYTES)])
        begin = self._config.staging_offset // HALF_BYTES
        place = super()._staged(row, column)
        return load(self._shared, [place.indices[0] + begin])
