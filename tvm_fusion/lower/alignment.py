"""Let CPU kernels take unaligned tensors: numpy arrays, and views into larger ones.

TVM 0.27 tells LLVM that the memory of every parameter is aligned to 64 bytes and checks it nowhere
on a CPU: vector loads are emitted as aligned ones, and a numpy array, which numpy aligns to 16
bytes, crashes. Unaligned vector loads of memory that happens to be aligned cost nothing on x86 and
ARM, so only the alignment of an element is promised. What a kernel allocates itself stays aligned.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .stack import is_for_cpu

_ALIGNMENT = "storage_alignment"  # TVM's attribute, which MakePackedAPI writes around a body


@tirx.transform.prim_func_pass(opt_level=0, name="NaturalAlignment")
class NaturalAlignment:
    """Promise LLVM the alignment of an element for the memory of parameters.

    Runs behind MakePackedAPI. Launchers of device kernels are left alone: device code generators
    have rules of their own.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite the promises of one function that runs on a CPU."""
        if not is_for_cpu(func):
            return func

        def promise(attr: tirx.AttrStmt) -> tirx.AttrStmt:
            if attr.attr_key != _ALIGNMENT:
                return attr
            size = element_alignment(str(attr.node.ty.dtype))
            return tirx.AttrStmt(attr.node, _ALIGNMENT, tirx.IntImm("int32", size), attr.body)

        return func.with_body(
            tvm_ffi.structural_map(func.body, (tirx.AttrStmt, promise), order="post")
        )


def element_alignment(dtype: str) -> int:
    """Return the alignment of an element in bytes; types of less than a byte have one of a byte."""
    return max(1, tvm.DataType(dtype).bits // 8)
