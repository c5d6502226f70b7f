"""No shared memory reused for a second buffer by TVM 0.27 on AMD GPUs.

StorageRewrite lets buffers whose lifetimes do not overlap share an allocation; the second one is
declared as a view of the first one's data. TVM's AMDGPU code generator gives every declared pointer
the global address space, so the kernel reads and writes shared memory (LDS) through global
instructions: ``addrspacecast (ptr addrspace(3) ... to ptr addrspace(1))`` in LLVM's IR, a memory
fault on the device. Registers that share an allocation fare the same way. Each buffer keeps an
allocation of its own here, at the price of some LDS (1 KiB of 9 in a GEMV); LLVM does the rest.
"""

from __future__ import annotations

import tvm
from tvm.ir.transform import PassContext

from ._tvm_context import with_options

OPTION = "tirx.disable_storage_rewrite"


def without_shared_views(context: PassContext, mod: tvm.IRModule) -> PassContext:
    """Make a copy of a context in which buffers of AMD kernels keep allocations of their own.

    Parameters
    ----------
    context : PassContext
        Under which a module would be lowered.
    mod : IRModule
        PrimFuncs with the attribute ``target``.

    Returns
    -------
    PassContext
        The context itself where no function is for an AMD GPU.
    """
    targets = (func.attrs.get("target") for func in mod.functions.values())
    if any(target is not None and target.kind.name == "rocm" for target in targets):
        return with_options(context, {OPTION: True})
    return context
