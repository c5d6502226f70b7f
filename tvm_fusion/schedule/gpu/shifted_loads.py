"""Loads of eight elements of a half type from any address: aligned words, shifted when used.

    load     word[0 .. 4] = the aligned words around the elements, as far as these exist
    shift    to[i] = funnel_shift(word[i], word[i + 1]), by half a word or not at all

A word of which the upper element alone does not exist is read by halves, so that nothing beyond the
last element of a tensor is read. A word's lower element lies before the first one at worst: in the
row before, as a tensor begins at an aligned address. Loads are not waited for before the shift.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

ELEMENTS = 10  # of half types, that a load holds
_LOAD = """
__device__ __forceinline__ void tvm_fusion_load_words(void* to, const void* from, int count) {
  unsigned* word = (unsigned*)to;
  int odd = (int)((size_t)from >> 1 & 1);
  const unsigned* words = (const unsigned*)((size_t)from - 2 * odd);
  #pragma unroll
  for (int i = 0; i < 5; ++i) {
    int first = 2 * i - odd;
    word[i] = 0;
    if (first + 1 < count && first < 7) word[i] = words[i];
    else if (first < count) word[i] = *(const unsigned short*)(words + i);
  }
}
"""
_SHIFT = """
__device__ __forceinline__ void tvm_fusion_shift_words(void* to, const void* held,
                                                       const void* from) {
  unsigned* result = (unsigned*)to;
  const unsigned* word = (const unsigned*)held;
  int odd = (int)((size_t)from >> 1 & 1);
  #pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = __funnelshift_r(word[i], word[i + 1], 16 * odd);
}
"""


def load_words(to: ir.TensorLoad, source: ir.TensorLoad, count: ir.Expr) -> tirx.Stmt:
    """Load the words around the first ``count`` of eight elements; other elements are zeros.

    Parameters
    ----------
    to : TensorLoad
        The first of ten elements of registers.
    source : TensorLoad
        The first element, at any address.
    """
    places = (tirx.address_of(to), tirx.address_of(source))
    number = tirx.Cast("int32", count)
    call = cuda_func_call("tvm_fusion_load_words", *places, number, source_code=_LOAD)
    return tirx.Evaluate(call)


def shift_words(to: ir.TensorLoad, held: ir.TensorLoad, source: ir.TensorLoad) -> tirx.Stmt:
    """Extract eight elements from the words that were loaded from a source."""
    places = map(tirx.address_of, (to, held, source))
    return tirx.Evaluate(cuda_func_call("tvm_fusion_shift_words", *places, source_code=_SHIFT))
