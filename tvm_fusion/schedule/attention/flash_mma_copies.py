"""Copies of FlashAttention on tensor cores: queries once, tiles of keys and values into a ring."""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import index, simplified, when
from .flash_loads import TileLoads
from .flash_mma_block import FlashMmaBlock


class FlashMmaCopies(FlashMmaBlock):
    """One thread, and the vectors that it copies to shared memory."""

    def _issue_queries(self) -> tirx.Stmt:
        def place(row: ir.Expr) -> dict[ir.Var, ir.Expr]:
            return self._position(self._first + row)

        return self._q_loads.issue(self._config.block_m, index(0), place, None)

    def _issue_keys(self, n: ir.Expr) -> tirx.Stmt:
        return self._issue(self._k_loads, n)

    def _issue_values(self, n: ir.Expr) -> tirx.Stmt:
        return self._issue(self._v_loads, n)

    def _issue(self, loads: TileLoads, n: ir.Expr) -> tirx.Stmt:
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
