"""Names of variables that TVM's C code generators can print.

TVM 0.27 writes a parameter's name into CUDA source as it is. Relax parameters carry a model's input
names, FuseTIR hands them on to kernels, and ``gpu_0/data_0`` is no identifier in C. Buffers in
registers that are named after a parameter have the same fault.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from ..core.tir.loops import find


@tirx.transform.prim_func_pass(opt_level=0, name="ValidNames")
class ValidNames:
    """Rename variables of PrimFuncs with parameters whose names are no C identifiers."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rename where needed; a function without such names is returned as it is."""
        if all(param.name.isidentifier() for param in func.params):
            return func
        renamed = {
            var: ir.Var(re.sub(r"\W", "_", var.name), var.ty)
            for var in dict.fromkeys([*func.params, *find(func.body, ir.Var)])
            if not var.name.isidentifier()
        }
        return tvm_ffi.structural_map(
            func, (ir.Var, lambda var: renamed.get(var, var)), order="post"
        )
