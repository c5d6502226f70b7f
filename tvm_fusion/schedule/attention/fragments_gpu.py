"""Turns results of one product on tensor cores into a factor of the next.

A thread of a warp has results of neighbouring columns, but terms of a factor: eight lines of four
threads, each with two elements of its line, become the columns of these elements.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

TURN = "turned_pair"
_SOURCE = f"""
__device__ __forceinline__ void {TURN}(void* to, const void* from) {{
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(*(unsigned*)to) : "r"(*(const unsigned*)from));
}}
"""


def turn(to: ir.TensorLoad, pair: ir.TensorLoad) -> tirx.Stmt:
    """Turn round eight rows of eight elements of a half type; all threads of a warp do at once.

    Parameters
    ----------
    to, pair : TensorLoad
        The first of a thread's two elements of row ``t // 4``, from column ``t % 4 * 2`` on.
    """
    places = (tirx.address_of(to), tirx.address_of(pair))
    return tirx.Evaluate(cuda_func_call(TURN, *places, source_code=_SOURCE))
