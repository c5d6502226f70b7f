"""Operators become TensorIR, each with the pattern that stock fusion asks for."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext

from ..foreign import has_blocks, is_scheduled, on_ours

_OPAQUE = 8  # relay's OpPatternKind.kOpaque: never joins a group


@tvm.transform.module_pass(opt_level=0, name="Legalize")
class Legalize:
    """Lower operators to PrimFuncs and annotate each PrimFunc with its stock operator pattern.

    Runs under the current target, which decides how sorts and scans are expressed. PrimFuncs that
    are scheduled already or written at thread level are marked opaque: they are kernels.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that is ours."""
        return on_ours(
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(),
            _KeepKernelsApart(),
            relax.transform.AnnotateTIROpPattern(),
            _KeepKernelsApart(),
        )(mod)


@tirx.transform.prim_func_pass(opt_level=0, name="KeepKernelsApart")
class _KeepKernelsApart:
    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        is_kernel = is_scheduled(func) or not has_blocks(func)
        return func.with_attr("op_pattern", _OPAQUE) if is_kernel else func
