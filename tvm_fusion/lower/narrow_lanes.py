"""Lanes of shuffles as int32, as the AMD instruction takes them.

TVM 0.27's LowerWarpMemory makes the lane to read from out of a buffer's index, which is int64 where
a symbolic dimension keeps NarrowDataType from narrowing. Its rule for AMD passes the lane as it is
to ``llvm.amdgcn.ds.bpermute(i32, i32)``, and LLVM refuses the module.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.target import target_kind
from ..core.tir.expressions import call_name

SHUFFLES = frozenset({"tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down"})
_LANE = 2  # of mask, value, lane, width, warp size


@tirx.transform.prim_func_pass(opt_level=0, name="NarrowLanes")
class NarrowLanes:
    """Lower warp memory to shuffles of AMD GPUs whose lanes are int32."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an AMD GPU; others stay as they are."""
        if target_kind(func) != "rocm":
            return func
        func = tirx.transform.LowerWarpMemory()(ir.IRModule({"main": func}))["main"]
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _narrow), order="post"))


def _narrow(call: ir.Call) -> ir.Call:
    if call_name(call) not in SHUFFLES or str(call.args[_LANE].ty.dtype) == "int32":
        return call
    args = list(call.args)
    args[_LANE] = tirx.Cast("int32", args[_LANE])
    return ir.Call(call.op, args, call.attrs, call.ty_args, None, call.ty)
