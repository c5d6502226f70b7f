"""How a tiled product's kernel loads its operands and stores its results, for the models of cost.

operands   TMA boxes and vectors are in the clocks of the kernel's model; elements are counted,
           as often as tiles of the other axis load them again, and operations on them
results    in vectors of 16 bytes, or in so many smaller stores
"""

from __future__ import annotations

from ....core.kernel_work import NO_WORK, KernelWork
from ....ecg.work import at
from ...index.estimate import operations
from ..tile.config import TileGemmConfig, is_plain
from ..tile.operand_chunks import OperandChunks
from ..tile.problem import assumed_rows, gemm_sizes
from ..tile.result_vectors import WIDTHS, result_vectors
from .tile_forms import GemmForm


def work_of(form: GemmForm) -> KernelWork:
    """Count what a form's kernel does beside what its clocks tell of."""
    tile = form.tile
    if tile is None:
        return NO_WORK
    loads = computed = 0.0
    for is_a, is_staged in ((True, tile.problem.staged_a), (False, tile.problem.staged_b)):
        if not is_staged:
            continue
        chunks = OperandChunks(tile.problem, is_a)
        elements = _loaded(tile, is_a)
        if chunks.is_gathered:
            loads += elements
        if not is_plain(chunks.expr):
            computed += elements * max(1, operations(chunks.expr))
    return KernelWork(form.clocks_of_vectors or 0.0, loads, _stores(tile), computed)


def _loaded(tile: TileGemmConfig, is_a: bool) -> float:
    """Count the elements of an operand that all blocks load."""
    rows = tile.block_m if is_a else tile.block_n
    return float(at(tile.blocks)) * rows * tile.block_k * tile.k_tiles


def _stores(tile: TileGemmConfig) -> float:
    """Count the stores of less than a vector of 16 bytes."""
    width = result_vectors(tile.problem).width
    if width >= WIDTHS[0]:
        return 0.0
    sizes = gemm_sizes(tile.problem, assumed_rows(tile.problem))
    return sizes.batch * sizes.m * sizes.n * len(tile.contraction.results) / width
