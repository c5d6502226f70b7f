"""GEMM on Hopper: TMA copies, wgmma, warp-specialized roles, a persistent grid or split-K.

block in grid of at most as many as run at once:
  barriers full[stage], empty[stage]                                shared
  of ragged rows, a table of groups and their tiles                 (ragged_tiles)
  warpgroup 0, the producer:     copies tiles, its idle warps other parts of a concatenation
    (or two that compute B)
  the other warpgroups:          multiply, and store results               (roles)

split-K: block (tile of C, rank) of clusters of split_k blocks, each with a part of K:
  the same roles, up to the sums
  epilogue: acc of all ranks through shared memory to results  (tile/shared_epilogue)
"""

from tvm import ir, tirx

from ....core.tir.loops import block, index, kernel, sequence, threads
from ....program.program import Program
from ...gpu.launch import min_blocks_per_sm
from ...gpu.matrix import wgmma
from ...gpu.matrix.warp_specialized import warp_specialized
from ...gpu.memory import tma
from ...gpu.memory.shared_tiles import block_barrier
from ...gpu.threads.warp import warp_of
from ..tile.results.concat_parts import ConcatParts
from ..tile.results.shared_epilogue import TileEpilogue
from ..tile.shape import M16
from .config import WgmmaConfig
from .roles import IDLE_THREADS, Roles


def wgmma_gemm_gpu(
    program: Program, config: WgmmaConfig, concat_parts: ConcatParts | None = None
) -> tirx.PrimFunc:
    """Make the kernel, whose idle warps may store other parts of a concatenation."""
    maps: list[list[ir.Var]] = []
    encode: list[tirx.Stmt] = []
    for name, operand in zip(("map_a", "map_b"), config.operands, strict=True):
        encoded = [tensor_map.encode(name) for tensor_map in operand.maps]
        maps.append([variable for variable, _ in encoded])
        encode += [stmt for _, stmts in encoded for stmt in stmts]
    made = threads(
        "blockIdx.x",
        config.blocks,
        lambda number: min_blocks_per_sm(
            _block(config, maps, number, concat_parts), config.blocks_per_sm
        ),
    )
    return kernel(program, made, encode)


def _block(
    config: WgmmaConfig, maps: list[list[ir.Var]], number: ir.Expr, concat_parts: ConcatParts | None
) -> tirx.Stmt:
    shared = tma.shared_tiles(config.shared_bytes, "uint8", "stages")

    def of_thread(thread: ir.Expr) -> tirx.Stmt:
        roles = Roles(config, maps, number, thread, shared)
        workers, worker = IDLE_THREADS, thread - (wgmma.THREADS - IDLE_THREADS)
        parts = None
        if concat_parts is not None:
            parts = concat_parts.stmt(number * workers + worker, config.blocks * workers)
        stmts = warp_specialized(
            thread,
            roles.initialize(),
            lambda group: roles.produce(group, parts),
            roles.consume,
            config.producers,
            config.moved_registers if config.moves_registers else None,
            around=(roles.prepare(), [roles.count_tiles()]),
        )
        if config.tile.split_k > 1:
            place = config.grid.tile_of(number)
            stmts.append(TileEpilogue(config, place, _Sums(config, roles.acc), shared).stmt(thread))
        return block("wgmma_gemm", sequence(stmts), roles.buffers)

    made = threads("threadIdx.x", config.threads, of_thread)
    if config.tile.split_k > 1:  # a block's rank is its number modulo the cluster's size
        tile = made
        made = threads("clusterCtaIdx.x", config.tile.split_k, lambda _: tile)
    return block("grid", made, [shared])


class _Sums:
    """The accumulators of consumers, as the epilogue of tiled GEMMs wants them.

    All threads store results; those of the producer have no sums.
    """

    warps_n = warps_k = 1

    def __init__(self, config: WgmmaConfig, acc: ir.Var) -> None:
        self.acc, self.slabs, self.n8 = acc, config.slabs, config.n8
        self.warps_m, self.threads = config.tile.warps_m, config.threads

    def has_sums(self, thread: ir.Expr) -> ir.Expr:
        """Whether a thread is a consumer's."""
        return thread >= wgmma.THREADS

    def warp_of(self, thread: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Tell the slice of K, and the row and the column of a thread's warp."""
        return index(0), warp_of(thread - wgmma.THREADS), index(0)

    def slab_row(self, slab: ir.Expr | int, warp_m: ir.Expr) -> ir.Expr:
        """Return the first row of a warp's slab; slabs of a consumer are contiguous."""
        consumer = tirx.floordiv(warp_m, index(wgmma.WARPS))
        warp = tirx.floormod(warp_m, index(wgmma.WARPS))
        return (consumer * self.slabs + slab) * wgmma.M + warp * M16

    def barrier(self) -> tirx.Stmt:
        """Wait for all threads of the block."""
        return block_barrier()
