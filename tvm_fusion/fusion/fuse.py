"""The fusion stage, with stock grouping behind it."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext

from ..foreign import on_ours


@tvm.transform.module_pass(opt_level=0, name="FuseOperators")
class FuseOperators:
    """Group operators and merge each group into one PrimFunc.

    Bindings that stand outside of a dataflow block are brought into one first: stock fusion leaves
    them alone without a word.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that is ours."""
        return on_ours(
            relax.transform.ConvertToDataflow(min_size=1),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            _DropPatterns(),
        )(mod)


@tirx.transform.prim_func_pass(opt_level=0, name="DropPatterns")
class _DropPatterns:
    """Patterns describe operators; what comes out of fusion are kernels."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        return func.without_attr("op_pattern")
