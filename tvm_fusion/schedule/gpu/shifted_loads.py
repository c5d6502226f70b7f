"""Loads of eight elements of a half type from any address: aligned words, shifted.

    word[0 .. 4] = the aligned words around the elements          those with elements that exist
    to[i] = funnel_shift(word[i], word[i + 1])                     by half a word, or not at all

A word of which the upper element alone does not exist is read by halves, so that nothing beyond the
last element of a tensor is read. A word's lower element lies before the first one at worst: in the
row before, as a tensor begins at an aligned address.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

NAME = "tvm_fusion_load_shifted"
_SOURCE = f"""
__device__ __forceinline__ void {NAME}(void* to, const void* from, int count) {{
  unsigned* result = (unsigned*)to;
  int odd = (int)((size_t)from >> 1 & 1);
  const unsigned* words = (const unsigned*)((size_t)from - 2 * odd);
  unsigned word[5];
  #pragma unroll
  for (int i = 0; i < 5; ++i) {{
    int first = 2 * i - odd;
    word[i] = 0;
    if (first + 1 < count && first < 7) word[i] = words[i];
    else if (first < count) word[i] = *(const unsigned short*)(words + i);
  }}
  #pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = __funnelshift_r(word[i], word[i + 1], 16 * odd);
}}
"""


def load_shifted(to: ir.TensorLoad, source: ir.TensorLoad, count: ir.Expr) -> tirx.Stmt:
    """Load the first ``count`` of eight elements into registers; the others are zeros.

    Parameters
    ----------
    to : TensorLoad
        The first of eight elements of registers.
    source : TensorLoad
        The first element, at any address.
    count : Expr
        From 0 to 8.
    """
    places = (tirx.address_of(to), tirx.address_of(source))
    number = tirx.Cast("int32", count)
    return tirx.Evaluate(cuda_func_call(NAME, *places, number, source_code=_SOURCE))
