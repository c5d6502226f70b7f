"""Lower vectors of booleans, which TVM 0.27 accepts in kernels but fails to generate code for.

A buffer of booleans that a kernel allocates and accesses by vectors of one width only becomes a
buffer of int8 vectors (StorageRewrite), whose stores then do not fit.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.buffer import declare


@tirx.transform.prim_func_pass(opt_level=0, name="BytesForBooleans")
class BytesForBooleans:
    """Allocate bytes where a scheduled kernel allocates booleans."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the buffers that blocks allocate; parameters stay as they are."""
        blocks: list[s_tir.SBlock] = []
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda block, *_: blocks.append(block)))
        bytes_of = {
            buffer: declare(buffer.shape, "int8", buffer.name, buffer.scope())
            for block in blocks
            for buffer in block.alloc_buffers
            if str(buffer.ty.dtype) == "bool"
        }
        if not bytes_of:
            return func
        replaced = set(bytes_of.values())

        def load(found: ir.TensorLoad) -> ir.Expr:
            buffer = bytes_of.get(found.source, found.source)
            if buffer not in replaced:
                return found
            return tirx.BufferLoad(buffer, list(found.indices)) != tirx.IntImm("int8", 0)

        def store(found: tirx.BufferStore) -> tirx.Stmt:
            buffer = bytes_of.get(found.buffer, found.buffer)
            if buffer not in replaced:
                return found
            return tirx.BufferStore(buffer, tirx.Cast("int8", found.value), list(found.indices))

        return tvm_ffi.structural_map(
            func,
            [
                (ir.TensorLoad, load),
                (tirx.BufferStore, store),
                (ir.Var, lambda var: bytes_of.get(var, var)),
            ],
            order="post",
        )
