"""How a tiled product's kernel loads its operands and stores its results, for the models of cost.

operands   TMA boxes and vectors are in the clocks of the kernel's model; elements are counted,
           as often as tiles of the other axis load them again, and operations on them
results    in vectors of 16 bytes, or in so many smaller stores
"""

from __future__ import annotations

from tvm import ir

from ....core.expressions import loads
from ....core.kernel_work import NO_WORK, KernelWork
from ....ecg.work import at
from ...index.estimate import operations
from ..mma.model import residency
from ..tile.config import TileGemmConfig, is_plain
from ..tile.operand_chunks import OperandChunks
from ..tile.problem import Sizes, assumed_rows, gemm_sizes
from ..tile.result_vectors import WIDTHS, result_vectors
from ..wgmma.config import WgmmaConfig, WgmmaRowsConfig
from .tile_forms import GemmForm

#: How many loads one counts as whose place another one gives: on an H200, rows of a shifted window
#: that are taken by their numbers made products of 4 to 5 us take 4.4, 10.5 and 63.
DEPENDENT = 4


def work_of(form: GemmForm) -> KernelWork:
    """Count what a form's kernel does beside what its clocks tell of."""
    tile = form.tile
    if tile is None:
        return NO_WORK
    single = computed = 0.0
    for is_a, is_staged in ((True, tile.problem.staged_a), (False, tile.problem.staged_b)):
        if not is_staged or (is_a and isinstance(tile, WgmmaRowsConfig)):
            continue  # boxes of rows leave out what is computed: zeros around an image
        chunks = OperandChunks(tile.problem, is_a)
        elements = _loaded(tile, is_a)
        if chunks.is_gathered:
            single += elements * (DEPENDENT if _is_dependent(chunks.expr) else 1)
        if not is_plain(chunks.expr):
            computed += elements * max(1, operations(chunks.expr))
    _, waves = residency(tile.tile, _sizes(tile), form.device)
    of_thread = waves * single / (at(tile.blocks) * tile.threads)
    return KernelWork(form.clocks_of_vectors or 0.0, single, of_thread, _stores(tile), computed)


def _loaded(tile: TileGemmConfig, is_a: bool) -> float:
    """Count the elements of an operand that all blocks load."""
    rows = tile.tile.block_m if is_a else tile.tile.block_n
    return float(at(tile.blocks)) * rows * tile.tile.block_k * tile.grid.k_tiles


def _stores(tile: TileGemmConfig) -> float:
    """Count the stores of less than a vector of 16 bytes.

    Parts of a column split, such as halves of a rotary embedding, meet in registers of mma.sync:
    512x2048x3072 with heads of 64 took 54.6 us on an H200, by wgmma with heads of 128 15.
    """
    width = result_vectors(tile.problem).width
    if tile.problem.contraction.column_split is not None and not isinstance(tile, WgmmaConfig):
        width = 1
    if width >= WIDTHS[0]:
        return 0.0
    sizes, results = _sizes(tile), tile.problem.contraction.results
    whole = sum(result.condition is None for result in results)  # others are parts of one
    stored = sizes.batch * sizes.m * sizes.n / tile.problem.contraction.pooled
    return stored * max(1, whole) / width


def _sizes(tile: TileGemmConfig) -> Sizes:
    return gemm_sizes(tile.problem, assumed_rows(tile.problem))


def _is_dependent(operand: ir.Expr) -> bool:
    """Whether the place of a load is loaded before."""
    return any(loads(i) for x in loads(operand) for i in x.indices)
