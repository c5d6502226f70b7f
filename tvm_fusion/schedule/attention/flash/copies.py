"""Copies of queries, keys and values to shared memory by all threads of a block."""

from tvm import ir, tirx

from ....core.tir.loops import index, simplified, when
from .block import FlashBlock
from .loads import TileLoads


class FlashCopies(FlashBlock):
    """One thread, with its part of the copies."""

    # Of the operands.
    _q_loads: TileLoads
    _k_loads: TileLoads
    _v_loads: TileLoads

    def _issue_queries(self) -> tirx.Stmt:
        return self._q_loads.issue(self._config.block_m, index(0), self._of_block, None)

    def _issue_keys(self, n: ir.Expr) -> tirx.Stmt:
        return self._issue(self._k_loads, n)

    def _issue_values(self, n: ir.Expr) -> tirx.Stmt:
        return self._issue(self._v_loads, n)

    def _store_keys(self, n: ir.Expr) -> tirx.Stmt:
        return self._store(self._k_loads, n)

    def _store(self, loads: TileLoads, n: ir.Expr) -> tirx.Stmt:
        """Store the rows of a tile that are held in registers."""
        return when(n < self._tiles.count, loads.store(self._config.block_n, index(0)))

    def _issue(self, loads, n: ir.Expr) -> tirx.Stmt:
        """Load the rows of a tile into its stage, if there is such a tile."""
        config, tiles = self._config, self._tiles
        start = tiles.start(n)

        def place(row: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return {**self._where, self._problem.pattern.key.var: tiles.clamped(start + row)}

        def is_row(row: ir.Expr) -> ir.Expr:
            return start + row < tiles.keys

        stage = tirx.floormod(n, index(config.stages)) * config.block_n
        stmt = loads.issue(
            config.block_n, simplified(stage), place, None if tiles.is_even else is_row
        )
        return when(n < tiles.count, stmt)
