"""Words of bits and of pairs on NVIDIA GPUs: one instruction where its compiler makes several.

An instruction of three operands computes any function of their bits, and one operand may be a
constant. Where two are, the compiler writes two instructions; here one of them is in a register.

Another multiplies and adds both of a pair of half-type numbers, which TVM writes one by one.
"""

from __future__ import annotations

import struct

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext

from ..ecg.intrinsic import call_name

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
_PAIRS = "tvm_fusion_pairs_{}"
_PAIRS_SOURCE = """
__forceinline__ __device__ unsigned {name}(unsigned x, unsigned factor, unsigned summand) {{
  unsigned y;
  asm("fma.rn.{short}x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(factor), "r"(summand));
  return y;
}}
"""
_SHORT = {"float16x2": "f16", "bfloat16x2": "bf16"}


@tirx.transform.prim_func_pass(opt_level=0, name="BitMath")
class BitMath:
    """Lower ``(x & mask) ^ other`` of 32 bits, and ``pair * a - b``, with constants."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower those of one function for an NVIDIA GPU; others pass."""
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda":
            return func
        kinds = [(tirx.BitwiseXor, _masked), (tirx.Sub, _pairs)]
        return func.with_body(tvm_ffi.structural_map(func.body, kinds, order="post"))


def _masked(node: tirx.BitwiseXor) -> ir.Expr:
    inner, other = node.a, node.b
    if str(node.ty.dtype) != "uint32" or not isinstance(inner, tirx.BitwiseAnd):
        return node
    if not isinstance(inner.b, tirx.IntImm) or not isinstance(other, tirx.IntImm):
        return node
    operands = (inner.a, inner.b, other)
    return cuda_func_call(_NAME, *operands, source_code=_SOURCE, return_type="uint32")


def _pairs(node: tirx.Sub) -> ir.Expr:
    """Multiply and add pairs that are 32 bits."""
    short, product = _SHORT.get(str(node.ty.dtype)), node.a
    if short is None or not isinstance(product, tirx.Mul) or call_name(product.a) != "reinterpret":
        return node
    factor, less = _word_of(product.b, 1), _word_of(node.b, -1)
    if factor is None or less is None or str(product.a.args[0].ty.dtype) != "uint32":
        return node
    name = _PAIRS.format(short)
    source = _PAIRS_SOURCE.format(name=name, short=short)
    operands = (product.a.args[0], factor, less)
    made = cuda_func_call(name, *operands, source_code=source, return_type="uint32")
    return tirx.reinterpret(str(node.ty.dtype), made)


def _word_of(pair: ir.Expr, sign: int) -> ir.Expr | None:
    """Write a constant twice as 32 bits."""
    if not isinstance(pair, tirx.Broadcast) or not isinstance(pair.value, tirx.FloatImm):
        return None
    value = sign * float(pair.value.value)
    if str(pair.value.ty.dtype) == "float16":
        (bits,) = struct.unpack("<H", struct.pack("<e", value))
    else:
        (bits,) = (struct.unpack("<I", struct.pack("<f", value))[0] >> 16,)
    return tirx.const(bits << 16 | bits, "uint32")
