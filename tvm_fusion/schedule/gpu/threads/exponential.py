"""The exponential of softmax, and votes of a warp that spare work.

CUDA's ``exp2f`` scales the arguments whose results are denormal, and these again: three
instructions more than ``ex2``, which gives 0 for them. Weights of a softmax whose largest is 1 lose
nothing by that.
"""

from __future__ import annotations

from tvm import ir
from tvm.backend.cuda.op import cuda_func_call

_EXP2 = "tvm_fusion_exp2_ftz"
_EXP2_SOURCE = f"""
__device__ __forceinline__ float {_EXP2}(float x) {{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
"""
_EXP2_FMA = "tvm_fusion_exp2_fma_ftz"
_EXP2_FMA_SOURCE = f"""
__device__ __forceinline__ float {_EXP2_FMA}(float x, float factor, float summand) {{
  float y;
  asm("{{ .reg .f32 t; fma.rn.f32 t, %1, %2, %3; ex2.approx.ftz.f32 %0, t; }}"
      : "=f"(y) : "f"(x), "f"(factor), "f"(summand));
  return y;
}}
"""
_ANY = "tvm_fusion_any_of_warp"
_ANY_SOURCE = f"""
__device__ __forceinline__ bool {_ANY}(bool x) {{
  return __any_sync(0xffffffffu, x);
}}
"""


def exp2_ftz(x: ir.Expr) -> ir.Expr:
    """Compute ``2 ** x`` in float32; results below ``2 ** -126`` are 0."""
    return cuda_func_call(_EXP2, x, source_code=_EXP2_SOURCE, return_type="float32")


def exp2_fma_ftz(x: ir.Expr, factor: ir.Expr, summand: ir.Expr) -> ir.Expr:
    """Compute ``2 ** (x * factor + summand)``, the exponent in one instruction."""
    arguments = (x, factor, summand)
    source = _EXP2_FMA_SOURCE
    return cuda_func_call(_EXP2_FMA, *arguments, source_code=source, return_type="float32")


def any_of_warp(condition: ir.Expr) -> ir.Expr:
    """Tell all threads of a warp whether a condition holds for any of them."""
    return cuda_func_call(_ANY, condition, source_code=_ANY_SOURCE, return_type="bool")
