"""Disable the reuse of shared memory by TVM 0.27's StorageRewrite on AMD GPUs.

StorageRewrite lets buffers whose lifetimes do not overlap share an allocation; the second one is
declared as a view of the first one's data. TVM's AMDGPU code generator gives every declared pointer
the global address space, so the kernel reads and writes shared memory (LDS) through global
instructions: ``addrspacecast (ptr addrspace(3) ... to ptr addrspace(1))`` in LLVM's IR, a memory
fault on the device. Registers that share an allocation fare the same way. Each buffer keeps an
allocation of its own here, at the price of some LDS (1 KiB of 9 in a GEMV); LLVM does the rest.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.target import target_kind


@tirx.transform.prim_func_pass(opt_level=0, name="SeparateStorage")
class SeparateStorage:
    """TVM's StorageRewrite, but for functions that run on AMD GPUs.

    Those that keep buffers in warp memory are rewritten there, too: LowerWarpMemory needs the
    allocation around the threads, where StorageRewrite moves it. What it shares besides is found
    when the machine code is checked.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function."""
        if target_kind(func) == "rocm" and not _has_warp_memory(func):
            return func
        return tirx.transform.StorageRewrite()(ir.IRModule({"main": func}))["main"]


def _has_warp_memory(func: tirx.PrimFunc) -> bool:
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found.append))
    return any(alloc.buffer.scope() == "warp" for alloc in found)
