"""Accumulators of mma.sync in a block's warps: what the epilogue of a tiled GEMM stores."""

from __future__ import annotations

from tvm import ir, tirx

from ...core.loops import index, local
from ..gpu.shared_tiles import block_barrier
from ..gpu.warp import warp_of
from .tile_gemm_config import TileGemmConfig
from .tile_shape import M16


class TileAccumulators:
    """The accumulators of a thread, and where its warp is in the block's tile.

    Parameters
    ----------
    config : TileGemmConfig
        The product.

    Attributes
    ----------
    acc : Var
        Accumulators of a thread, ``[slabs, n8, 4]``; a slab has 16 rows.
    slabs, n8 : int
        Their extents.
    warps_m, warps_n, warps_k : int
        Warps along M, along N, and those that have partial sums of the same elements.
    threads : int
        Threads that have accumulators.
    buffers : list of Var
        Registers.
    """

    def __init__(self, config: TileGemmConfig) -> None:
        self._config = config
        self.slabs, self.n8 = config.warp_m // M16, config.warp_n // config.mma.n
        self.warps_m, self.warps_n, self.warps_k = config.warps_m, config.warps_n, config.warps_k
        self.threads = config.threads
        self.acc = local("acc", [config.accumulators], config.contraction.dtype)
        self.buffers: list[ir.Var] = [self.acc]

    def has_sums(self, _thread: ir.Expr) -> ir.Expr:
        """Whether a thread has accumulators: all have."""
        return tirx.const(True)

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell the slice of K, the row and the column of a thread's warp among the warps."""
        warp = warp_of(thread)
        tile = self.warps_m * self.warps_n
        inside = tirx.floormod(warp, index(tile))
        return (
            tirx.floordiv(warp, index(tile)),
            tirx.floordiv(inside, index(self.warps_n)),
            tirx.floormod(inside, index(self.warps_n)),
        )

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Give the first row, in the block's tile, of a slab of the warps in a row."""
        return warp_m * self._config.warp_m + slab * M16

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads that have accumulators."""
        return block_barrier()
