"""The template of grouped GEMM on GPUs: small products of different operands in one launch.

Products that leave most multiprocessors idle take little longer together than the longest of them
does alone. What one launch takes is estimated against a launch of each. The kernel:

    block in grid, those of product 0, then those of product 1, ..:
      tile of that product: its operands, sizes and epilogue                (mma/kernel)
    the last blocks: points of maps next to the products

Blocks of all products have as many threads and, in clusters of one size, as many ranks of split-K;
shared memory and registers are those of the largest. Which product is the same for all threads of
a block, so that barriers may be under the condition.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.target import Target

from ...._tvm.ir.buffer import scratch
from ....core.contract.template import Claim, Emission, Refusal, Template
from ....core.tir.loops import (
    Body,
    block,
    choose,
    constant,
    coordinates,
    index,
    kernel,
    store_all,
    substitute,
    threads,
    unrolled,
    when,
)
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....program.group import Group
from ....program.program import Program
from ....program.stage import Stage
from ...gpu.launch import PREFETCHED, min_blocks_per_sm
from ...index.estimate import flops, points, traffic
from ..copies.implicit_gemm import with_stored_columns
from ..mma.grouped_choice import grouped_tiles, has_few_sums
from ..mma.kernel import tile_block
from ..mma.model import RATES, memory_clocks
from ..mma.unaligned_tiles import unaligned_clocks, unaligned_operands
from ..problem.grouped_products import concat_proposals, products_of
from ..problem.sum_of_products import SumOfProducts
from ..problem.template import constants_of
from ..tile.config import TileGemmConfig, is_plain
from ..tile.problem import gemm_sizes
from ..tile.read_problem import gemm_problem
from ..wgmma.config import WgmmaConfig
from .space import GpuGemmProblem, clocks
from .tile_forms import GemmForm, aligned_rows_form, is_gathered

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


# What one launch may take of the clocks of a launch of each. The model was fitted to calls inside
# CUDA graphs, and is off by 9 %: twice the error of a ratio is saved at least. On an H200 six
# groups took 0.43 to 0.74 of their products' launches (estimated 0.47 to 0.71), two that are
# refused 0.92 and 1.01 (0.98 and 0.92).
MOST_OF_SEPARATE = 0.75
MOST_PRODUCTS = 8  # of a kernel: nvcc takes about a second for each
MOST_FLOPS = 1 << 32  # of products whose concatenation is proposed


@dataclass(frozen=True, eq=False)
class GpuGroupedGemmDetails:
    """What a claim remembers until its kernel is made."""

    config: GroupedGemmConfig  # the tiles of the products


class GpuGroupedGemm(Template):
    """Small products that need nothing of each other, each with its own operands and epilogue."""

    name = "grouped_gemm"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim GEMMs for tensor cores that leave the device idle if launched one by one."""
        found = products_of(group)
        if isinstance(found, Refusal):
            return found
        if len(found.contractions) > MOST_PRODUCTS:
            sentence = f"A kernel has code for each product; it takes at most {MOST_PRODUCTS}."
            return Refusal("too_many_products", sentence)
        constants = constants_of(group)
        products = [with_stored_columns(x, constants) for x in found.contractions]
        stages = [*(x.stage for x in products), *found.others]
        if any(constant(a.extent) is None for stage in stages for a in stage.axes):
            return Refusal("symbolic_extent", "The number of blocks of a product is symbolic.")
        if not has_few_sums(stages, device):
            return Refusal("large_products", "Each product alone keeps the device busy.")
        problems = [gemm_problem(x, device) for x in products]
        tiled = [p for p in problems if p is not None and not is_gathered(p)]
        each = [_separate_clocks(x, constants, device) for x in products]
        if len(tiled) < len(problems) or None in each:
            sentence = "Tensor cores cannot compute some of the products, or only from copies."
            return Refusal("no_gemm", sentence)
        separate = sum(estimate or 0.0 for estimate in each)
        chosen = grouped_tiles(tiled, device)
        if chosen is None:
            return Refusal(
                "no_common_block", "The products have no tiles with the same number of threads."
            )
        tiles, together = chosen
        if together > MOST_OF_SEPARATE * separate:
            return Refusal(
                "large_products",
                f"One launch of all products is estimated to take {together / separate:.0%} of the "
                f"time of one launch each, and the limit is {MOST_OF_SEPARATE:.0%}.",
            )
        config = GroupedGemmConfig(tiles, found.others)
        dtypes = {tile.problem.narrow_dtype for tile in tiles}
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, found.everything),
            flops=flops(found.everything),
            parallelism=config.blocks,
            shared_bytes=config.shared_bytes,
            registers=config.registers,
            arithmetic=", ".join(
                dict.fromkeys(t.problem.arithmetic for t in tiles if t.problem.arithmetic)
            ),
            matrix_dtype=dtypes.pop() if len(dtypes) == 1 else "",
            details=GpuGroupedGemmDetails(config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel: blocks of one product behind those of another."""
        config = claim.details_as(GpuGroupedGemmDetails).config
        func = grouped_gemm_gpu(claim.group.program, config)
        weights = config.weights
        numbers = [n for n, x in enumerate(func.params) if any(x.same_as(w) for w in weights)]
        return Emission.one(func.with_attr(PREFETCHED, numbers), claim.group)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name concatenations with the products that they alone read."""
        return concat_proposals(graph, MOST_FLOPS)


def _separate_clocks(
    contraction: SumOfProducts, constants: Collection[ir.Var], device: Device
) -> float | None:
    """Estimate the clocks of a launch of one product, no more than it takes.

    ``None`` where its kernel is no tile, or one behind copies to aligned rows.
    """
    problem = GpuGemmProblem(contraction, device)
    tile = problem.tile
    if tile is None:
        return None
    aligned = aligned_rows_form(contraction, tile, constants, device)
    as_it_is = GemmForm(contraction, tile, device)
    if isinstance(aligned, GemmForm) and (aligned.clocks or 0.0) < (as_it_is.clocks or 0.0):
        return None
    estimate, sizes = clocks(tile, device), gemm_sizes(tile.problem)
    if not isinstance(tile, WgmmaConfig):
        estimate += unaligned_clocks(
            tile.tile, sizes, device, unaligned_operands(tile.problem, sizes)
        )
    if problem.skinny is not None:  # maybe as fast as memory
        estimate = min(estimate, RATES.launch + memory_clocks(tile.tile, sizes, device))
    return estimate
