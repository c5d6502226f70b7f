"""Keep small local buffers of CPU kernels on the stack, from where LLVM promotes them to registers.

TVM 0.27 allocates what exceeds a kilobyte from a pool, scope ``local`` or not. A tile of sums then
lies in memory that others might see: LLVM keeps it there between loops, and spills.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

MOST_BYTES = 16 * 1024  # of one buffer on a thread's stack

CPU = 1  # DLPack's kDLCPU
_KEEP = "disable_lower_builtin"


@tirx.transform.prim_func_pass(opt_level=0, name="RegistersOnStack")
class RegistersOnStack:
    """Keep small buffers of scope ``local`` from becoming calls of the runtime's allocator."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Mark the allocations of one function that runs on a CPU.

        What a launcher of device kernels allocates lies on the device: TVM's scans do so, in scope
        ``local`` around the launches.
        """
        if not is_for_cpu(func):
            return func

        def mark(alloc: tirx.AllocBuffer) -> tirx.AllocBuffer:
            if alloc.buffer.scope() != "local" or not _is_small(alloc.buffer):
                return alloc
            return tirx.AllocBuffer(
                alloc.buffer, {**dict(alloc.annotations), _KEEP: tirx.IntImm("bool", 1)}
            )

        body = tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, mark), order="post")
        return func.with_body(body)


def is_for_cpu(func: tirx.PrimFunc) -> bool:
    """Tell whether a function computes on the CPU and launches nothing on another device."""
    attrs: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, attrs.append))
    kinds = [a.value for a in attrs if a.attr_key == "device_type"]
    return all(isinstance(k, tirx.IntImm) and int(k) == CPU for k in kinds)


def _is_small(buffer: ir.Var) -> bool:
    extents = [int(d) for d in buffer.ty.shape if isinstance(d, tirx.IntImm)]
    if len(extents) < len(buffer.ty.shape):
        return False
    return math.prod(extents) * tvm.DataType(str(buffer.ty.dtype)).bits // 8 <= MOST_BYTES
