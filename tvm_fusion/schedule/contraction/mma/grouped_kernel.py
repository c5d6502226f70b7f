"""Grouped GEMM on tensor cores of a GPU: products of different operands in one launch.

    block in grid, those of product 0, then those of product 1, ..:
      tile of that product: its operands, sizes and epilogue                (kernel)
    the last blocks: points of maps next to the products

Blocks of all products have as many threads and, in clusters of one size, as many ranks of split-K;
shared memory and registers are those of the largest. Which product is the same for all threads of
a block, so that barriers may be under the condition.
"""

from dataclasses import dataclass

from tvm import ir, tirx

from ...._tvm.ir.buffer import scratch
from ....core.tir.loops import (
    Body,
    block,
    choose,
    coordinates,
    index,
    kernel,
    store_all,
    substitute,
    threads,
    unrolled,
    when,
)
from ....program.program import Program
from ....program.stage import Stage
from ...gpu.launch import min_blocks_per_sm
from ...index.estimate import points
from ..tile.config import TileGemmConfig, is_plain
from .kernel import tile_block

EACH = 4  # points of a map, of each thread


@dataclass(frozen=True, eq=False)
class GroupedGemmConfig:
    """Configuration of a grouped GEMM."""

    # The products in tiles, static ones, of as many threads and of one ``split_k``.
    tiles: tuple[TileGemmConfig, ...]
    maps: tuple[Stage, ...] = ()  # maps that read none of the sums

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tiles[0].threads

    @property
    def split_k(self) -> int:
        """Blocks of a cluster."""
        return self.tiles[0].tile.split_k

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        counts = [int(tile.blocks) for tile in self.tiles]
        return sum(counts) + sum(map(self.map_blocks, self.maps))

    def map_blocks(self, stage: Stage) -> int:
        """Count the blocks of a map: whole clusters."""
        cluster = EACH * self.threads * self.split_k
        return -(-points(stage) // cluster) * self.split_k

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return max(tile.shared_bytes for tile in self.tiles)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return max(tile.registers for tile in self.tiles)

    @property
    def weights(self) -> list[ir.Var]:
        """The matrices B that are loaded as they are."""
        operands = [tile.problem.b for tile in self.tiles]
        return [b.source for b in operands if is_plain(b)]


def grouped_gemm_gpu(program: Program, config: GroupedGemmConfig) -> tirx.PrimFunc:
    """Make the kernel of several products, and of maps next to them."""
    scope = config.tiles[0].problem.moves.scope
    shared = scratch([index(config.shared_bytes // 4)], "float32", "tiles", scope=scope)

    def body(number: ir.Expr) -> tirx.Stmt:
        def of_thread(thread: ir.Expr) -> tirx.Stmt:
            def of_tile(tile: TileGemmConfig) -> tuple[ir.Expr, Body]:
                return index(tile.blocks), lambda own: tile_block(tile, own, thread, shared)

            def of_map(stage: Stage) -> tuple[ir.Expr, Body]:
                count = index(config.map_blocks(stage))
                return count, lambda own: _points(stage, own, thread, config.threads)

            pieces = [*map(of_tile, config.tiles), *map(of_map, config.maps)]
            return block("grouped_gemm", choose(number, pieces), [shared])

        made = threads("threadIdx.x", config.threads, of_thread)
        if config.split_k > 1:  # a block's rank is its number modulo the cluster's size
            blocks = made
            made = threads("clusterCtaIdx.x", config.split_k, lambda _: blocks)
        return min_blocks_per_sm(made, 1)

    return kernel(program, threads("blockIdx.x", config.blocks, body))


def _points(stage: Stage, number: ir.Expr, thread: ir.Expr, count: int) -> tirx.Stmt:
    """Compute some points of a map, adjacent ones in adjacent threads."""
    extents = [a.extent for a in stage.axes]

    def one(i: ir.Expr) -> tirx.Stmt:
        flat = (number * EACH + i) * count + thread
        place = {a.var: p for a, p in zip(stage.axes, coordinates(flat, extents), strict=True)}
        where = [substitute(i, place) for i in stage.indices[0]]
        stored = store_all(stage.targets, where, [substitute(v, place) for v in stage.values])
        return when(flat < points(stage), stored)

    return unrolled("point", EACH, one)
