"""Masks of words on NVIDIA GPUs: one instruction where its compiler makes two.

An instruction of three operands computes any function of their bits, and one operand may be a
constant. Where two are, the compiler writes two instructions; here one of them is in a register.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext

_NAME = "tvm_fusion_masked"
# (x & mask) ^ other as a table: where the bits of 0xF0, 0xCC and 0xAA are the operands.
_TABLE = (0xF0 & 0xCC) ^ 0xAA
_SOURCE = f"""
__forceinline__ __device__ unsigned {_NAME}(unsigned x, unsigned mask, unsigned other) {{
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, {_TABLE:#x};" : "=r"(y) : "r"(x), "r"(mask), "r"(other));
  return y;
}}
"""


@tirx.transform.prim_func_pass(opt_level=0, name="BitMath")
class BitMath:
    """Lower ``(x & mask) ^ other`` of 32 bits with constants."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower those of one function for an NVIDIA GPU; others pass."""
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda":
            return func
        kinds = [(tirx.BitwiseXor, _masked)]
        return func.with_body(tvm_ffi.structural_map(func.body, kinds, order="post"))


def _masked(node: tirx.BitwiseXor) -> ir.Expr:
    inner, other = node.a, node.b
    if str(node.ty.dtype) != "uint32" or not isinstance(inner, tirx.BitwiseAnd):
        return node
    if not isinstance(inner.b, tirx.IntImm) or not isinstance(other, tirx.IntImm):
        return node
    operands = (inner.a, inner.b, other)
    return cuda_func_call(_NAME, *operands, source_code=_SOURCE, return_type="uint32")
