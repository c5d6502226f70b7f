"""The scheduling stage: every PrimFunc that is still plain loops gets a schedule for the target."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..foreign import has_blocks, is_scheduled
from .guard import Rule, schedule_function


@tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Schedule all PrimFuncs for the current target, each by the first rule that works for it.

    What was scheduled before stays as it is. A rule that fails costs no more than its kernel: the
    next rule is tried and the reason recorded as a decision.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every unscheduled PrimFunc over SBlocks."""
        target = Target.current(allow_none=False)
        rules, check = _rules(target)
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, tirx.PrimFunc) and not is_scheduled(func) and has_blocks(func):
                scheduled = schedule_function(gvar.name_hint, func, target, rules, check)
                mod.update_func(gvar, scheduled)
        return mod


def _rules(target: Target):
    if "gpu" in target.keys:
        from .gpu import check_gpu, gpu_rules

        return gpu_rules(), check_gpu
    from .cpu import schedule_cpu

    return [Rule("cpu.generic", schedule_cpu)], lambda func, target: None
