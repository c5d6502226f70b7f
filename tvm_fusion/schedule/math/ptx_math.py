"""PTX instructions that CUDA's compiler does not choose: lop3, fma of f16x2, rounding to bfloat16.

``lop3`` computes any function of three words' bits. Of two constant operands one must be in a
register, where the compiler writes two instructions instead. ``fma.rn.f16x2`` multiplies and adds
both halves of a word, which TVM's codegen writes one by one. ``cvt.rn.bf16x2.f32`` of a number and
zero is the number rounded to bfloat16 as float32; of a cast there and back the compiler makes a
conversion, of which a multiprocessor executes few, and a shift.
"""

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.transform import PassContext

from ...core.tir.expressions import call_name
from ..gpu.registers.half_pairs import constant_pair, fma
from ..instructions.nvidia import HALF_TYPES

_NAME = "tvm_fusion_lop3"
# (x & mask) ^ other as a table: where the bits of 0xF0, 0xCC and 0xAA are the operands.
_TABLE = (0xF0 & 0xCC) ^ 0xAA
_SOURCE = f"""
__forceinline__ __device__ unsigned {_NAME}(unsigned x, unsigned mask, unsigned other) {{
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, {_TABLE:#x};" : "=r"(y) : "r"(x), "r"(mask), "r"(other));
  return y;
}}
"""
_PAIRS = {f"{dtype}x2": dtype for dtype in HALF_TYPES}
_ROUNDED = "tvm_fusion_rounded_to_bfloat16"
_ROUND = f"""
__forceinline__ __device__ float {_ROUNDED}(float x) {{
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x), "f"(0.0f));
  return __uint_as_float(y);
#else
  return __bfloat162float(__float2bfloat16_rn(x));
#endif
}}
"""


@tirx.transform.prim_func_pass(opt_level=0, name="PtxMath")
class PtxMath:
    """Lower ``(x & mask) ^ other`` of 32 bits, ``f16x2 * a - b`` and float32 as bfloat16 has it."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Lower one function for an NVIDIA GPU; others are unchanged."""
        target = func.attrs.get("target") if func.attrs else None
        if target is None or target.kind.name != "cuda":
            return func
        kinds = [(tirx.BitwiseXor, _lop3), (tirx.Sub, _fma_f16x2), (tirx.Cast, _rounded)]
        return func.with_body(tvm_ffi.structural_map(func.body, kinds, order="post"))


def _lop3(node: tirx.BitwiseXor) -> ir.Expr:
    inner, other = node.a, node.b
    if str(node.ty.dtype) != "uint32" or not isinstance(inner, tirx.BitwiseAnd):
        return node
    if not isinstance(inner.b, tirx.IntImm) or not isinstance(other, tirx.IntImm):
        return node
    operands = (inner.a, inner.b, other)
    return cuda_func_call(_NAME, *operands, source_code=_SOURCE, return_type="uint32")


def _fma_f16x2(node: tirx.Sub) -> ir.Expr:
    """Multiply and add both halves of reinterpreted words."""
    dtype, product = _PAIRS.get(str(node.ty.dtype)), node.a
    if dtype is None or not isinstance(product, tirx.Mul) or call_name(product.a) != "reinterpret":
        return node
    factor, less = _word_of(product.b, 1), _word_of(node.b, -1)
    if factor is None or less is None or str(product.a.args[0].ty.dtype) != "uint32":
        return node
    made = fma(dtype, product.a.args[0], factor, less)
    return tirx.reinterpret(str(node.ty.dtype), made)


def _rounded(node: tirx.Cast) -> ir.Expr:
    """Round a number to bfloat16, and keep it as float32."""
    inner = node.value
    if str(node.ty.dtype) != "float32" or not isinstance(inner, tirx.Cast):
        return node
    if (str(inner.ty.dtype), str(inner.value.ty.dtype)) != ("bfloat16", "float32"):
        return node
    return cuda_func_call(_ROUNDED, inner.value, source_code=_ROUND, return_type="float32")


def _word_of(pair: ir.Expr, sign: int) -> ir.Expr | None:
    """Return a broadcast constant as 32 bits."""
    if not isinstance(pair, tirx.Broadcast) or not isinstance(pair.value, tirx.FloatImm):
        return None
    return constant_pair(str(pair.value.ty.dtype), sign * float(pair.value.value))
