"""From call_tir to the virtual machine's instructions: memory plan, in-place results, shapes."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from ...core.untouched import LOWERED, is_rewritable, on_rewritable
from ..cuda_graph.capture import CAPTURED, CaptureLaunches
from ..cuda_graph.dependent_launch import LaunchEarly
from ..memory.destinations import PassDestinations
from ..memory.share_storage import ShareStorage
from ..cuda_graph.static_inputs import with_static_inputs
from ..cuda_graph.weights_tuple import PassWeightsAsTuple
from .whole_extents import TakeWholeExtents


@tvm.transform.module_pass(opt_level=0, name="LowerToVM")
class LowerToVM:
    """Lower Relax functions to what TVM's virtual machine executes.

    Memory is planned statically. On CUDA, with ``relax.backend.use_cuda_graph``, launches become
    CUDA graphs; see :mod:`tvm_fusion.deploy.cuda_graph.capture`, and their weights one tuple where the caller
    knows; see :mod:`tvm_fusion.deploy.cuda_graph.weights_tuple`. Kernels are launched early where devices can;
    see :mod:`tvm_fusion.deploy.cuda_graph.dependent_launch`. Lowered functions are marked, so that a
    second application leaves them alone: TVM's own passes would check every argument twice.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that may be rewritten and is not lowered yet."""
        lower = relax.transform
        target = Target.current()
        on_cuda = target is not None and target.kind.name == "cuda"
        if on_cuda and ctx.config.get("relax.backend.use_cuda_graph", False):
            mod = Sequential([CaptureLaunches()])(mod)
        mod = Sequential([LaunchEarly()])(mod)
        mod = on_rewritable(
            lower.ToNonDataflow(),
            lower.RemovePurityChecking(),
            lower.CallTIRRewrite(),
            PassDestinations(),
            lower.StaticPlanBlockMemory(),
            ShareStorage(),
        )(mod)
        mod = Sequential([TakeWholeExtents(), PassWeightsAsTuple()])(mod)
        mod = on_rewritable(with_static_inputs(lower.RewriteCUDAGraph()), only=CAPTURED)(mod)
        mod = on_rewritable(
            lower.LowerAllocTensor(),
            lower.KillAfterLastUse(),
            lower.LowerRuntimeBuiltin(),
            lower.ComputePrimValue(),
            lower.VMShapeLower(),
            lower.AttachGlobalSymbol(),
        )(mod)
        for gvar, func in list(mod.functions.items()):
            if is_rewritable(func):
                mod.update_func(gvar, func.with_attr(LOWERED, True))
        return mod
