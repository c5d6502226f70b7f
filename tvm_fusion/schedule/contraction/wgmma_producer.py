"""The producer of a Hopper GEMM: fills the stages of shared memory with tiles of A and B.

one thread, for tile, for k_tile:
wait(empty[stage]); expect_bytes(full[stage]); copy A and B        TMA, 128-byte swizzle
where B is computed, all threads of the warpgroup, for tile:
load what their chunks of their first k_tile are computed of       global to registers
for k_tile, or for every other where two warpgroups take turns:
wait(empty[stage]); one thread: the same of A alone
compute the chunks and store them                                (computed_operand)
load for their next k_tile
fence of the asynchronous proxy; one thread of a warp: arrive(full[stage])
"""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import index, loop, sequence, when
from ..gpu import mbarrier, tma
from ..gpu.mbarrier import RingPosition
from .computed_operand import ComputedTile
from .operand_layout import TilePosition
from .tile_gemm_config import TilePlace
from .wgmma_config import WgmmaConfig
from .wgmma_stages import TileStages


class Producer:
    """What the threads of the first warpgroup do.

    Parameters
    ----------
    config : WgmmaConfig
        The product.
    maps : list of list of Var
        Tensor maps of A, and of B.
    stages : TileStages
        The stages.
    ring : RingPosition
        Which one is next.
    thread : Expr
        The thread of the warpgroup.
    number : Expr
        Of the warpgroup, among those that take turns.

    Attributes
    ----------
    buffers : list of Var
        Registers.
    """

    def __init__(
        self,
        config: WgmmaConfig,
        maps: list[list[ir.Var]],
        stages: TileStages,
        ring: RingPosition,
        thread: ir.Expr,
        number: ir.Expr,
    ) -> None:
        self._config, self._maps, self._stages = config, maps, stages
        self._ring, self._thread, self._own = ring, thread, number
        self._computed = ComputedTile(config) if config.computes_b else None
        self.buffers = [] if self._computed is None else self._computed.buffers

    def tile(self, place: TilePlace) -> tirx.Stmt:
        """Fill stages with all k of a tile of C."""
        computed, count = self._computed, self._config.k_tiles
        if computed is None:
            return loop("k_tile", self._config.steps(count), lambda k: self._fill(place, k))

        def begin(k_tile: ir.Expr) -> tirx.Stmt:
            return computed.begin(self._thread, self._position(place, k_tile), self._b(index(0)))

        every = self._config.producers

        def one(turn: ir.Expr) -> tirx.Stmt:
            k_tile = turn * every + self._own
            return self._fill(place, k_tile, when(k_tile + every < count, begin(k_tile + every)))

        return sequence([begin(self._own), loop("k_tile", count // every, one)])

    def _fill(self, place: TilePlace, k_tile: ir.Expr, ahead: tirx.Stmt | None = None) -> tirx.Stmt:
        stages, stage = self._stages, self._ring.stage
        free = mbarrier.wait(stages.empty(stage), 1 - self._ring.parity)
        copies = self._copies(place, k_tile)
        if self._computed is not None and ahead is not None:
            b = self._position(place, k_tile), self._b(stage)
            made = self._computed.finish(self._thread, *b)
            first = when(self._thread.equal(0), sequence(copies))
            copies = [first, made, ahead, stages.fill(self._thread, stage)]
        return sequence([free, *copies, *self._ring.advance(self._config.producers)])

    def _copies(self, place: TilePlace, k_tile: ir.Expr) -> list[tirx.Stmt]:
        """Copy what TMA copies of a stage."""
        config, stages, stage = self._config, self._stages, self._ring.stage
        full, batch = stages.full(stage), config.axes_at(place.batch)
        first = config.first_row(place.m_tile)
        if config.ragged is not None:
            first = config.ragged.copied_first
        firsts = [first], config.first_columns(place.n_tile)
        k = self._number(place, k_tile) * config.block_k
        stmts = [mbarrier.expect_bytes(full, config.copied_bytes)]
        for i, operand in enumerate(config.operands):
            for at, own, where in operand.boxes(batch, firsts[i], k):
                to = stages.operand(i, stage, at)
                stmts.append(tma.load(to, self._maps[i][own], full, where))
        return stmts

    def _number(self, place: TilePlace, k_tile: ir.Expr) -> ir.Expr:
        """Give the number of a tile of K among those of all ranks."""
        split = self._config.split_k > 1
        return place.rank * self._config.k_tiles + k_tile if split else k_tile

    def _position(self, place: TilePlace, k_tile: ir.Expr) -> TilePosition:
        first = place.n_tile * self._config.block_n
        where = self._config.axes_at(place.batch)
        return TilePosition(where, first, self._number(place, k_tile))

    def _b(self, stage: ir.Expr) -> tuple[ir.Var, ir.Expr]:
        """Give the byte of shared memory where B of a stage begins."""
        first = self._stages.operand(1, stage)
        return first.source, index(first.indices[0])
