"""GEMM with symbolic M on a GPU: the host launches a skinny GEMM where rows are few.

    if M <= 1:                     skinny GEMM of one row
    elif M <= MAX_ACCUMULATORS:    skinny GEMM of as many rows, the rest masked
    else:                          tiled GEMM
of half types on tensor cores:
    elif M < LEAST_ROWS:           skinny GEMM of as many rows
    elif M <= FEW_ROWS:            tiled GEMM of small tiles
    elif M <= SOME_ROWS:           wgmma, of the tile and the split-K of as many rows
    else:                          tiled GEMM

All are one PrimFunc, of which each way is one launch.
"""

from collections.abc import Iterator
from dataclasses import replace

from tvm import ir, tirx

from ....core.tir.expressions import variables
from ....core.tir.loops import block, constant, index, one_of, substitute
from ....device import Device
from ....program.program import Program
from ....program.stage import Axis
from ..mma.default import tile_gemm_config
from ..mma.kernel import tile_gemm_gpu
from ..problem.sum_of_products import Result, SumOfProducts
from ..skinny.gemv.default import MAX_ACCUMULATORS
from ..skinny.kernel import skinny_gemm_gpu
from ..skinny.mma.config import skinny_gemm_config
from ..tile.config import TileGemmConfig
from ..tile.read_problem import LEAST_ROWS
from ..tile.results.concat_parts import ConcatParts
from ..wgmma.config import WgmmaConfig
from ..wgmma.kernel import wgmma_gemm_gpu
from ..wgmma.space import wgmma_config

FEW_ROWS = 64  # memory is the limit up to here
# Tiles for many rows leave most multiprocessors idle. Up to 256 rows of 4096x4096 with GELU a tile
# of 128x64 was no better (H200): 256 rows 16.0 us and 24.3, but 129 33.2 and 30.0, 192 26.7 and
# 23.2; each row of a tile beyond M seems to cost 0.13 us, with 65 to 127 rows, too.
SOME_ROWS = 128
_WGMMA = ("tile", "consumers", "is_ping_pong", "blocks_per_sm")  # what a tuner varies


def dispatch_on_m(
    program: Program,
    contraction: SumOfProducts,
    general: tirx.PrimFunc,
    device: Device,
    tile: TileGemmConfig | None = None,
    concat_parts: ConcatParts | None = None,
) -> tirx.PrimFunc:
    """Put skinny GEMMs in front of a kernel for any number of rows.

    Parameters
    ----------
    contraction
        The same, as one product.
    general
        A kernel of the program.
    tile
        Of the general kernel, if it is one for tensor cores.
    concat_parts
        Other parts of a concatenation, which all kernels store.
    """
    choices: list[tuple[ir.Expr, tirx.Stmt]] = []
    rest = tirx.const(True)
    most = MAX_ACCUMULATORS // len(contraction.totals)
    if tile is not None:
        most = min(most, LEAST_ROWS - 1)
    for condition, static in _static_m(contraction, most):
        config = skinny_gemm_config(static, device)
        if config is not None:
            made = skinny_gemm_gpu(program, config, concat_parts)
            choices.append((tirx.And(rest, condition), made.body))
            rest = tirx.Not(condition)
    is_symbolic = tile is not None and constant(tile.problem.m) is None
    small = tile_gemm_config(contraction, device, FEW_ROWS) if is_symbolic else None
    if tile is not None and small is not None and small.tile != tile.tile:
        few = tile.problem.m <= FEW_ROWS
        choices.append((tirx.And(rest, few), tile_gemm_gpu(program, small, concat_parts).body))
        rest = tirx.And(rest, tirx.Not(few))
    some = _of_some_rows(contraction, tile, device) if is_symbolic else None
    if tile is not None and some is not None:
        has_some = tile.problem.m <= SOME_ROWS
        choices.append((tirx.And(rest, has_some), wgmma_gemm_gpu(program, some, concat_parts).body))
        rest = tirx.And(rest, tirx.Not(has_some))
    if not choices:
        return general
    return general.with_body(block("root", one_of([*choices, (rest, general.body)])))


def _of_some_rows(
    contraction: SumOfProducts, tile: TileGemmConfig | None, device: Device
) -> WgmmaConfig | None:
    """Choose the tile of a wgmma kernel for so few rows; ``None`` if it is the same, or none."""
    axis = _symbolic_m(contraction)
    if axis is None or type(tile) is not WgmmaConfig:
        return None
    if [a.var for a in tile.problem.m_axes] != [axis.var]:
        return None
    axes = tuple(Axis(a.var, index(SOME_ROWS)) if a is axis else a for a in contraction.stage.axes)
    static = replace(contraction, stage=replace(contraction.stage, axes=axes))
    chosen = wgmma_config(static, device)
    if chosen is None:
        return None
    sizes = {name: getattr(chosen, name) for name in _WGMMA}
    if all(getattr(tile, name) == size for name, size in sizes.items()):
        return None
    a, b = tile.operands
    operands = a.of_rows(chosen.tile.block_m), b.of_rows(chosen.tile.block_n)
    return replace(tile, **sizes, operand_a=operands[0], operand_b=operands[1])


def _static_m(contraction: SumOfProducts, most: int) -> Iterator[tuple[ir.Expr, SumOfProducts]]:
    """List, by condition, a product of symbolic M with one row, and with the most of a skinny GEMM.

    Rows beyond M are read like the last one, and not stored.
    """
    axis = _symbolic_m(contraction)
    if axis is None:
        return
    for count in (1, most):
        last = axis.extent - 1
        nearest = {axis.var: tirx.min(axis.var, last)}
        axes = tuple(Axis(a.var, index(count)) if a is axis else a for a in contraction.stage.axes)
        results = contraction.results
        if count > 1:
            results = tuple(_where(r, axis.var <= last) for r in results)
        static = replace(
            contraction,
            stage=replace(contraction.stage, axes=axes),
            left=substitute(contraction.left, nearest),
            right=substitute(contraction.right, nearest),
            results=results,
        )
        yield axis.extent <= count, static


def _where(result: Result, condition: ir.Expr) -> Result:
    both = condition if result.condition is None else tirx.And(condition, result.condition)
    return replace(result, condition=both)


def _symbolic_m(contraction: SumOfProducts) -> Axis | None:
    """Find the only axis of symbolic extent, if it is one of M; the last one is of N."""
    stage = contraction.stage
    symbolic = [a for a in (*stage.axes, *stage.reduce) if constant(a.extent) is None]
    if len(symbolic) != 1 or symbolic[0] not in stage.axes[:-1]:
        return None
    used = [symbolic[0].var in variables(f) for f in (contraction.left, contraction.right)]
    return symbolic[0] if sum(used) == 1 else None
