"""Contractions on a GPU: skinny GEMM, DLight's schedules with fused epilogues, or untiled sums."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from ...core.decisions import Decision, record
from ...errors import reason_of
from ...program.program import Program
from ..gpu.dlight import check_gpu, rule
from ..launches import launches
from .dynamic_m_gpu import dispatch_on_m, skinny_gemm_gpu
from .fuse_epilogue import CannotFuseEpilogue, fuse_epilogue
from .gemv_config import gemv_config
from .norm_scale_gpu import NormScale
from .operands import SumOfProducts
from .prim_func import contraction_prim_func, materialize_computed
from .untiled_gpu import untiled_gpu

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction)


def contraction_gpu(
    program: Program,
    contraction: SumOfProducts,
    name: str,
    target: Target,
    norm_scale: NormScale | None = None,
) -> tirx.PrimFunc:
    """Make the kernel, or the kernels of which the host launches one by the number of rows.

    A norm prologue is fused into skinny GEMM only.
    """
    cut = gemv_config(contraction, target, norm_scale)
    if cut is not None:
        return skinny_gemm_gpu(program, cut, target)
    general = _tiled_gpu(program, contraction, name, target)
    return dispatch_on_m(program, contraction, general, target)


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
