"""DLight's GPU rules, each tried on its own, with a check of what the device can launch."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from .guard import Rule


def gpu_rules() -> list[Rule]:
    """Matmul, GEMV, reductions, and a rule that fits everything, in DLight's own order."""
    gpu = dlight.gpu
    kinds = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Fallback)
    return [_rule(kind()) for kind in kinds]


def check_gpu(func: tirx.PrimFunc, target: Target) -> str | None:
    """Say why a scheduled function cannot be launched on the target; ``None`` if it can."""
    limits = {
        "max_threads_per_block": int(target.attrs.get("max_num_threads", 1024)),
        "max_shared_memory_per_block": int(target.attrs.get("max_shared_memory_per_block", 49152)),
    }
    if s_tir.analysis.verify_gpu_code(func, limits):
        return None
    return f"needs more than {limits} allow."


def _rule(rule: ScheduleRule) -> Rule:
    def apply(func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        space = rule.apply(func, target, False)
        return space[0] if isinstance(space, list) else space

    return Rule(f"dlight.{type(rule).__name__}", apply)
