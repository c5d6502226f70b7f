"""Contractions on a GPU: skinny or tiled GEMM, DLight's schedules, or untiled sums.

few rows:      skinny GEMM                                              (skinny_gemm_gpu)
half types:    tiled GEMM on tensor cores
                 mma.sync, small tiles, split-K, any operands            (tile_gemm_gpu)
                   split-K without clusters: two kernels                 (split_k_workspace)
                 wgmma on Hopper, operands that TMA copies               (wgmma_gemm_gpu)
                   windows of images and rectangles of pixels, too       (tma_window)
                   of two weights and one A, too                         (dual_gemm)
                 of either: rows in groups, each with a weight of its own (ragged_tiles)
otherwise:     DLight's Matmul, GEMV or Reduction, the first that fits in one launch:
                 block tile of A and B in shared memory, barrier, register tile of acc;
                 its store of acc is replaced by the epilogue            (fuse_epilogue)
symbolic M:    the same, with skinny GEMMs in front                       (dynamic_m_gpu)
other parts of a concatenation with the result:  by idle threads  (concat_parts_gpu)
none fits, or a column split of many rows without tensor cores:  untiled sums  (untiled_gpu)
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from ...core.decisions import Decision, record
from ...device import Device
from ...errors import reason_of
from ...program.program import Program
from ..gpu.dlight import check_gpu, rule
from ..gpu.launch import PREFETCHED
from ..launches import launches
from .concat_parts_gpu import ConcatParts
from .dynamic_m_gpu import dispatch_on_m
from .fuse_epilogue import CannotFuseEpilogue, fuse_epilogue
from .gemm_configs_gpu import GemmConfig
from .gemv_config import GemvConfig
from .implicit_gemm import ImplicitGemm
from .operand_copies import OperandCopies
from .operands import SumOfProducts
from .prim_func import contraction_prim_func, materialize_computed
from .skinny_gemm_gpu import skinny_gemm_gpu
from .tile_gemm_config import TileGemmConfig, is_plain
from .tile_gemm_gpu import tile_gemm_gpu
from .untiled_gpu import untiled_gpu
from .wgmma_config import WgmmaConfig
from .wgmma_gemm_gpu import wgmma_gemm_gpu

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction)


@dataclass(frozen=True, eq=False)
class GpuContractionConfig:
    """Configuration of a contraction on a GPU: decided by the claim, consumed by its emission.

    Attributes
    ----------
    program : Program
        The program of the claimed group.
    contraction : SumOfProducts
        Its contraction; behind a norm prologue, without the scale.
    device : Device
        The GPU.
    gemm : GemvConfig, TileGemmConfig or None
        Of few rows, or of tiles on tensor cores; ``None`` for tiled and untiled kernels, which
        DLight configures, with skinny GEMMs in front if M is symbolic.
    beside : ConcatParts or None
        Other parts of a concatenation with the product; there is a configuration then.
    """

    program: Program
    contraction: SumOfProducts
    device: Device
    gemm: GemmConfig | None
    beside: ConcatParts | None = None

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
    """What a claim remembers until its kernels are made.

    Attributes
    ----------
    config : GpuContractionConfig
        The kernel.
    copies : OperandCopies or ImplicitGemm, optional
        What makes the operands that the kernel reads instead of the group's own.
    has_choices : bool
        Whether a tuner may choose other tiles.
    """

    config: GpuContractionConfig
    copies: OperandCopies | ImplicitGemm | None = None
    has_choices: bool = True


def contraction_gpu(config: GpuContractionConfig, name: str, target: Target) -> tirx.PrimFunc:
    """Make the kernel, or the kernels of which the host launches one by the number of rows."""
    program, contraction = config.program, config.contraction
    if config.skinny is not None:
        return skinny_gemm_gpu(program, config.skinny, config.beside)
    if config.tile is not None:
        general = _tile_gemm(program, config.tile, config.beside)
        if config.tile.ragged is not None:
            return general
    else:
        general = _tiled_gpu(program, contraction, name, target)
    return dispatch_on_m(program, contraction, general, config.device, config.tile, config.beside)


def _tile_gemm(program: Program, tile: TileGemmConfig, beside: ConcatParts | None) -> tirx.PrimFunc:
    """Make a GEMM on tensor cores, which says that B may be asked for beforehand."""
    if isinstance(tile, WgmmaConfig):
        func = wgmma_gemm_gpu(program, tile, beside)
    else:
        func = tile_gemm_gpu(program, tile, beside)
    b = tile.b
    if not is_plain(b) or tile.ragged is not None:  # of some groups there may be no rows
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
    for kind in RULES:
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
