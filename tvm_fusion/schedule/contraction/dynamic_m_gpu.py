"""GEMM with symbolic M on a GPU: the host launches a skinny GEMM where rows are few.

    if M <= 1:                     skinny GEMM of one row
    elif M <= MAX_ACCUMULATORS:    skinny GEMM of as many rows, the rest masked
    else:                          tiled GEMM
of half types on tensor cores:
    elif M < LEAST_ROWS:           skinny GEMM of as many rows
    elif M <= FEW_ROWS:            tiled GEMM of small tiles
    else:                          tiled GEMM

All are one PrimFunc, of which each way is one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm import ir, tirx

from ...core.expressions import variables
from ...core.loops import block, constant, index, one_of, substitute
from ...device import Device
from ...program.program import Program
from ...program.stage import Axis
from .concat_parts_gpu import ConcatParts
from .gemv_choice import MAX_ACCUMULATORS
from .operands import Result, SumOfProducts
from .skinny_gemm_gpu import skinny_gemm_gpu
from .skinny_mma_config import skinny_gemm_config
from .tile_gemm_choice import tile_gemm_config
from .tile_gemm_config import TileGemmConfig
from .tile_gemm_gpu import tile_gemm_gpu
from .tile_gemm_problem import LEAST_ROWS
from .tile_shape import TileShape

FEW_ROWS = 64  # memory is the limit up to here


def dispatch_on_m(
    program: Program,
    contraction: SumOfProducts,
    general: tirx.PrimFunc,
    device: Device,
    tile: TileGemmConfig | None = None,
    beside: ConcatParts | None = None,
) -> tirx.PrimFunc:
    """Put skinny GEMMs in front of a kernel for any number of rows.

    Parameters
    ----------
    program : Program
        What all compute.
    contraction : SumOfProducts
        The same, as one product.
    general : PrimFunc
        A kernel of the program.
    device : Device
        A GPU.
    tile : TileGemmConfig, optional
        Of the general kernel, if it is one for tensor cores.
    beside : ConcatParts, optional
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
            made = skinny_gemm_gpu(program, config, beside)
            choices.append((tirx.And(rest, condition), made.body))
            rest = tirx.Not(condition)
    is_symbolic = tile is not None and constant(tile.m) is None
    small = tile_gemm_config(contraction, device, FEW_ROWS) if is_symbolic else None
    if tile is not None and small is not None and TileShape.of(small) != TileShape.of(tile):
        few = tile.m <= FEW_ROWS
        choices.append((tirx.And(rest, few), tile_gemm_gpu(program, small, beside).body))
        rest = tirx.And(rest, tirx.Not(few))
    if not choices:
        return general
    return general.with_body(block("root", one_of([*choices, (rest, general.body)])))


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
