"""Merge groups that TVM's own FuseOps has made into PrimFuncs, as TVM's FuseTIR does."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..core.untouched import PRIMITIVE, is_external
from .emit import is_group


def merge_primitives(mod: tvm.IRModule) -> tvm.IRModule:
    """Run FuseTIR where Primitive functions over ``call_tir`` are left, which no VM can call.

    Those for external code generators (Composite, Codegen) and those over anything else than
    PrimFuncs stay.
    """
    return relax.transform.FuseTIR()(mod) if any(map(_is_primitive(mod), mod.functions)) else mod


def _is_primitive(mod: tvm.IRModule) -> Any:
    def test(gvar: tvm.ir.GlobalVar) -> bool:
        func = mod[gvar]
        if not isinstance(func, relax.Function) or is_group(func) or is_external(func):
            return False
        return bool(func.attrs and func.attrs.get(PRIMITIVE, False)) and _calls_kernels(mod, func)

    return test


def _calls_kernels(mod: tvm.IRModule, func: relax.Function) -> bool:
    calls = [
        binding.value
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    return all(
        call.op == tvm.ir.Op.get("relax.call_tir")
        and isinstance(mod.functions.get(call.args[0]), tirx.PrimFunc)
        for call in calls
    )
