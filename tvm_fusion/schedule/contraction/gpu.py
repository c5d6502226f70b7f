"""Contractions on a GPU: DLight's schedules with our epilogues, or plain sums in one launch."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from ...errors import reason_of
from ...fusion.decisions import Decision, record
from ...fusion.program import Program
from ..gpu.dlight import check_gpu, rule
from ..launches import launches
from .dynamic_m_gpu import few_rows_gpu, guarded_rows
from .fuse_epilogue import CannotGraft, graft
from .gemv_config import slim
from .norm_scale_gpu import RowSum
from .operands import SumOfProducts
from .prim_func import canonical, gathered
from .untiled_gpu import sums_gpu

RULES = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction)


def contraction_gpu(
    program: Program,
    contraction: SumOfProducts,
    name: str,
    target: Target,
    row_sum: RowSum | None = None,
) -> tirx.PrimFunc:
    """Make the kernel, or the kernels of which one is launched: by how many rows there are.

    Products with a sum over the rows are of few rows.
    """
    cut = slim(contraction, target, row_sum)
    if cut is not None:
        return few_rows_gpu(program, cut, target)
    general = _of_any_rows(program, contraction, name, target)
    return guarded_rows(program, contraction, general, target)


def _of_any_rows(
    program: Program, contraction: SumOfProducts, name: str, target: Target
) -> tirx.PrimFunc:
    """Make the kernel: the first schedule that is one launch and fits the device.

    Schedules finish one sum at a time, so those of several pieces are plain sums.
    """
    if contraction.pieces is not None:
        return sums_gpu(program, contraction)
    factors = (("left", contraction.left), ("right", contraction.right))
    apart = [a for n, f in factors if (a := gathered(contraction, n, f)) is not None]
    func, result = canonical(program, contraction, apart)
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
                kernel = graft(made, result, program, contraction)
                complaint = check_gpu(kernel, target)
                if complaint is None:
                    return kernel
        except CannotGraft as reason:
            complaint = f"{reason}."
        # guard: recorded; schedule primitives raise anything
        except Exception as error:
            complaint = reason_of(error)
        record(
            Decision(name, "", "fallback", "schedule_rejected", f"{one.name} gave up: {complaint}")
        )
    return sums_gpu(program, contraction)
