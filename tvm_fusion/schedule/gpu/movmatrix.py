"""``movmatrix``: transpose an 8x8 fragment of a half type across the threads of a warp.

An accumulator fragment of ``mma`` holds neighbouring columns in a thread; a B fragment of the next
``mma`` holds neighbouring rows. The transpose turns the one into the other.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

MOVMATRIX = "movmatrix_trans"
_SOURCE = f"""
__device__ __forceinline__ void {MOVMATRIX}(void* to, const void* from) {{
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(*(unsigned*)to) : "r"(*(const unsigned*)from));
}}
"""


def movmatrix(to: ir.TensorLoad, pair: ir.TensorLoad) -> tirx.Stmt:
    """Transpose an 8x8 fragment; all threads of a warp take part.

    Parameters
    ----------
    to, pair : TensorLoad
        The first of a thread's two elements of row ``t // 4``, from column ``t % 4 * 2`` on.
    """
    addresses = (tirx.address_of(to), tirx.address_of(pair))
    return tirx.Evaluate(cuda_func_call(MOVMATRIX, *addresses, source_code=_SOURCE))
