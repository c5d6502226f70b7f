"""Hyperbolic functions in PrimFuncs that were lowered elsewhere."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from ..core.tir.expressions import call_name
from ..core.tir.hyperbolic import DTYPES, cosh, sinh

_FORMS = {"cosh": cosh, "sinh": sinh}


@tirx.transform.prim_func_pass(opt_level=0, name="HyperbolicByExponentials")
class HyperbolicByExponentials:
    """Write ``cosh`` and ``sinh`` by exponentials, which can be vectorized."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the calls in one function."""

        def written(call: ir.Call) -> ir.Expr:
            form = _FORMS.get(call_name(call))
            if form is None or str(call.ty.dtype) not in DTYPES:
                return call
            return form(call.args[0])

        return tvm_ffi.structural_map(func, [(ir.Call, written)], order="post")
