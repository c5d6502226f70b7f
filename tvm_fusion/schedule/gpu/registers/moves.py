"""Moves between registers and shared memory by address, in words and vectors.

TVM does not see accesses by address: it places no barriers for them, and declares no more of a
buffer than a block's regions say.
"""

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...instructions.nvidia import PTX_TYPES

_PACK = """
__device__ __forceinline__ void {name}(void* to, float low, float high) {{
  asm("cvt.rn.{short}x2.f32 %0, %1, %2;" : "=r"(*(unsigned*)to) : "f"(high), "f"(low));
}}
"""
# The compiler's own: before compute capability 8.0 there is no such instruction of float16.
_PACK_HALF = """
__device__ __forceinline__ void {name}(void* to, float low, float high) {{
  *(__half2*)to = __floats2half2_rn(low, high);
}}
"""
_PAIR = """
__device__ __forceinline__ void tvm_fusion_store_pair(void* to, float low, float high) {
  *(float2*)to = make_float2(low, high);
}
"""
_VECTOR = """
__device__ __forceinline__ void tvm_fusion_move_16(void* place, const void* source) {
  *(uint4*)place = *(const uint4*)source;
}
"""
_ZERO = """
__device__ __forceinline__ void tvm_fusion_zero_16(void* place) {
  *(uint4*)place = make_uint4(0, 0, 0, 0);
}
"""
_KEEP = """
__device__ __forceinline__ void tvm_fusion_keep_words_{count}(void* place, bool keep) {{
  unsigned* word = (unsigned*)place;
  #pragma unroll
  for (int i = 0; i < {count}; ++i) word[i] = keep ? word[i] : 0u;
}}
"""


def store_pair(to: ir.TensorLoad, low: ir.Expr, high: ir.Expr, dtype: str) -> tirx.Stmt:
    """Store two float32 values in neighbouring elements of a half type or of float32."""
    short = PTX_TYPES.get(dtype)
    name = "tvm_fusion_store_pair" if short is None else f"tvm_fusion_store_pair_{short}"
    pack = _PACK_HALF if short == "f16" else _PACK
    source = _PAIR if short is None else pack.format(name=name, short=short)
    return _call(name, source, tirx.address_of(to), low, high)


def move_16(to: ir.TensorLoad, source: ir.TensorLoad) -> tirx.Stmt:
    """Move 16 aligned bytes."""
    return _call("tvm_fusion_move_16", _VECTOR, tirx.address_of(to), tirx.address_of(source))


def zero_16(to: ir.TensorLoad) -> tirx.Stmt:
    """Store zeros in 16 aligned bytes."""
    return _call("tvm_fusion_zero_16", _ZERO, tirx.address_of(to))


def keep_words(place: ir.TensorLoad, count: int, condition: ir.Expr) -> tirx.Stmt:
    """Make some words of registers zeros unless a condition holds, without a branch.

    The compiler makes branches of choices between elements of half types.
    """
    source = _KEEP.format(count=count)
    keep = tirx.Cast("bool", condition)
    return _call(f"tvm_fusion_keep_words_{count}", source, tirx.address_of(place), keep)


def _call(name: str, source: str, *args: ir.Expr) -> tirx.Stmt:
    return tirx.Evaluate(cuda_func_call(name, *args, source_code=source))
