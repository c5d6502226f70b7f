"""From call_tir to the virtual machine's instructions: memory plan, in-place results, shapes."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext

from ..foreign import LOWERED, is_ours, on_ours


@tvm.transform.module_pass(opt_level=0, name="LowerToVM")
class LowerToVM:
    """Lower Relax functions to what TVM's virtual machine executes.

    Memory is planned statically. Lowered functions are marked, so that a second application leaves
    them alone: TVM's own passes would check every argument twice.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that is ours and not lowered yet."""
        lower = relax.transform
        mod = on_ours(
            lower.ToNonDataflow(),
            lower.RemovePurityChecking(),
            lower.CallTIRRewrite(),
            lower.StaticPlanBlockMemory(),
            lower.RewriteCUDAGraph(),  # if relax.backend.use_cuda_graph is set
            lower.LowerAllocTensor(),
            lower.KillAfterLastUse(),
            lower.LowerRuntimeBuiltin(),
            lower.ComputePrimValue(),
            lower.VMShapeLower(),
            lower.AttachGlobalSymbol(),
        )(mod)
        for gvar, func in list(mod.functions.items()):
            if is_ours(func):
                mod.update_func(gvar, func.with_attr(LOWERED, True))
        return mod
