"""Contractions on a GPU: skinny or tiled GEMM, DLight's schedules, or untiled sums.

few rows:      skinny GEMM                                                (skinny/kernel)
half types:    tiled GEMM on tensor cores
                 mma.sync, small tiles, split-K, any operands               (mma/kernel)
                   split-K without clusters: two kernels                 (split_k_workspace)
                 wgmma on Hopper, operands that TMA copies                 (wgmma/kernel)
                   windows of images and rectangles of pixels, too       (tma_window)
                   of two weights and one A, too                         (dual_gemm)
                 of either: rows in groups, each with a weight of its own (ragged_tiles)
otherwise:     DLight's Matmul, GEMV or Reduction, the first that fits in one launch:
                 block tile of A and B in shared memory, barrier, register tile of acc;
                 its store of acc is replaced by the epilogue            (fuse_epilogue)
symbolic M:    the same, with skinny GEMMs in front                           (dynamic_m)
other parts of a concatenation with the result:  by idle threads  (tile/concat_parts)
none fits, or a column split of many rows without tensor cores:  untiled sums      (untiled)
"""

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from ....core.decisions import Decision, record
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import (
    block,
    ceildiv,
    constant,
    coordinates,
    index,
    kernel,
    local,
    loop,
    product,
    sequence,
    threads,
    unrolled,
    when,
)
from ....device import Device
from ....errors import reason_of
from ....program.program import Program
from ...gpu.dlight import check_gpu, rule
from ...gpu.launch import PREFETCHED
from ...stage.launches import launches
from ..copies.implicit_gemm import ImplicitGemm
from ..copies.operand_copies import OperandCopies
from ..mma.kernel import tile_gemm_gpu
from ..problem.epilogue.fuse import CannotFuseEpilogue, fuse_epilogue, store_results
from ..problem.functions.prim_func import contraction_prim_func, materialize_computed, sum_terms
from ..problem.sum_of_products import SumOfProducts
from ..skinny.gemv.config import GemvConfig
from ..skinny.kernel import skinny_gemm_gpu
from ..tile.config import TileGemmConfig, is_plain
from ..tile.results.concat_parts import ConcatParts
from ..wgmma.config import WgmmaConfig
from ..wgmma.kernel import wgmma_gemm_gpu
from .dynamic_m import dispatch_on_m
from .space import GemmConfig

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction)
FEW_TERMS = 64  # of a sum that one thread computes; DLight's reduction takes a block for each


@dataclass(frozen=True, eq=False)
class GpuContractionConfig:
    """Configuration of a contraction on a GPU: decided by the claim, consumed by its emission."""

    program: Program  # the program of the claimed group
    contraction: SumOfProducts  # its contraction; behind a norm prologue, without the scale
    device: Device
    # Of few rows, or of tiles on tensor cores; ``None`` for tiled and untiled kernels, which DLight
    # configures, with skinny GEMMs in front if M is symbolic.
    gemm: GemmConfig | None
    # Other parts of a concatenation with the product; there is a configuration then.
    concat_parts: ConcatParts | None = None
    constants: frozenset[ir.Var] = frozenset()

    @property
    def loads_early(self) -> bool:
        """Whether B is loaded while the kernel before still runs: none writes a constant."""
        if self.skinny is None or self.concat_parts is not None or self.skinny.gathered:
            return False
        sources = {x.source for x in loads(self.skinny.b)}
        return self.device.dependent_launch and sources <= self.constants

    @property
    def skinny(self) -> GemvConfig | None:
        """The configuration, if it is one of few rows."""
        return self.gemm if isinstance(self.gemm, GemvConfig) else None

    @property
    def tile(self) -> TileGemmConfig | None:
        """The configuration, if it is one of tiles."""
        return self.gemm if isinstance(self.gemm, TileGemmConfig) else None


@dataclass(frozen=True, eq=False)
class GpuContractionDetails:
    """What a claim remembers until its kernels are made."""

    config: GpuContractionConfig  # the kernel
    # What makes the operands that the kernel reads instead of the group's own.
    copies: OperandCopies | ImplicitGemm | None = None
    has_choices: bool = True  # whether a tuner may choose other tiles


def contraction_gpu(config: GpuContractionConfig, name: str, target: Target) -> tirx.PrimFunc:
    """Make the kernel, or the kernels of which the host launches one by the number of rows."""
    program, contraction = config.program, config.contraction
    if config.skinny is not None:
        return skinny_gemm_gpu(program, config.skinny, config.concat_parts, config.loads_early)
    if config.tile is not None:
        general = _tile_gemm(program, config.tile, config.concat_parts)
        if config.tile.problem.ragged is not None:
            return general
    else:
        general = _tiled_gpu(program, contraction, name, target)
    return dispatch_on_m(
        program, contraction, general, config.device, config.tile, config.concat_parts
    )


def _tile_gemm(
    program: Program, tile: TileGemmConfig, concat_parts: ConcatParts | None
) -> tirx.PrimFunc:
    """Make a GEMM on tensor cores, which says that B may be asked for beforehand."""
    if isinstance(tile, WgmmaConfig):
        func = wgmma_gemm_gpu(program, tile, concat_parts)
    else:
        func = tile_gemm_gpu(program, tile, concat_parts)
    b = tile.problem.b
    if not is_plain(b) or tile.problem.ragged is not None:  # of some groups there may be no rows
        return func
    numbers = [n for n, param in enumerate(func.params) if param.same_as(b.source)]
    return func.with_attr(PREFETCHED, numbers)


def _tiled_gpu(
    program: Program, contraction: SumOfProducts, name: str, target: Target
) -> tirx.PrimFunc:
    """Make the kernel: the first schedule that is one launch and fits the device.

    Schedules finish one sum at a time: epilogues over a column split take untiled sums.
    """
    if contraction.column_split is not None:
        return untiled_gpu(program, contraction)
    operands = (("left", contraction.left), ("right", contraction.right))
    computed = [
        a for n, f in operands if (a := materialize_computed(contraction, n, f)) is not None
    ]
    func, result = contraction_prim_func(program, contraction, computed)
    terms = constant(product([axis.extent for axis in contraction.stage.reduce]))
    for kind in RULES:
        if kind is dlight.gpu.Reduction and terms is not None and terms < FEW_TERMS:
            continue
        one = rule(kind())
        complaint: str | None
        try:
            schedule = one.apply(func, target)
            if schedule is None:
                continue
            made = schedule.mod["main"] if isinstance(schedule, s_tir.Schedule) else schedule
            if (count := launches(made)) != 1:
                complaint = f"it makes {count} launches."
            else:
                kernel = fuse_epilogue(made, result, program, contraction)
                complaint = check_gpu(kernel, target)
                if complaint is None:
                    return kernel
        except CannotFuseEpilogue as reason:
            complaint = f"{reason}."
        # guard: recorded; schedule primitives raise anything
        except Exception as error:
            complaint = reason_of(error)
        record(
            Decision(name, "", "fallback", "schedule_rejected", f"{one.name} gave up: {complaint}")
        )
    return untiled_gpu(program, contraction)


# Untiled contraction on a GPU: depthwise and odd transposed convolutions, column splits.
#
#     thread (128 a block) per ROWS results of adjacent columns:
#       acc[rows, parts] = 0                                        registers
#       for k:  acc += left * right                                 global, coalesced along columns
#       epilogue of each row, masked at the edge
#
# Few elements are used twice, so what counts is that adjacent threads read contiguous elements.
THREADS = 128
ROWS = 4  # results of a thread that reuse the elements of one operand


def untiled_gpu(program: Program, contraction: SumOfProducts) -> tirx.PrimFunc:
    """Make the kernel: a thread sums a few results, with all parts of a column split."""
    stage = contraction.stage
    row = _shared_axis(contraction)
    extents = [a.extent for a in stage.axes]
    parts, part_axis = len(contraction.totals), None
    if contraction.column_split is not None:
        part_axis = stage.axes.index(contraction.column_split.part)
        extents[part_axis] = index(1)
    rows, exact, last_row = 1, True, index(0)
    if row is not None:
        size = constant(extents[row])
        last_row = index(extents[row]) - 1
        rows = ROWS if size is None else min(size, ROWS)
        exact = size is not None and size % rows == 0
        extents[row] = ceildiv(extents[row], rows)
    points = product(extents)

    def body(number: ir.Expr, thread: ir.Expr) -> tirx.Stmt:
        flat = number * THREADS + thread
        place = coordinates(flat, extents)
        acc = local("acc", [rows * parts], contraction.dtype)

        def at(count: ir.Expr, part: int, inside: bool) -> list[ir.Expr]:
            where = list(place)
            if part_axis is not None:
                where[part_axis] = index(part)
            if row is not None:
                where[row] = place[row] * rows + count
                if inside and not exact:  # beyond the edge: sum the last row again, not stored
                    where[row] = tirx.min(where[row], last_row)
            return where

        def each(make: Callable[[ir.Expr, int], tirx.Stmt]) -> tirx.Stmt:
            return loop(
                "row",
                rows,
                lambda count: sequence([make(count, part) for part in range(parts)]),
                tirx.ForKind.UNROLLED,
            )

        def slot(count: ir.Expr, part: int) -> ir.Expr:
            return count * parts + part if parts > 1 else count

        def finish(count: ir.Expr) -> tirx.Stmt:
            where = at(count, 0, False)
            totals = [load(acc, [slot(count, part)]) for part in range(parts)]
            stmt = store_results(contraction, where, *totals)
            return stmt if exact or row is None else when(where[row] <= last_row, stmt)

        def element(count: ir.Expr, part: int) -> tuple[ir.Expr, list[ir.Expr]]:
            return slot(count, part), at(count, part, True)

        sums = sum_terms(contraction, (), acc, each, element)
        stmts = [*sums, unrolled("row", rows, finish)]
        return when(flat < points, block("element", sequence(stmts), [acc]))

    grid = threads(
        "blockIdx.x",
        ceildiv(points, THREADS),
        lambda number: threads("threadIdx.x", THREADS, lambda thread: body(number, thread)),
    )
    return kernel(program, grid)


def _shared_axis(contraction: SumOfProducts) -> int | None:
    """Return an axis along which the operand that depends on the columns is reused."""
    stage = contraction.stage
    if len(stage.axes) < 2:
        return None
    column = stage.axes[-1].var
    for operand in (contraction.left, contraction.right):
        used = variables(operand)
        if column in used:
            free = [n for n, a in enumerate(stage.axes[:-1]) if a.var not in used]
            return free[-1] if free else None
    return None
